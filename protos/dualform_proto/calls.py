"""The calls of dualform.v1, one for each kind of question: how question and answer become messages and values again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from dualform.errors import BadInput
from dualform.questions import (
    GroupSum,
    Inventory,
    MaskCancellation,
    NetworkWeights,
    Output,
    ProbeLookup,
    Question,
    SlotLookup,
    SqlStatement,
    TopK,
    Verification,
)
from dualform_proto import answers, info, questions, weights
from dualform_proto.v1 import dualform_pb2 as pb


@dataclass(frozen=True)
class Call:
    """Encoding and decoding raise BadInput for what the wire cannot carry, or for lengths that do not fit."""

    method: str
    """Name of the call in dualform.v1.Memory."""
    encode_question: Callable[[Any], Message]
    decode_question: Callable[[Any], Question[Any]]
    encode_answer: Callable[[Any], Message]
    decode_answer: Callable[[Any], Any]


CALLS: dict[type[Question[Any]], Call] = {
    Inventory: Call("Info", lambda _: pb.InfoRequest(), lambda _: Inventory(), info.encode_info, info.decode_info),
    TopK: Call("TopK", questions.encode_topk, questions.decode_topk, answers.encode_hits, answers.decode_hits),
    GroupSum: Call(
        "GroupSum",
        questions.encode_group_sum,
        questions.decode_group_sum,
        answers.encode_group_sums,
        answers.decode_group_sums,
    ),
    Output: Call(
        "Output", questions.encode_output, questions.decode_output, weights.encode_outputs, weights.decode_outputs
    ),
    NetworkWeights: Call(
        "Weights", questions.encode_weights, questions.decode_weights, weights.encode_weights, weights.decode_weights
    ),
    MaskCancellation: Call(
        "Cancellation",
        questions.encode_cancellation,
        questions.decode_cancellation,
        weights.encode_cancellation,
        weights.decode_cancellation,
    ),
    SlotLookup: Call(
        "Slots",
        questions.encode_slots,
        questions.decode_slots,
        answers.encode_slots_answer,
        answers.decode_slots_answer,
    ),
    SqlStatement: Call(
        "Sql", questions.encode_sql, questions.decode_sql, answers.encode_sql_answer, answers.decode_sql_answer
    ),
    ProbeLookup: Call(
        "Probe",
        questions.encode_probe,
        questions.decode_probe,
        answers.encode_probe_answer,
        answers.decode_probe_answer,
    ),
    Verification: Call(
        "Verify",
        lambda _: pb.VerifyRequest(),
        lambda _: Verification(),
        answers.encode_certificates,
        answers.decode_certificates,
    ),
}


def call_of(question: Question[Any]) -> Call:
    """Raises BadInput for what is no question."""
    call = CALLS.get(type(question))
    if call is None:
        raise BadInput(f"{type(question).__name__} is no question.", hint="See dualform.questions.", field="question")
    return call
