"""Errors <-> gRPC statuses. One table, used in both directions.

A status carries google.rpc details: ErrorInfo (reason: the error's `code`; domain; the hint as metadata) and, where one
argument is at fault, BadRequest with its name. So a client raises the class, message, hint and field that the server
raised. Statuses that the transport makes (nobody there, deadline passed) carry no details: the code alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from dualform import errors

DOMAIN = "dualform"
DETAILS_KEY = "grpc-status-details-bin"
TEXT_BYTES = 4096
"""Longest message and hint on the wire. Details travel as metadata."""
METADATA_BYTES = 64 * 2**10
"""Bound on metadata, for both sides: gRPC's own of 8 KiB would cut long details off."""

STATUS_CODES: dict[type[errors.DualformError], grpc.StatusCode] = {
    errors.BadInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.BadMask: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EmptyMask: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Inexact: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RecordingError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Forked: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FolderError: grpc.StatusCode.INTERNAL,
    errors.NotAMemory: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Damaged: grpc.StatusCode.DATA_LOSS,
    errors.Locked: grpc.StatusCode.ABORTED,
    errors.MissingPackage: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ServiceError: grpc.StatusCode.UNKNOWN,
    errors.DualformError: grpc.StatusCode.INTERNAL,
}
"""The first class of a code, in this order, is what a status without details is read as."""

_CLOSED = (
    errors.Unavailable,
    "{address} closed before it had answered.",
    "Ask another server, or this one once it has started again.",
)
_OF_TRANSPORT: tuple[tuple[grpc.StatusCode, str, type[errors.DualformError], str, str], ...] = (
    # A server that gives a question up says why; a client that is closed meanwhile, that its channel was.
    (grpc.StatusCode.CANCELLED, "Channel closed", errors.Cancelled, "{address} answered CANCELLED: {message}", ""),
    (grpc.StatusCode.CANCELLED, "", *_CLOSED),
    # What gRPC says of a question that was on its way when its server ended: somebody did listen there.
    (grpc.StatusCode.UNAVAILABLE, "Cancelling all calls", *_CLOSED),
    (grpc.StatusCode.UNAVAILABLE, "Socket closed", *_CLOSED),
    (grpc.StatusCode.UNAVAILABLE, "GOAWAY", *_CLOSED),
    (grpc.StatusCode.UNAVAILABLE, "Connection reset by peer", *_CLOSED),
    (
        grpc.StatusCode.UNAVAILABLE,
        "",
        errors.Unavailable,
        "Cannot connect to {address} ({reason}).",
        "Start one: dualform serve RUN --address {address}",
    ),
    (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "",
        errors.TimedOut,
        "{address} did not answer before the deadline.",
        "Ask with fewer queries, or give a longer timeout.",
    ),
    (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "larger than max",
        errors.BadInput,
        "A message to or from {address} is too large ({message}).",
        "Ask with fewer queries, a smaller k or a narrower filter.",
    ),
    (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "",
        errors.Overloaded,
        "{address} takes no more questions at present.",
        "Ask again in a moment.",
    ),
    (
        grpc.StatusCode.UNIMPLEMENTED,
        "",
        errors.ServiceError,
        "{address} is a server, but does not speak dualform.v1 ({message}).",
        "Check the address, and that client and server are of one version.",
    ),
)
"""Statuses without details: the first line whose code it is, and whose text its message has."""

_BY_REASON = {error.code: error for error in STATUS_CODES}


def to_status(error: errors.DualformError) -> grpc.Status:
    """The status that carries the error. A class of later versions travels as its nearest known base."""
    known = next(base for base in type(error).__mro__ if base in STATUS_CODES)
    message, hint = _bounded(error.message), {"hint": _bounded(error.hint)} if error.hint else {}
    details = [_packed(error_details_pb2.ErrorInfo(reason=known.code, domain=DOMAIN, metadata=hint))]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=_bounded(error.field), description=message)
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    status = status_pb2.Status(code=STATUS_CODES[known].value[0], message=message, details=details)
    ready: grpc.Status = rpc_status.to_status(status)
    return ready


def from_status(
    code: grpc.StatusCode, message: str, metadata: Iterable[tuple[str, str | bytes]], address: str
) -> errors.DualformError:
    """The error that a status carries; where it carries none, the one that its code says, naming the address."""
    carried = next((value for key, value in metadata if key == DETAILS_KEY), None)
    if isinstance(carried, bytes):
        # Details that cannot be read must not hide the error that brought them.
        with suppress(DecodeError):
            error = _carried(status_pb2.Status.FromString(carried))
            if error is not None:
                return error
    return _of_transport(code, message, address)


def _carried(status: status_pb2.Status) -> errors.DualformError | None:
    info, fault = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        for part in (info, fault):
            if detail.Is(part.DESCRIPTOR):
                detail.Unpack(part)
    if info.domain != DOMAIN:
        return None
    field = fault.field_violations[0].field if fault.field_violations else ""
    kind = _BY_REASON.get(info.reason, errors.ServiceError)
    return kind(status.message, hint=info.metadata.get("hint", ""), field=field)


def _of_transport(code: grpc.StatusCode, message: str, address: str) -> errors.DualformError:
    # gRPC's own message has all that it tried before the reason.
    said = {"address": address, "message": message, "reason": message.rpartition(": ")[2].rstrip(".").lower()}
    for known, part, kind, text, hint in _OF_TRANSPORT:
        if known is code and part in message:
            return kind(text.format(**said), hint=hint.format(**said))
    kind = next((error for error, its in STATUS_CODES.items() if its is code), errors.ServiceError)
    return kind(f"{address} answered {code.name}: {message}")


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _bounded(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= TEXT_BYTES:
        return data.decode()
    return data[: TEXT_BYTES - 3].decode(errors="ignore") + "…"
