"""What DuckDB is told of a file's path, which it takes for more than a name."""

from __future__ import annotations

import os
from pathlib import Path

from dualform.errors import BadInput

_WRITTEN = {"?": "DuckDB reads what follows as options"}
_OPENED = {"\\": "DuckDB reads it as a slash"}


def duckdb_path(path: Path) -> str:
    """Absolute: a relative one may begin as an address does, `s3:` or `md:`, or as a home, `~`.

    Raises BadInput where DuckDB would open another file than this.
    """
    check_openable(path)
    return str(path.absolute())


def check_openable(path: Path) -> None:
    """Raises BadInput where DuckDB cannot open files in this folder."""
    try:
        os.fspath(path.absolute()).encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"the path {os.fspath(path)!r} is not valid UTF-8.",
            hint="Rename the folder, or choose another.",
            field="path",
        ) from None
    if os.sep == "/":
        _check(path, _OPENED)


def check_writable(path: Path) -> None:
    """Raises BadInput where DuckDB cannot write files in this folder, which it may still be able to read."""
    check_openable(path)
    _check(path, _WRITTEN)


def _check(path: Path, marks: dict[str, str]) -> None:
    place = os.fspath(path.absolute()), os.fspath(path.resolve())  # DuckDB follows links
    for mark, reason in marks.items():
        if any(mark in own for own in place):
            raise BadInput(
                f"{place[1]} cannot hold a memory: its path contains {mark!r}, and {reason}.",
                hint="Rename the folder, or choose another.",
                field="path",
            )
