"""All errors that dualform raises on purpose.

    DualformError
    ├── BadInput          (ValueError)         an argument is not valid
    │   ├── BadMask                            `where` is not a boolean condition over slot columns
    │   └── EmptyMask                          `where` does not match any slot
    ├── NotFound          (LookupError)        a layer, column, query set, dataset, slot or row does not exist
    ├── Inexact           (RuntimeError)       the record cannot reproduce an output or weight
    ├── RecordingError    (RuntimeError)       the training cannot be recorded as it runs
    ├── Forked            (RuntimeError)       the memory was opened before this process was forked
    ├── FolderError       (OSError)            a problem with the folder on disk
    │   ├── NotAMemory                         not a memory, or one that this version cannot read
    │   ├── AlreadyExists (FileExistsError)    the folder must not be overwritten
    │   ├── Damaged                            a file is cut short, altered or missing
    │   └── Locked                             another process holds a file
    ├── MissingPackage    (ImportError)        a package is missing or doubled; the message names the extra
    └── ServiceError      (ConnectionError)    a problem with the server
        ├── Unavailable                        the server cannot be reached, or it went away
        ├── Overloaded                         the server accepts no more queries at present
        ├── Unauthenticated                    the token is missing or wrong
        ├── Forbidden                          the token does not allow this
        ├── Cancelled                          the caller went away before the result was ready
        └── TimedOut      (TimeoutError)       the deadline passed before the result was ready

Each error has a stable `code` for programs, a `message` that says what is wrong, and a `hint` that says what to do.
"""

from __future__ import annotations

from linecache import getline
from traceback import format_exception, walk_tb
from typing import ClassVar


class DualformError(Exception):
    """Base class of all errors that dualform raises on purpose. `code` is stable, and used in JSON."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """What to do about it, in one sentence; may be empty."""
        self.field = field
        """The argument at fault, such as "where", "k" or "layer"; may be empty."""
        self.request_id = ""
        """The id of the call in the server's log; empty without a server."""

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: what is wrong, what to do, and the line of the notebook; all frames of an error that has
        another one as its cause.
        """
        if self.__cause__ is not None:
            return "".join(format_exception(self)).splitlines()
        cells = [
            (f.f_code.co_filename, n)
            for f, n in walk_tb(self.__traceback__)
            if f.f_globals.get("__name__") == "__main__"
        ]
        where = [f"at line {n}: {getline(file, n).strip()}" for file, n in cells[-1:]]
        return [f"{type(self).__name__}: {self.message}", *([self.hint] if self.hint else []), *where]


class BadInput(DualformError, ValueError):
    code = "bad_input"


class BadMask(BadInput):
    code = "bad_mask"


class EmptyMask(BadInput):
    code = "empty_mask"


class NotFound(DualformError, LookupError):
    code = "not_found"


class Inexact(DualformError, RuntimeError):
    code = "inexact"


class RecordingError(DualformError, RuntimeError):
    code = "recording"


class Forked(DualformError, RuntimeError):
    code = "forked"


class FolderError(DualformError, OSError):
    code = "folder"

    def __str__(self) -> str:
        return DualformError.__str__(self)


class NotAMemory(FolderError):
    code = "not_a_memory"


class AlreadyExists(FolderError, FileExistsError):
    code = "already_exists"


class Damaged(FolderError):
    code = "damaged"


class Locked(FolderError):
    code = "locked"


class MissingPackage(DualformError, ImportError):
    code = "missing_package"


class ServiceError(DualformError, ConnectionError):
    code = "service"

    def __str__(self) -> str:
        return DualformError.__str__(self)


class Unavailable(ServiceError):
    code = "unavailable"


class Overloaded(ServiceError):
    code = "overloaded"


class Unauthenticated(ServiceError):
    code = "unauthenticated"


class Forbidden(ServiceError):
    code = "forbidden"


class Cancelled(ServiceError):
    code = "cancelled"


class TimedOut(ServiceError, TimeoutError):
    code = "timed_out"
