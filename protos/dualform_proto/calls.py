"""The calls of dualform.v1, one for each kind of question: how question and answer become messages and values again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from dualform.errors import BadInput
from dualform.questions import (
    Contribution,
    Distribution,
    GradientSum,
    GradientTopK,
    GroupSum,
    Inventory,
    MaskCancellation,
    NetworkWeights,
    Output,
    Placebo,
    PreviewLookup,
    QuerySetLookup,
    Question,
    SlotLookup,
    SqlStatement,
    TopK,
    Verification,
)
from dualform_proto import contributions, distributions, gradients, info, lookups, placebos, previews, rebuilt, scores
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
    check_answer: Callable[[Any, Any], None] = lambda question, answer: None
    """Raises ServiceError where an answer is not one to the question."""

    def answer(self, question: Question[Any], message: Message) -> Any:
        """The answer to a question that a message holds."""
        found = self.decode_answer(message)
        self.check_answer(question, found)
        return found


CALLS: dict[type[Question[Any]], Call] = {
    Inventory: Call("Info", lambda _: pb.InfoRequest(), lambda _: Inventory(), info.encode_info, info.decode_info),
    TopK: Call(
        "TopK",
        scores.encode_topk,
        scores.decode_topk,
        scores.encode_hits,
        scores.decode_hits,
        scores.check_hits,
    ),
    GroupSum: Call(
        "GroupSum",
        scores.encode_group_sum,
        scores.decode_group_sum,
        scores.encode_group_sums,
        scores.decode_group_sums,
        scores.check_group_sums,
    ),
    GradientTopK: Call(
        "GradientTopK",
        gradients.encode_gradient_top_k,
        gradients.decode_gradient_top_k,
        gradients.encode_gradient_hits,
        gradients.decode_gradient_hits,
        scores.check_hits,
    ),
    GradientSum: Call(
        "GradientSum",
        gradients.encode_gradient_sum,
        gradients.decode_gradient_sum,
        gradients.encode_gradient_sums,
        gradients.decode_gradient_sums,
        scores.check_group_sums,
    ),
    Output: Call(
        "Output",
        rebuilt.encode_output,
        rebuilt.decode_output,
        rebuilt.encode_outputs,
        rebuilt.decode_outputs,
        rebuilt.check_outputs,
    ),
    Contribution: Call(
        "Contributions",
        contributions.encode_contribution,
        contributions.decode_contribution,
        contributions.encode_contributions,
        contributions.decode_contributions,
    ),
    Placebo: Call(
        "Placebo",
        placebos.encode_placebo,
        placebos.decode_placebo,
        placebos.encode_placebos,
        placebos.decode_placebos,
    ),
    NetworkWeights: Call(
        "Weights",
        rebuilt.encode_weights,
        rebuilt.decode_weights,
        rebuilt.encode_weights_answer,
        rebuilt.decode_weights_answer,
    ),
    MaskCancellation: Call(
        "Cancellation",
        rebuilt.encode_cancellation,
        rebuilt.decode_cancellation,
        rebuilt.encode_cancellation_answer,
        rebuilt.decode_cancellation_answer,
    ),
    SlotLookup: Call(
        "Slots",
        lookups.encode_slots,
        lookups.decode_slots,
        lookups.encode_slots_answer,
        lookups.decode_slots_answer,
    ),
    SqlStatement: Call(
        "Sql", lookups.encode_sql, lookups.decode_sql, lookups.encode_sql_answer, lookups.decode_sql_answer
    ),
    QuerySetLookup: Call(
        "QuerySet",
        lookups.encode_query_set,
        lookups.decode_query_set,
        lookups.encode_query_set_answer,
        lookups.decode_query_set_answer,
    ),
    Verification: Call(
        "Verify",
        lambda _: pb.VerifyRequest(),
        lambda _: Verification(),
        lookups.encode_reconstructions,
        lookups.decode_reconstructions,
    ),
    Distribution: Call(
        "Distribution",
        distributions.encode_distribution,
        distributions.decode_distribution,
        distributions.encode_distributions,
        distributions.decode_distributions,
    ),
    PreviewLookup: Call(
        "Previews",
        previews.encode_preview_lookup,
        previews.decode_preview_lookup,
        previews.encode_previews,
        previews.decode_previews,
        previews.check_previews,
    ),
}


def call_of(question: Question[Any]) -> Call:
    """Raises BadInput for what is no question."""
    call = CALLS.get(type(question))
    if call is None:
        raise BadInput(
            f"ask takes a query such as dualform.TopK, not {type(question).__name__}.",
            hint='For example ask(dualform.TopK("head", dualform.Vectors(x))).',
            field="question",
        )
    return call
