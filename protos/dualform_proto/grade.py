"""Grades <-> `Grade` messages."""

from __future__ import annotations

from dualform.answers.grade import Grade, GradeName
from dualform.errors import BadInput
from dualform_proto.v1 import dualform_pb2 as pb

GRADE_NAMES: dict[GradeName, pb.GradeName.ValueType] = {
    "exact": pb.GRADE_NAME_EXACT,
    "exact to bfloat16": pb.GRADE_NAME_EXACT_TO_BFLOAT16,
    "off": pb.GRADE_NAME_OFF,
    "scores only": pb.GRADE_NAME_SCORES_ONLY,
}
_NAMES: dict[int, GradeName] = {value: name for name, value in GRADE_NAMES.items()}


def encode_grade(grade: Grade) -> pb.Grade:
    return pb.Grade(
        name=GRADE_NAMES[grade.name],
        error=grade.error,
        rounding=grade.rounding,
        since=grade.since,
        reason=grade.reason,
    )


def decode_grade(message: pb.Grade) -> Grade:
    """Raises BadInput for a name that this version does not know, and for none: nothing is exact by default."""
    if message.name not in _NAMES:
        raise BadInput(f"grade is {message.name}, which this version does not know.", field="grade")
    return Grade(
        name=_NAMES[message.name],
        error=message.error if message.HasField("error") else None,
        rounding=message.rounding if message.HasField("rounding") else None,
        since=message.since if message.HasField("since") else None,
        reason=message.reason,
    )
