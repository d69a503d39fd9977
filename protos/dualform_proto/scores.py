"""Questions about attention weights, and their answers <-> messages. Shapes: n queries, G groups.

Decoding builds the value, which checks itself, and checks every length. Raises BadInput.
"""

from __future__ import annotations

import numpy as np

from dualform.answers import GroupSums, Hits
from dualform.errors import BadInput, ServiceError
from dualform.questions import GradientSum, GradientTopK, GroupSum, Target, TopK, Vectors
from dualform.questions.queries import finite_rows
from dualform_proto.arguments import encode_int64, encode_optional_int64, encode_optional_text, encode_text
from dualform_proto.columns import decode_groups, encode_groups
from dualform_proto.filters import decode_filter, encode_filter
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.queries import decode_queries, decode_rows, encode_queries
from dualform_proto.scan import decode_scan, encode_scan
from dualform_proto.status import decode_status, encode_status
from dualform_proto.v1 import dualform_pb2 as pb

SCORES: dict[str, pb.Score.ValueType] = {"dot": pb.SCORE_DOT, "abs": pb.SCORE_ABS}
_SCORE_NAMES: dict[int, str] = {pb.SCORE_UNSPECIFIED: "dot", **{value: name for name, value in SCORES.items()}}


def encode_topk(question: TopK) -> pb.TopKRequest:
    return pb.TopKRequest(
        layer=encode_optional_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        k=encode_int64(question.k, "k"),
        where=encode_filter(question.where),
        by=[encode_text(name, "by") for name in question.by],
        score=SCORES.get(question.score, pb.SCORE_NAMED),
        score_name="" if question.score in SCORES else encode_text(question.score, "score"),
        allow_partial=question.allow_partial,
        target=encode_target(question.target),
        distinct=[encode_text(name, "distinct") for name in question.distinct],
    )


def decode_topk(message: pb.TopKRequest) -> TopK:
    return TopK(
        layer=message.layer if message.HasField("layer") else None,
        queries=decode_queries(message.queries),
        k=message.k,
        where=decode_filter(message),
        by=tuple(message.by),
        score=decode_score(message),
        allow_partial=message.allow_partial,
        target=decode_target(message),
        distinct=tuple(message.distinct),
    )


def encode_hits(hits: Hits) -> pb.TopKResponse:
    return pb.TopKResponse(
        ids=encode_numbers(hits.ids.astype(np.int64, copy=False)),
        scores=encode_numbers(hits.flat_scores.astype(np.float32, copy=False)),
        counts=encode_matrix(hits.counts.astype(np.int64, copy=False)),
        groups=None if hits.groups is None else encode_groups(hits.by, hits.groups),
        scan=encode_scan(hits.scan),
        space=hits.space,
        status=None if hits.status is None else encode_status(hits.status),
        repeats=None if hits.repeats is None else encode_numbers(hits.repeats),
    )


def check_hits(question: TopK | GradientTopK, hits: Hits) -> None:
    """Raises ServiceError where one hit a sample was asked for, and the plain list came."""
    if question.distinct and hits.repeats is None:
        raise ServiceError(
            "the server did not answer with one hit a sample.",
            hint="It runs an older version of dualform: upgrade it, or ask the memory's folder.",
            field="distinct",
        )


def decode_hits(message: pb.TopKResponse) -> Hits:
    counts = decode_matrix(message.counts, np.int64, "counts")
    by, groups = decode_groups(message.groups) if message.HasField("groups") else ((), None)
    width = max(len(groups), 1) if groups is not None else 1
    if counts.shape[1] != width or (counts < 0).any():
        raise BadInput(f"counts are int64{list(counts.shape)} where each query has {width} of them.", field="counts")
    hits = int(counts.sum())
    return Hits(
        space=message.space,
        ids=decode_numbers(message.ids, np.int64, "ids", hits),
        flat_scores=decode_numbers(message.scores, np.float32, "scores", hits),
        counts=counts,
        groups=groups,
        by=by,
        scan=decode_scan(message.scan),
        status=decode_status(message.status) if message.HasField("status") else None,
        repeats=decode_numbers(message.repeats, np.int64, "repeats", hits) if message.HasField("repeats") else None,
    )


def encode_group_sum(question: GroupSum) -> pb.GroupSumRequest:
    return pb.GroupSumRequest(
        layer=encode_optional_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        by=[encode_text(name, "by") for name in question.by],
        where=encode_filter(question.where),
        score=SCORES.get(question.score, pb.SCORE_NAMED),
        score_name="" if question.score in SCORES else encode_text(question.score, "score"),
        allow_partial=question.allow_partial,
        target=encode_target(question.target),
        k=None if question.k is None else encode_int64(question.k, "k"),
    )


def decode_group_sum(message: pb.GroupSumRequest) -> GroupSum:
    return GroupSum(
        layer=message.layer if message.HasField("layer") else None,
        queries=decode_queries(message.queries),
        by=tuple(message.by),
        where=decode_filter(message),
        score=decode_score(message),
        allow_partial=message.allow_partial,
        target=decode_target(message),
        k=message.k if message.HasField("k") else None,
    )


def encode_group_sums(sums: GroupSums) -> pb.GroupSumResponse:
    return pb.GroupSumResponse(
        groups=encode_groups(sums.by, sums.groups),
        sums=encode_matrix(sums.sums.astype(np.float64, copy=False)),
        counts=encode_numbers(sums.counts.astype(np.int64, copy=False)),
        scan=encode_scan(sums.scan),
        space=sums.space,
        status=None if sums.status is None else encode_status(sums.status),
        numbers=None if sums.numbers is None else encode_matrix(sums.numbers),
        total=sums.total,
    )


def decode_group_sums(message: pb.GroupSumResponse) -> GroupSums:
    by, groups = decode_groups(message.groups)
    sums, numbers, count = decode_matrix(message.sums, np.float64, "sums"), None, len(groups)
    if message.HasField("numbers"):
        numbers = decode_matrix(message.numbers, np.int64, "numbers")
        if numbers.shape != sums.shape or ((numbers < 0) | (numbers >= count)).any():
            raise BadInput(
                f"numbers are int64{list(numbers.shape)} of {count} groups where sums are float64{list(sums.shape)}.",
                field="numbers",
            )
    elif sums.shape[1] != count:
        raise BadInput(f"sums are float64{list(sums.shape)} where there are {count} groups.", field="sums")
    return GroupSums(
        groups=groups,
        sums=sums,
        counts=decode_numbers(message.counts, np.int64, "counts", count),
        by=by,
        scan=decode_scan(message.scan),
        space=message.space,
        status=decode_status(message.status) if message.HasField("status") else None,
        numbers=numbers,
        total=message.total if message.HasField("total") else None,
    )


def check_group_sums(question: GroupSum | GradientSum, answer: GroupSums) -> None:
    """Raises ServiceError where the k largest groups were asked for, and all came."""
    if question.k is not None and answer.numbers is None:
        raise ServiceError(
            "the server knows nothing of k in a sum by group: it is of an earlier version, and answered all groups.",
            hint="Ask without k.",
            field="k",
        )


def encode_target(target: Target | None) -> pb.Target | None:
    if target is None:
        return None
    return pb.Target(
        output=encode_optional_int64(target.output, "target"),
        minus=encode_optional_int64(target.minus, "target"),
        vectors=None if target.vectors is None else encode_matrix(target.vectors.rows),
        at_step=encode_optional_int64(target.at_step, "at_step"),
        allow_inexact=target.allow_inexact,
    )


def decode_target(message: pb.TopKRequest | pb.GroupSumRequest | pb.DistributionRequest) -> Target | None:
    if not message.HasField("target"):
        return None
    said = message.target
    vectors = decode_rows(said.vectors, "target") if said.HasField("vectors") else None
    return Target(
        output=said.output if said.HasField("output") else None,
        minus=said.minus if said.HasField("minus") else None,
        vectors=None if vectors is None else Vectors(finite_rows(vectors, "target", "direction", "d_out")),
        at_step=said.at_step if said.HasField("at_step") else None,
        allow_inexact=said.allow_inexact,
    )


def decode_score(message: pb.TopKRequest | pb.GroupSumRequest | pb.DistributionRequest) -> str:
    if message.score == pb.SCORE_NAMED:
        return message.score_name
    if message.score not in _SCORE_NAMES:
        raise BadInput(f"score is {message.score}, which this version does not know.", field="score")
    return _SCORE_NAMES[message.score]
