"""Any error as one of ours, for whoever tells it to people and programs without a traceback."""

from __future__ import annotations

import os
import sys
import traceback

from dualform.errors import DualformError, FolderError
from dualform.extras import missing_package

TRACEBACK = "DUALFORM_TRACEBACK"
"""The environment variable under which the traceback stands on stderr all the same."""


def as_dualform_error(error: BaseException) -> DualformError:
    """The error itself where it is one of dualform, or one that says what happened."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, DualformError):
        return error
    if isinstance(error, ImportError) and (missing := missing_package(error)) is not None:
        return missing
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return FolderError(f"{place}{error.strerror or error}")
    return DualformError(
        f"{type(error).__name__}: {error}",
        hint=f"This is a fault of dualform; set {TRACEBACK}=1 to see where it happened.",
    )
