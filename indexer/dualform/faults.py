"""Any error as one of ours, for whoever tells it to people and programs without a traceback."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback

from dualform.errors import DualformError, FolderError, Overloaded
from dualform.extras import missing_package

TRACEBACK = "DUALFORM_TRACEBACK"
"""The environment variable under which the traceback stands on stderr all the same."""


_MEMORY = re.compile(r"malloc of size|allocate|out of memory|bad_alloc|cannot create thread", re.IGNORECASE)
_MOST_BYTES = 1 << 43
_FILES = re.compile(r"too many open files", re.IGNORECASE)


def shortage(error: BaseException, what: str = "this process") -> Overloaded | None:
    """What is raised where memory or open files ran out; None for any other error. DuckDB and Arrow have errors of many
    types for it, also of those for a damaged file, and tell it by their text.
    """
    said, number = (str(error).splitlines() or [""])[0], getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE) or _FILES.search(said):
        short, limit = "has too many open files", "ulimit -n"
    elif max(map(int, re.findall(r"\d{13,}", said)), default=0) > _MOST_BYTES:
        return None  # a damaged file may say that it holds more than any machine
    elif isinstance(error, MemoryError) or number == errno.ENOMEM or _MEMORY.search(said):
        short, limit = "needs more memory than there is", "ulimit -v"
    else:
        return None
    hint = f"Ask again when more is free, or raise the limit of the process ({limit})."
    return Overloaded(f"{what} {short}: {said or type(error).__name__}.", hint=hint)


def as_dualform_error(error: BaseException) -> DualformError:
    """The error itself where it is one of dualform, or one that says what happened."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, DualformError):
        return error
    if (short := shortage(error)) is not None:
        return short
    if isinstance(error, ImportError) and (missing := missing_package(error)) is not None:
        return missing
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return FolderError(f"{place}{error.strerror or error}")
    return DualformError(
        f"{type(error).__name__}: {error}",
        hint=f"This is a fault of dualform; set {TRACEBACK}=1 to see where it happened.",
    )
