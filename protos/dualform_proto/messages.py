"""Exceptions to the rules of the codec: choices between messages, filters, and fields that differ.

Shapes: n queries, G groups, d outputs of a layer, h hits, m sums of a query, r ranks or rows, S sets left out in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from dualform.answers import (
    Columns,
    Contributions,
    Distributions,
    GroupSums,
    Hits,
    MemoryInfo,
    Outputs,
    OutputSummary,
    Patches,
    Placebos,
    Previews,
    QuerySet,
    Scan,
    Status,
    Weights,
)
from dualform.answers.contents import IMAGES, KINDS, PNG, TABLE, TEXTS
from dualform.errors import BadInput
from dualform.questions import (
    ExampleGradients,
    Filter,
    FilterOrFilters,
    Ids,
    LayerGradients,
    QuerySetExamples,
    SlotKeys,
    Target,
    Vectors,
)
from dualform.questions.question import finite_rows
from dualform_proto.arrays import (
    decode_columns,
    decode_groups,
    decode_matrix,
    decode_numbers,
    decode_rows,
    element_type,
    encode_columns,
    encode_groups,
    encode_matrix,
    encode_numbers,
    wire_type,
)
from dualform_proto.codec import CODECS, CONVERTERS, Codec, Converter, Custom, Values, encode_text, enum_names
from dualform_proto.v1 import dualform_pb2 as pb

SCORES = {name: number for name, number in enum_names(pb.Score.DESCRIPTOR).items() if number != pb.SCORE_NAMED}
_SCORE_NAMES = {pb.SCORE_UNSPECIFIED: "dot", **{number: name for name, number in SCORES.items()}}


# Filters and choices

_NUMBERS = {bool: "truth", int: "number", float: "real"}


def _encode_filter(where: str | Filter) -> pb.Filter:
    if isinstance(where, str):
        return pb.Filter(sql=encode_text(where, "where"))
    return pb.Filter(sql=encode_text(where.sql, "where"), values=[_encode_value(value) for value in where.values])


def _decode_filter(message: pb.Filter) -> str | Filter:
    return Filter(message.sql, tuple(map(_decode_value, message.values))) if message.values else message.sql


def _encode_value(value: bool | int | float | str | Ids | None) -> pb.FilterValue:
    if value is None:
        return pb.FilterValue()
    if isinstance(value, Ids):
        if isinstance(value.values, np.ndarray):
            return pb.FilterValue(ids=encode_numbers(value.values))
        return pb.FilterValue(texts=pb.Texts(texts=[encode_text(text, "where") for text in value.values]))
    if isinstance(value, str):
        return pb.FilterValue(text=encode_text(value, "where"))
    plain: dict[str, Any] = {next(name for kind, name in _NUMBERS.items() if isinstance(value, kind)): value}
    return pb.FilterValue(**plain)


def _decode_value(message: pb.FilterValue) -> bool | int | float | str | Ids | None:
    name = message.WhichOneof("value")
    if name == "ids":
        return Ids(decode_numbers(message.ids, np.int64, "where"))
    if name == "texts":
        return Ids(tuple(message.texts.texts))
    return None if name is None else getattr(message, name)


def _encode_filters(where: FilterOrFilters) -> pb.Filters:
    if not isinstance(where, Mapping):
        return pb.Filters(all=_encode_filter(where))
    filters = [
        pb.SpaceFilter(space=encode_text(space, "where"), where=_encode_filter(own)) for space, own in where.items()
    ]
    return pb.Filters(by_space=pb.SpaceFilters(filters=filters))


def _decode_filters(message: pb.Filters) -> FilterOrFilters | None:
    match message.WhichOneof("filters"):
        case "all":
            return _decode_filter(message.all)
        case "by_space":
            found = {one.space: _decode_filter(one.where) for one in message.by_space.filters}
            if len(found) < len(message.by_space.filters):
                raise BadInput("where names a slot space twice.", field="where")
            return found
    return None


def _choice(
    message: type[Message], choices: Mapping[str, tuple[type, Codec | Converter]], missing: str, hint: str
) -> Converter:
    """One of several dataclasses, each in a field of the message's only oneof."""
    (oneof,) = message.DESCRIPTOR.oneofs

    def encode(value: Any) -> Message:
        name, codec = next((name, codec) for name, (kind, codec) in choices.items() if isinstance(value, kind))
        return message(**{name: codec.encode(value)})

    def decode(sent: Any) -> Any:
        name = sent.WhichOneof(oneof.name)
        if name is None:
            raise BadInput(missing, hint=hint, field="queries")
        return choices[name][1].decode(getattr(sent, name))

    return Converter(encode, decode)


_VECTORS = Converter(
    lambda vectors: encode_matrix(vectors.rows), lambda message: Vectors(decode_rows(message, "queries"))
)
_EXAMPLES = Codec(QuerySetExamples, pb.QuerySetExamples, argument="queries")
QUERIES = _choice(
    pb.Queries,
    {
        "vectors": (Vectors, _VECTORS),
        "query_set": (QuerySetExamples, _EXAMPLES),
        "slots": (SlotKeys, Codec(SlotKeys, pb.SlotKeys, argument="queries")),
    },
    "the question holds no queries.",
    "Give vectors, query set rows or slots.",
)
CONVERTERS |= {
    "Queries": QUERIES,
    "Examples": _choice(
        pb.Examples,
        {
            "gradients": (ExampleGradients, Codec(ExampleGradients, pb.ExampleGradients, argument="queries")),
            "query_set": (QuerySetExamples, _EXAMPLES),
        },
        "the question holds no examples.",
        "Give gradients, or a query set's rows.",
    ),
    "Filter": Converter(_encode_filter, _decode_filter),
    "Filters": Converter(_encode_filters, _decode_filters),
    "Columns": Converter(encode_columns, decode_columns),
}


# Fields of several messages


def _decode_score(message: Any) -> Values:
    if message.score == pb.SCORE_NAMED:
        return {"score": message.score_name}
    if message.score not in _SCORE_NAMES:
        raise BadInput(f"score is {message.score}, which this version does not know.", field="score")
    return {"score": _SCORE_NAMES[message.score]}


def _encode_score(question: Any) -> Values:
    if question.score in SCORES:
        return {"score": SCORES[question.score]}
    return {"score": pb.SCORE_NAMED, "score_name": encode_text(question.score, "score")}


SCORE = Custom(("score",), _encode_score, _decode_score)


def negated(field: str, wire: str) -> Custom:
    """A boolean that travels as its opposite, so that absent means the usual."""
    return Custom(
        (field,), lambda value: {wire: not getattr(value, field)}, lambda sent: {field: not getattr(sent, wire)}
    )


def _decode_groups(message: Any) -> Values:
    by, groups = decode_groups(message.groups)
    return {"by": by, "groups": groups}


_GROUPS = Custom(
    ("by", "groups"),
    lambda answer: {"groups": None if answer.groups is None else encode_groups(answer.by, answer.groups)},
    _decode_groups,
)
_GROUPS_IF_ANY = _GROUPS._replace(
    decode=lambda message: _decode_groups(message) if message.HasField("groups") else {"by": (), "groups": None}
)


def _count_groups(values: Values) -> int:
    return len(values["groups"])


# Parts of questions and answers


def _decode_directions(message: pb.Target) -> Values:
    if not message.HasField("vectors"):
        return {}
    return {"vectors": Vectors(finite_rows(decode_rows(message.vectors, "target"), "target", "direction", "d_out"))}


def _check_patches(values: Values) -> None:
    least = {"size": 1, "kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
    fits = len({len(own) for own in values.values()}) == 1
    if not fits or any(number < least[name] for name, own in values.items() for number in own):
        raise BadInput("a convolution's patches have sides that do not fit together.")


def _check_summary(values: Values) -> None:
    largest, width = values["largest"], values["width"]
    if largest.size and not 0 <= largest.min() <= largest.max() < width:
        raise BadInput(f"a summary names outputs beyond the {width} that there are.")


CODECS |= {
    LayerGradients: Codec(LayerGradients, pb.LayerGradients, shapes={"keys": "r +", "errors": "r +", "examples": "r"}),
    Target: Codec(
        Target,
        pb.Target,
        custom=(
            Custom(
                ("vectors",),
                lambda target: {"vectors": None if target.vectors is None else encode_matrix(target.vectors.rows)},
                _decode_directions,
            ),
        ),
        argument="target",
    ),
    Scan: Codec(
        Scan,
        pb.Scan,
        custom=(
            Custom(
                ("share",),
                lambda scan: {"share": None if scan.share == 1 else scan.share},
                lambda message: {"share": message.share if message.HasField("share") else 1.0},
            ),
        ),
    ),
    Status: Codec(Status, pb.Status, argument="status"),
    Patches: Codec(Patches, pb.Patches, check=_check_patches),
    OutputSummary: Codec(
        OutputSummary,
        pb.OutputSummary,
        shapes={"largest": "r m", "values": "r m", "label": "r", "logsumexp": "r"},
        check=_check_summary,
    ),
}


# Answers


def _count_hits(values: Values) -> int:
    counts = values["counts"]
    if (counts < 0).any():
        raise BadInput("counts are negative.", field="counts")
    return int(counts.sum())


HITS = Codec(
    Hits,
    pb.TopKResponse,
    {"flat_scores": "scores"},
    {"counts": "n G", "ids": "h", "flat_scores": "h", "repeats": "h"},
    {"G": lambda values: max(len(values["groups"] or ()), 1), "h": _count_hits},
    (_GROUPS_IF_ANY,),
)


def _check_sums(values: Values) -> None:
    sums, numbers, count = values["sums"], values["numbers"], _count_groups(values)
    if numbers is None and sums.shape[1] != count:
        raise BadInput(f"sums are float64{list(sums.shape)} where there are {count} groups.", field="sums")
    if numbers is not None and (numbers.shape != sums.shape or ((numbers < 0) | (numbers >= count)).any()):
        raise BadInput(
            f"numbers are int64{list(numbers.shape)} of {count} groups where sums are float64{list(sums.shape)}.",
            field="numbers",
        )


GROUP_SUMS = Codec(
    GroupSums,
    pb.GroupSumResponse,
    shapes={"counts": "G"},
    sizes={"G": _count_groups},
    custom=(_GROUPS,),
    check=_check_sums,
)
OUTPUTS = Codec(
    Outputs,
    pb.OutputResponse,
    {"values": "outputs"},
    {"values": "n d", "effective_slots": "n"},
    custom=(negated("initial", "without_initial"),),
)
CONTRIBUTIONS = Codec(
    Contributions,
    pb.ContributionsResponse,
    shapes={
        "initial": "n d",
        "sums": "n G d",
        "counts": "G",
        "bias": "d",
        "unrecorded_change": "n d",
        "residual": "n d",
        "unexplained": "n d",
    },
    sizes={"G": _count_groups},
    custom=(_GROUPS,),
)
DISTRIBUTIONS = Codec(
    Distributions,
    pb.DistributionResponse,
    shapes={"scores": "n r", "cumulative": "n r", "ranks": "r", "totals": "n", "effective_slots": "n"},
)


def _decode_classes(message: pb.PlaceboResponse) -> Values:
    classes = decode_matrix(message.classes, np.int64, "classes")
    if classes.shape[1] != 3:
        raise BadInput(f"classes are int64{list(classes.shape)} in place of [{len(classes)}, 3].", field="classes")
    return {"labels": classes[:, 0], "predicted": classes[:, 1], "second": classes[:, 2]}


def _count_sets(values: Values) -> int:
    if values["random"] < 0:
        raise BadInput(f"there are {values['random']} random sets.", field="changes")
    return 1 + int(values["random"]) + len(values["siblings"])


PLACEBOS = Codec(
    Placebos,
    pb.PlaceboResponse,
    {"outcomes": "predicted"},
    {"margin": "n", "changes": "n S", "outcomes": "n S"},
    {"n": lambda values: len(values["labels"]), "S": _count_sets},
    (
        Custom(
            ("labels", "predicted", "second"),
            lambda answer: {"classes": encode_matrix(np.stack([answer.labels, answer.predicted, answer.second], 1))},
            _decode_classes,
        ),
    ),
)


def _check_rows(values: Values) -> None:
    """Some parts may have one row for each example, and others one for each of its tokens."""
    lengths = {len(part) for name in ("labels", "outputs", "summary") if (part := values[name]) is not None}
    if lengths and not (max(lengths) == 0 if min(lengths) == 0 else max(lengths) % min(lengths) == 0):
        parts = " and ".join(map(str, sorted(lengths)))
        raise BadInput(f"query set {values['name']!r} has labels and outputs of {parts} rows.")


QUERY_SET = Codec(QuerySet, pb.QuerySetResponse, check=_check_rows)


def _encode_weights(weights: Weights) -> Values:
    return {
        "parameters": [_encode_parameter(name, array) for name, array in weights.arrays.items()],
        "layers": [
            pb.LayerRecord(
                layer=layer, status=CODECS[Status].encode(status), unrecorded_change=weights.unrecorded_change[layer]
            )
            for layer, status in weights.statuses.items()
        ],
    }


def _decode_weights(message: pb.WeightsResponse) -> Values:
    return {
        "arrays": {parameter.name: _decode_parameter(parameter) for parameter in message.parameters},
        "statuses": {record.layer: CODECS[Status].decode(record.status) for record in message.layers},
        "unrecorded_change": {record.layer: record.unrecorded_change for record in message.layers},
    }


def _encode_parameter(name: str, array: NDArray[Any]) -> pb.Parameter:
    dtype = element_type(array.dtype, f"parameter {name!r}", "Ask the memory's folder.")
    return pb.Parameter(name=name, shape=array.shape, dtype=dtype, data=encode_numbers(array))


def _decode_parameter(message: pb.Parameter) -> NDArray[Any]:
    field = f"parameter {message.name!r}"
    dtype, shape = wire_type(message.dtype, field), tuple(message.shape)
    if any(length < 0 for length in shape):
        raise BadInput(f"{field} is of the shape {list(shape)}.")
    return decode_numbers(message.data, dtype, field, prod(shape)).reshape(shape)


WEIGHTS = Codec(
    Weights,
    pb.WeightsResponse,
    custom=(
        Custom(("arrays", "statuses", "unrecorded_change"), _encode_weights, _decode_weights),
        negated("ended", "without_end"),
    ),
)


def _encode_previews(found: Previews) -> Values:
    offsets = None
    if found.offsets is not None:
        offsets = pb.Offsets(
            counts=encode_numbers(np.array([len(own) for own in found.offsets], dtype=np.int64)),
            places=b"".join(encode_numbers(own) for own in found.offsets),
            firsts=b"" if found.firsts is None else encode_numbers(found.firsts),
        )
    columns = None
    if found.kind == TABLE:
        columns = encode_columns(found.columns)
        columns.rows = len(found)
    return {
        "images": [b"" if image is None else image for image in found.images],
        "texts": ["" if text is None else text for text in found.texts],
        "offsets": offsets,
        "columns": columns,
        "scale": None if found.scale is None else pb.Scale(least=found.scale[0], greatest=found.scale[1]),
    }


def _decode_previews(message: pb.PreviewsResponse) -> Values:
    if message.kind not in KINDS:
        raise BadInput(f"a preview set is of kind {message.kind!r}, which this version does not know.")
    count = len(decode_numbers(message.samples, np.int64, "samples"))
    known = decode_numbers(message.known, np.bool_, "known", count)
    images = _spread(list(message.images), known, IMAGES, message.kind)
    # An image must begin as a PNG does, whoever sends it.
    if not all(image.startswith(PNG) for image in images if image is not None):
        raise BadInput("an image is no PNG.")
    if message.columns.rows != (count if message.kind == TABLE else 0):
        raise BadInput(f"{count} samples have {message.columns.rows} rows.")
    firsts = message.offsets.firsts
    return {
        "images": images,
        "texts": _spread(list(message.texts), known, TEXTS, message.kind),
        "offsets": _decode_offsets(message.offsets, count) if message.HasField("offsets") else None,
        "firsts": decode_numbers(firsts, np.int64, "firsts", count) if firsts else None,
        "columns": decode_columns(message.columns),
        "scale": (message.scale.least, message.scale.greatest) if message.HasField("scale") else None,
    }


def _spread(values: list[Any], known: NDArray[np.bool_], kind: str, given: str) -> tuple[Any, ...]:
    """None in the place of each sample that is not known."""
    if len(values) != (len(known) if kind == given else 0):
        raise BadInput(f"{len(known)} samples of kind {given} have {len(values)} {kind}.")
    return tuple(value if own else None for value, own in zip(values, known.tolist(), strict=False))


def _decode_offsets(message: pb.Offsets, count: int) -> tuple[NDArray[np.int32], ...]:
    counts = decode_numbers(message.counts, np.int64, "counts", count)
    places = decode_numbers(message.places, np.int32, "places")
    if (counts < 0).any() or (counts > len(places)).any() or 2 * int(counts.sum()) != len(places):
        raise BadInput(f"offsets of {count} texts have {len(places)} numbers.")
    ends = np.cumsum(counts).tolist()
    pairs = places.reshape(-1, 2)
    return tuple(pairs[start:stop] for start, stop in zip([0, *ends], ends, strict=False))


PREVIEWS = Codec(
    Previews,
    pb.PreviewsResponse,
    custom=(Custom(("images", "texts", "offsets", "firsts", "columns", "scale"), _encode_previews, _decode_previews),),
)
INFO = Codec(MemoryInfo, pb.InfoResponse)
SLOTS = Codec(Columns, pb.SlotsResponse, {"arrays": "slots"})
ROWS = Codec(Columns, pb.SqlResponse, {"arrays": "rows"})
