"""What a caller is told of what went wrong: nothing of where things lie on this machine. The log has the whole."""

from __future__ import annotations

import logging
import re

from dualform.errors import Cancelled, DualformError, FolderError
from dualform_service.deadline import Deadline

_log = logging.getLogger("dualform.service")

_OUTSIDE = re.compile(
    r"(?<![\w.~<])(?:/|\w:\\).*?[/\\](?=(?:memory\.json|weights|probes|gallery|(?:shard|run|derived)-?\w*)\b)"
)
"""Of a path, what lies before the memory's own names."""
_ABSOLUTE = re.compile(r"(?<![\w.~<])(?:/|\w:\\)\S")


def as_ours(name: str, error: Exception, deadline: Deadline, request_id: str) -> DualformError:
    """What a caller of the method `name` is told of an error."""
    if isinstance(error, Cancelled):
        return deadline.error()
    if isinstance(error, FolderError):
        _log.warning("%s failed, request %s: %s", name, request_id, error)
        return _without_places(error, request_id)
    if isinstance(error, DualformError):
        return error
    # The text of an unforeseen error can name anything on this machine: it goes to the log, not to the caller.
    _log.error("%s failed, request %s", name, request_id, exc_info=error)
    return DualformError("The server failed on this question.", hint=_in_the_log(request_id))


def _without_places(error: FolderError, request_id: str) -> DualformError:
    """The error with files as they are named within the memory."""
    message, hint = (_OUTSIDE.sub("", text) for text in (error.message, error.hint))
    if _ABSOLUTE.search(message):
        message = "The memory's folder cannot be read."
    if _ABSOLUTE.search(hint) or not hint:
        hint = _in_the_log(request_id)
    return type(error)(message, hint=hint, field=error.field)


def _in_the_log(request_id: str) -> str:
    return f"The server's log says why, under the request {request_id}."
