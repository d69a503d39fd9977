"""Statuses <-> `Status` messages."""

from __future__ import annotations

from dualform.answers.status import Status, StatusName
from dualform.errors import BadInput
from dualform_proto.v1 import dualform_pb2 as pb

STATUS_NAMES: dict[StatusName, pb.StatusName.ValueType] = {
    "exact": pb.STATUS_NAME_EXACT,
    "exact to bfloat16": pb.STATUS_NAME_EXACT_TO_BFLOAT16,
    "approximate": pb.STATUS_NAME_APPROXIMATE,
    "scores only": pb.STATUS_NAME_SCORES_ONLY,
}
_NAMES: dict[int, StatusName] = {value: name for name, value in STATUS_NAMES.items()}


def encode_status(status: Status) -> pb.Status:
    return pb.Status(
        name=STATUS_NAMES[status.name],
        error=status.error,
        rounding=status.rounding,
        since=status.since,
        reason=status.reason,
    )


def decode_status(message: pb.Status) -> Status:
    """Raises BadInput for a name that this version does not know, and for none: nothing is exact by default."""
    if message.name not in _NAMES:
        raise BadInput(f"status is {message.name}, which this version does not know.", field="status")
    return Status(
        name=_NAMES[message.name],
        error=message.error if message.HasField("error") else None,
        rounding=message.rounding if message.HasField("rounding") else None,
        since=message.since if message.HasField("since") else None,
        reason=message.reason,
    )
