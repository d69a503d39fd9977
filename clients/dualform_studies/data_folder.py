"""Where datasets and texts lie."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "DUALFORM_DATA"


def data_folder(data: Path | None) -> Path:
    """The folder given, else $DUALFORM_DATA, else the user's cache."""
    if data is not None:
        return data
    if os.environ.get(DATA_VARIABLE):
        return Path(os.environ[DATA_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualform"
