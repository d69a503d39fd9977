"""The Chromium of this machine."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "there is no Chromium on this machine: apt-get install chromium"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
"""It asks nobody anything, and runs as root, too, as on machines of CI. What it shows are pages of ours."""


def chromium() -> str | None:
    """Its path; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)
