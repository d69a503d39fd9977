"""Questions <-> request messages. Decoding builds the question, which checks itself; lengths are checked here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsIndex

import numpy as np

from dualform.errors import BadInput
from dualform.questions import (
    GroupSum,
    MaskCancellation,
    NetworkWeights,
    Output,
    ProbeLookup,
    ProbeRows,
    Queries,
    SlotKeys,
    SlotLookup,
    SqlStatement,
    TopK,
    Vectors,
)
from dualform_proto.matrix import decode_matrix, decode_numbers, encode_matrix, encode_numbers
from dualform_proto.v1 import dualform_pb2 as pb

SCORES: dict[str, pb.Score.ValueType] = {"signed": pb.SCORE_SIGNED, "abs": pb.SCORE_ABS}
_SCORE_NAMES: dict[int, str] = {pb.SCORE_UNSPECIFIED: "signed", **{value: name for name, value in SCORES.items()}}


def encode_topk(question: TopK) -> pb.TopKRequest:
    return pb.TopKRequest(
        layer=_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        k=_int64(question.k, "k"),
        where=_optional_text(question.where, "where"),
        by=[_text(name, "by") for name in question.by],
        score=SCORES.get(question.score, pb.SCORE_NAMED),
        score_name="" if question.score in SCORES else _text(question.score, "score"),
    )


def decode_topk(message: pb.TopKRequest) -> TopK:
    return TopK(
        layer=message.layer,
        queries=decode_queries(message.queries),
        k=message.k,
        where=message.where if message.HasField("where") else None,
        by=tuple(message.by),
        score=_decode_score(message),
    )


def encode_group_sum(question: GroupSum) -> pb.GroupSumRequest:
    return pb.GroupSumRequest(
        layer=_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        by=[_text(name, "by") for name in question.by],
        where=_optional_text(question.where, "where"),
        score=SCORES.get(question.score, pb.SCORE_NAMED),
        score_name="" if question.score in SCORES else _text(question.score, "score"),
    )


def decode_group_sum(message: pb.GroupSumRequest) -> GroupSum:
    return GroupSum(
        layer=message.layer,
        queries=decode_queries(message.queries),
        by=tuple(message.by),
        where=message.where if message.HasField("where") else None,
        score=_decode_score(message),
    )


def encode_output(question: Output) -> pb.OutputRequest:
    return pb.OutputRequest(
        layer=_text(question.layer, "layer"),
        queries=encode_queries(question.queries),
        where=_optional_text(question.where, "where"),
        at_step=_optional_int64(question.at_step, "at_step"),
        allow_inexact=question.allow_inexact,
    )


def decode_output(message: pb.OutputRequest) -> Output:
    return Output(
        layer=message.layer,
        queries=decode_queries(message.queries),
        where=message.where if message.HasField("where") else None,
        at_step=message.at_step if message.HasField("at_step") else None,
        allow_inexact=message.allow_inexact,
    )


def encode_queries(queries: Queries) -> pb.Queries:
    if isinstance(queries, Vectors):
        return pb.Queries(vectors=encode_matrix(queries.rows))
    if isinstance(queries, SlotKeys):
        return pb.Queries(slots=pb.SlotKeys(slots=[_int64(slot, "queries") for slot in queries.slots]))
    probe = pb.ProbeRows(probe=_text(queries.probe, "queries"))
    if queries.rows is not None:
        probe.rows.CopyFrom(pb.RowNumbers(rows=[_int64(row, "queries") for row in queries.rows]))
    return pb.Queries(probe=probe)


def decode_queries(message: pb.Queries) -> Queries:
    kind = message.WhichOneof("queries")
    if kind == "vectors":
        if message.vectors.cols < 1:
            raise BadInput("queries are 0 numbers wide.", field="queries")
        return Vectors(decode_matrix(message.vectors, np.float32, "queries"))
    if kind == "slots":
        return SlotKeys(tuple(message.slots.slots))
    if kind == "probe":
        rows = tuple(message.probe.rows.rows) if message.probe.HasField("rows") else None
        return ProbeRows(message.probe.probe, rows)
    raise BadInput("the question holds no queries.", hint="Give vectors, probe rows or slots.", field="queries")


def encode_masks(where: str | Mapping[str, str] | None) -> pb.Masks | None:
    if where is None:
        return None
    if isinstance(where, str):
        return pb.Masks(all=_text(where, "where"))
    masks = [pb.Remark(name=_text(space, "where"), text=_text(mask, "where")) for space, mask in where.items()]
    return pb.Masks(by_space=pb.SpaceMasks(masks=masks))


def decode_masks(message: pb.Masks) -> str | dict[str, str] | None:
    """Raises BadInput where two masks speak of one space."""
    match message.WhichOneof("masks"):
        case "all":
            return message.all
        case "by_space":
            masks = {one.name: one.text for one in message.by_space.masks}
            if len(masks) < len(message.by_space.masks):
                raise BadInput("where names a slot space twice.", field="where")
            return masks
    return None


def encode_weights(question: NetworkWeights) -> pb.WeightsRequest:
    return pb.WeightsRequest(
        where=encode_masks(question.where),
        at_step=_optional_int64(question.at_step, "at_step"),
        allow_inexact=question.allow_inexact,
    )


def decode_weights(message: pb.WeightsRequest) -> NetworkWeights:
    return NetworkWeights(
        where=decode_masks(message.where),
        at_step=message.at_step if message.HasField("at_step") else None,
        allow_inexact=message.allow_inexact,
    )


def encode_cancellation(question: MaskCancellation) -> pb.CancellationRequest:
    return pb.CancellationRequest(
        where=encode_masks(question.where),
        at_step=_optional_int64(question.at_step, "at_step"),
        layer=_optional_text(question.layer, "layer"),
        allow_inexact=question.allow_inexact,
    )


def decode_cancellation(message: pb.CancellationRequest) -> MaskCancellation:
    return MaskCancellation(
        where=decode_masks(message.where) or "",
        at_step=message.at_step if message.HasField("at_step") else None,
        layer=message.layer if message.HasField("layer") else None,
        allow_inexact=message.allow_inexact,
    )


def encode_slots(question: SlotLookup) -> pb.SlotsRequest:
    return pb.SlotsRequest(ids=encode_numbers(question.ids), space=_optional_text(question.space, "space"))


def decode_slots(message: pb.SlotsRequest) -> SlotLookup:
    ids = decode_numbers(message.ids, np.int64, "ids")
    return SlotLookup(ids, message.space if message.HasField("space") else None)


def encode_sql(question: SqlStatement) -> pb.SqlRequest:
    return pb.SqlRequest(statement=_text(question.text, "statement"))


def decode_sql(message: pb.SqlRequest) -> SqlStatement:
    return SqlStatement(message.statement)


def encode_probe(question: ProbeLookup) -> pb.ProbeRequest:
    return pb.ProbeRequest(name=_text(question.name, "name"), layer=_optional_text(question.layer, "layer"))


def decode_probe(message: pb.ProbeRequest) -> ProbeLookup:
    return ProbeLookup(message.name, message.layer if message.HasField("layer") else None)


def _decode_score(message: pb.TopKRequest | pb.GroupSumRequest) -> str:
    if message.score == pb.SCORE_NAMED:
        return message.score_name
    if message.score not in _SCORE_NAMES:
        raise BadInput(f"score is {message.score}, which this version does not know.", field="score")
    return _SCORE_NAMES[message.score]


def _text(value: str, field: str) -> str:
    """A text as it is; raises BadInput where UTF-8 cannot carry it (bytes of a command line that are no text)."""
    if not isinstance(value, str):
        raise BadInput(f"{field} is of type {type(value).__name__}, not a text.", field=field)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{field} is {value!r}, which is no valid text.", field=field) from None
    return value


def _optional_text(value: str | None, field: str) -> str | None:
    return None if value is None else _text(value, field)


def _int64(value: SupportsIndex, field: str) -> int:
    try:
        number = value.__index__()
    except AttributeError:
        raise BadInput(f"{field} holds {value!r}, which is no whole number.", field=field) from None
    if not -(2**63) <= number < 2**63:
        raise BadInput(f"{field} holds {number}, which is beyond 64 bits.", field=field)
    return number


def _optional_int64(value: SupportsIndex | None, field: str) -> int | None:
    return None if value is None else _int64(value, field)
