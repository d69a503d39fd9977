"""Debian's Chromium, for tests of what a reader sees."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "there is no Chromium on this machine: apt-get install chromium"
REQUIRED = "DUALFORM_REQUIRE_CHROMIUM"
"""The environment variable under which tests that want a browser fail without one, as in CI; else they are skipped."""
needs_chromium = pytest.mark.skipif(CHROMIUM is None and not os.environ.get(REQUIRED), reason=MISSING)
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
"""It asks nobody anything, and runs as root, too, as on machines of CI. What it shows are pages of ours."""


def launched(playwright: Playwright) -> Browser:
    """The browser. Without one the test is skipped, or fails where it is required."""
    if CHROMIUM is None:
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(MISSING)
    return playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        try:
            yield browser
        finally:
            browser.close()
