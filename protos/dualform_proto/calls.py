"""The calls of dualform.v1: how each question and its answer become messages, when an answer is refused, and the
metadata of a call.

`dualform-memory` names the memory to ask, for a server of several. It is known before any message, and percent-encoded,
which leaves names of letters, digits and ._-~ as they are. `x-request-id` names the call itself, in both directions, so
that its caller and the server's log speak of the same one. The server makes it if the caller gives none, or one that a
log could not print safely.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import numpy as np
from google.protobuf.message import Message

from dualform.answers import Cancellation, GroupSums, Hits, Outputs, Previews, Reconstructions
from dualform.errors import BadInput, ServiceError
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
from dualform_proto.codec import Codec, Converter, within
from dualform_proto.messages import (
    CONTRIBUTIONS,
    DISTRIBUTIONS,
    GROUP_SUMS,
    HITS,
    INFO,
    OUTPUTS,
    PLACEBOS,
    PREVIEWS,
    QUERY_SET,
    ROWS,
    SCORE,
    SLOTS,
    WEIGHTS,
    negated,
)
from dualform_proto.v1 import dualform_pb2 as pb

_UPGRADE = "It runs an older version of dualform: upgrade it, or ask the memory's folder."


@dataclass(frozen=True)
class Call:
    """The codecs raise BadInput for what the wire cannot carry, or for lengths that do not fit."""

    method: str
    """Name of the call in dualform.v1.Memory."""
    question: Codec
    result: Codec | Converter
    check: Callable[[Any, Any], None] = lambda question, answer: None
    """Raises ServiceError for an answer that is not one to the question."""

    def answer(self, question: Question[Any], message: Message) -> Any:
        """The answer to a question that a message holds."""
        found = self.result.decode(message)
        self.check(question, found)
        return found


def _check_hits(question: TopK | GradientTopK, hits: Hits) -> None:
    if question.distinct and hits.repeats is None:
        raise ServiceError("the server did not answer with one hit a sample.", hint=_UPGRADE, field="distinct")


def _check_sums(question: GroupSum | GradientSum, answer: GroupSums) -> None:
    if question.k is not None and answer.numbers is None:
        raise ServiceError(
            "the server knows nothing of k in a sum by group: it is of an earlier version, and answered all groups.",
            hint="Ask without k.",
            field="k",
        )


def _check_outputs(question: Output, outputs: Outputs) -> None:
    """Servers of earlier versions know no kernels."""
    asked = (question.kernel, question.temperature, question.initial)
    if (outputs.kernel, outputs.temperature, outputs.initial) != asked:
        left_out = "" if question.initial else " without the initial weights"
        raise ServiceError(
            f"the server did not answer with the kernel {question.kernel!r}{left_out}.", hint=_UPGRADE, field="kernel"
        )
    if question.kernel == "softmax" and outputs.effective_slots is None:
        raise ServiceError(
            "the server did not say over how many slots the softmax is spread.",
            hint="It does not keep to dualform.v1: ask the memory's folder.",
            field="kernel",
        )


def _check_previews(question: PreviewLookup, found: Previews) -> None:
    if not np.array_equal(question.samples, found.samples):
        raise ServiceError("the server answered with what other samples looked like.")


CALLS: dict[type[Question[Any]], Call] = {
    Inventory: Call("Info", Codec(Inventory, pb.InfoRequest), INFO),
    TopK: Call("TopK", Codec(TopK, pb.TopKRequest, custom=(SCORE,)), HITS, _check_hits),
    GroupSum: Call("GroupSum", Codec(GroupSum, pb.GroupSumRequest, custom=(SCORE,)), GROUP_SUMS, _check_sums),
    GradientTopK: Call(
        "GradientTopK",
        Codec(GradientTopK, pb.GradientTopKRequest),
        within(pb.GradientTopKResponse, "hits", HITS),
        _check_hits,
    ),
    GradientSum: Call(
        "GradientSum",
        Codec(GradientSum, pb.GradientSumRequest),
        within(pb.GradientSumResponse, "sums", GROUP_SUMS),
        _check_sums,
    ),
    Output: Call(
        "Output",
        Codec(Output, pb.OutputRequest, custom=(negated("initial", "without_initial"),)),
        OUTPUTS,
        _check_outputs,
    ),
    Contribution: Call("Contributions", Codec(Contribution, pb.ContributionsRequest), CONTRIBUTIONS),
    Placebo: Call("Placebo", Codec(Placebo, pb.PlaceboRequest), PLACEBOS),
    NetworkWeights: Call("Weights", Codec(NetworkWeights, pb.WeightsRequest), WEIGHTS),
    MaskCancellation: Call(
        "Cancellation",
        Codec(MaskCancellation, pb.CancellationRequest),
        Codec(Cancellation, pb.CancellationResponse),
    ),
    SlotLookup: Call("Slots", Codec(SlotLookup, pb.SlotsRequest), SLOTS),
    SqlStatement: Call("Sql", Codec(SqlStatement, pb.SqlRequest, {"text": "statement"}), ROWS),
    QuerySetLookup: Call("QuerySet", Codec(QuerySetLookup, pb.QuerySetRequest), QUERY_SET),
    Verification: Call("Verify", Codec(Verification, pb.VerifyRequest), Codec(Reconstructions, pb.VerifyResponse)),
    Distribution: Call("Distribution", Codec(Distribution, pb.DistributionRequest, custom=(SCORE,)), DISTRIBUTIONS),
    PreviewLookup: Call("Previews", Codec(PreviewLookup, pb.PreviewsRequest), PREVIEWS, _check_previews),
}


def call_of(question: Question[Any]) -> Call:
    """Raises BadInput if it is not a question."""
    call = CALLS.get(type(question))
    if call is None:
        raise BadInput(
            f"ask takes a query such as dualform.TopK, not {type(question).__name__}.",
            hint='For example ask(dualform.TopK("head", dualform.Vectors(x))).',
            field="question",
        )
    return call


Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
MEMORY = "dualform-memory"
REQUEST_ID = "x-request-id"
_FORM = re.compile(r"[A-Za-z0-9._-]{1,64}")


def encode_memory(name: str) -> str:
    return quote(name, safe="")


def memory_of(metadata: Metadata) -> str:
    """The name of the memory; empty for none."""
    return unquote(next((value for key, value in metadata if key == MEMORY and isinstance(value, str)), ""))


def new_request_id() -> str:
    """One that nobody has had: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def request_id_of(metadata: Metadata) -> str:
    """The first one that has at most 64 of the characters [A-Za-z0-9._-]; empty for none."""
    found = (value for key, value in metadata if key == REQUEST_ID and isinstance(value, str))
    return next((value for value in found if _FORM.fullmatch(value)), "")
