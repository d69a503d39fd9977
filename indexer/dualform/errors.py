"""Every error dualform raises on purpose.

    DualformError
    ├── BadInput          (ValueError)         a question or argument that cannot be answered as put
    │   ├── BadMask                            a `where` that is no boolean expression over slot columns
    │   └── EmptyMask                          a `where` that leaves no slot
    ├── NotFound          (LookupError)        a layer, column, query set, dataset, slot or row that does not exist
    ├── Inexact           (RuntimeError)       an output or weight that the record cannot reproduce
    ├── RecordingError    (RuntimeError)       the training cannot be recorded as it runs
    ├── Forked            (RuntimeError)       what another process opened, of which this one is a fork
    ├── FolderError       (OSError)            the folder on disk
    │   ├── NotAMemory                         no memory there, or one this version cannot read
    │   ├── AlreadyExists (FileExistsError)    a folder that must not be written into
    │   ├── Damaged                            a file that is cut short, altered or missing
    │   └── Locked                             another process holds a file
    ├── MissingPackage    (ImportError)        a package is missing or doubled; the message names the extra
    └── ServiceError      (ConnectionError)    the other end of the wire
        ├── Unavailable                        no server there, or it went away
        ├── Overloaded                         the server takes no more questions at present
        ├── Unauthenticated                    a token is missing or wrong
        ├── Forbidden                          a token that is right does not allow this
        ├── Cancelled                          the asker went away before the answer was ready
        └── TimedOut      (TimeoutError)       the deadline passed before the answer was ready

Each carries a `code` (stable, for programs), a message that says what is wrong, and a `hint` that says what to do.
"""

from __future__ import annotations

from linecache import getline
from traceback import format_exception, walk_tb
from typing import ClassVar


class DualformError(Exception):
    """Base of all deliberate errors: each says what is wrong, mostly what to do (`hint`), and has a `code` for JSON."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """What to do about it, one sentence; empty where the message already says it."""
        self.field = field
        """The argument at fault ("where", "k", "layer"); empty where there is none."""
        self.request_id = ""
        """Of the call that met it, by which a server's log has it; empty where no server was asked."""

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
