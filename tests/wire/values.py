"""Any value that the wire carries, and when two of them are the same to the bit."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dualform.answers import (
    Cancellation,
    Columns,
    Concentration,
    Contributions,
    Distributions,
    GroupSums,
    Hits,
    LayerInfo,
    MemoryInfo,
    Outputs,
    OutputSummary,
    Patches,
    Placebos,
    Previews,
    QuerySet,
    QuerySetInfo,
    Reconstruction,
    Reconstructions,
    Scan,
    Status,
    Weights,
)
from dualform.questions import (
    Contribution,
    Distribution,
    ExampleGradients,
    Filter,
    GradientSum,
    GradientTopK,
    GroupSum,
    Ids,
    LayerGradients,
    MaskCancellation,
    NetworkWeights,
    Output,
    Placebo,
    PreviewLookup,
    QuerySetExamples,
    QuerySetLookup,
    SlotKeys,
    SlotLookup,
    SqlStatement,
    Target,
    TopK,
    Vectors,
)

NUMBER_TYPES = ("f2", "f4", "f8", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")

FEW = st.integers(0, 4)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
int64s = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**62)
finite = st.floats(allow_nan=False, allow_infinity=False)


def matrices(dtype: Any, rows: Any = FEW, cols: Any = FEW, **options: Any) -> Any:
    return st.tuples(rows, cols).flatmap(lambda shape: arrays.arrays(dtype, shape, **options))


vectors = st.builds(
    Vectors,
    matrices(
        np.float32,
        st.integers(1, 4),
        st.integers(1, 4),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
)
queries = st.one_of(
    vectors,
    st.builds(QuerySetExamples, texts, st.none() | st.lists(int64s, max_size=4).map(tuple)),
    st.lists(st.tuples(int64s, int64s), min_size=1, max_size=4).map(
        lambda pairs: QuerySetExamples("test", *map(tuple, zip(*pairs, strict=True)))
    ),
    st.builds(SlotKeys, st.lists(int64s, max_size=4).map(tuple)),
)
names = st.lists(texts, max_size=3, unique=True).map(tuple)
ids = arrays.arrays(np.int64, FEW).map(Ids) | st.lists(texts, max_size=3).map(lambda own: Ids(tuple(own)))
filter_values = st.none() | st.booleans() | int64s | finite | texts | ids
conditions = texts | st.builds(Filter, texts, st.lists(filter_values, min_size=1, max_size=3).map(tuple))
steps = st.none() | counts


@st.composite
def targets(draw: Any) -> Target:
    """Along an output, a margin or vectors."""
    beside = {"at_step": draw(steps), "allow_inexact": draw(st.booleans())}
    output, minus = draw(st.lists(counts, min_size=2, max_size=2, unique=True))
    return draw(
        st.sampled_from([Target(output, **beside), Target(output, minus, **beside)])
        | st.builds(Target, vectors=vectors, **{name: st.just(own) for name, own in beside.items()})
    )


@st.composite
def scored(draw: Any) -> tuple[str, bool, Target | None]:
    """A score, whether a part of the answer will do, and a direction where the score has one."""
    score, target = draw(
        st.tuples(st.sampled_from(["dot", "abs", "cosine"]), st.none()) | st.tuples(st.just("contribution"), targets())
    )
    return score, draw(st.booleans()), target


@st.composite
def topk_questions(draw: Any) -> TopK:
    asked = st.none() | texts, queries, st.integers(1, 2**62), st.none() | conditions, names
    return TopK(*map(draw, asked), *draw(scored()), draw(names))


@st.composite
def group_sum_questions(draw: Any) -> GroupSum:
    asked = st.none() | texts, queries, names.filter(bool), st.none() | conditions
    return GroupSum(*map(draw, asked), *draw(scored()), draw(st.none() | st.integers(1, 2**62)))


@st.composite
def distribution_questions(draw: Any) -> Distribution:
    asked = st.none() | texts, queries, st.none() | conditions
    score, _, target = draw(scored())
    return Distribution(*map(draw, asked), score, target, draw(st.integers(11, 2**62)))


topks, group_sums, distributions = topk_questions(), group_sum_questions(), distribution_questions()


@st.composite
def example_gradients(draw: Any) -> ExampleGradients:
    """Of up to three examples, each with a row in the first layer."""
    count, layers = draw(st.integers(1, 3)), draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    numbers = {"elements": st.floats(width=32, allow_nan=False, allow_infinity=False)}
    found = {}
    for number, layer in enumerate(layers):
        more = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))
        examples = np.array([*range(count), *more] if number == 0 else more, dtype=np.int64)
        keys, errors = (
            draw(matrices(np.float32, st.just(len(examples)), st.integers(1, 3), **numbers)) for _ in range(2)
        )
        found[layer] = LayerGradients(keys, errors, examples)
    return ExampleGradients(count, found)


query_set_examples = st.builds(QuerySetExamples, texts, st.none() | st.lists(int64s, min_size=1, max_size=4).map(tuple))
examples = example_gradients() | query_set_examples
gradient_top_ks = st.builds(GradientTopK, names, examples, st.integers(1, 2**62), st.none() | conditions, names)
gradient_sums = st.builds(
    GradientSum, names, examples, names.filter(bool), st.none() | conditions, st.none() | st.integers(1, 2**62)
)
temperatures = st.floats(0, exclude_min=True, allow_infinity=False)
kernels = st.just(("linear", None)) | st.tuples(st.just("softmax"), st.none() | temperatures)


@st.composite
def outputs_questions(draw: Any) -> Output:
    asked = st.none() | texts, queries, st.none() | conditions, steps, st.booleans()
    return Output(*map(draw, asked), *draw(kernels), draw(st.booleans()))


outputs = outputs_questions()
contributions = st.builds(
    Contribution, texts, queries, names.filter(bool), st.none() | conditions, steps, st.booleans()
)
masks = conditions | st.dictionaries(texts, conditions, max_size=3)
network_weights = st.builds(NetworkWeights, st.none() | masks, steps, st.booleans())
mask_cancellations = st.builds(MaskCancellation, masks.filter(bool), steps, st.none() | texts, st.booleans())
slot_lookups = st.builds(SlotLookup, st.lists(int64s).map(lambda ids: np.array(ids, dtype=np.int64)), st.none() | texts)
sql_statements = st.builds(SqlStatement, texts)
query_set_lookups = st.builds(QuerySetLookup, texts, st.none() | texts)
scans = st.builds(Scan, counts, counts, counts, texts, finite, names, st.floats(0, 1))


@st.composite
def tables(draw: Any) -> dict[str, np.ndarray]:
    rows = draw(st.integers(0, 5))
    return {name: draw(column(rows)) for name in draw(names)}


def column(rows: int) -> Any:
    nulls = arrays.arrays(np.bool_, rows)
    numbers = st.sampled_from(NUMBER_TYPES).flatmap(lambda dtype: arrays.arrays(np.dtype(dtype), rows))
    return st.one_of(
        numbers,
        st.builds(lambda data, mask: np.ma.MaskedArray(data, mask=mask), numbers, nulls),
        st.lists(st.none() | texts, min_size=rows, max_size=rows).map(object_array),
    )


def object_array(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


slot_columns = st.builds(Columns, tables(), scans, texts)
sql_rows = st.builds(Columns, tables(), scans)


statuses = st.builds(
    Status,
    st.sampled_from(["exact", "exact to bfloat16", "approximate", "scores only"]),
    st.none() | finite,
    st.none() | finite,
    st.none() | counts,
    texts,
)


@st.composite
def group_keys(draw: Any, width: int) -> tuple[Any, ...]:
    """Groups as an engine forms them: the keys of one column are of one type, or None."""
    kinds = [draw(st.sampled_from([int64s, finite, texts, st.booleans()])) for _ in range(width)]
    return tuple(draw(st.lists(st.tuples(*(st.none() | kind for kind in kinds)), max_size=4)))


@st.composite
def hits(draw: Any) -> Hits:
    by = draw(names)
    groups = draw(group_keys(len(by))) if by else None
    shape = draw(st.integers(1, 3)), max(len(groups), 1) if groups is not None else 1
    each = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 3)))
    total = int(each.sum())
    ids = draw(arrays.arrays(np.int64, total))
    weights = draw(arrays.arrays(np.float32, total))
    repeats = draw(st.none() | arrays.arrays(np.int64, total))
    return Hits(ids, weights, each, groups, by, draw(scans), draw(texts), draw(st.none() | statuses), repeats)


placebo_questions = st.builds(
    Placebo, texts, queries, conditions.filter(bool), st.integers(1, 1000), steps, st.booleans()
)


@st.composite
def placebos(draw: Any) -> Placebos:
    queries, random, siblings = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(names)
    sets = queries, 1 + random + len(siblings)
    classes = [draw(arrays.arrays(np.int64, queries)) for _ in range(3)]
    return Placebos(
        *classes,
        draw(arrays.arrays(np.float64, queries)),
        draw(arrays.arrays(np.float64, sets)),
        draw(arrays.arrays(np.int64, sets)),
        random,
        siblings,
        draw(texts),
        draw(counts),
        draw(counts),
        draw(texts),
        draw(st.none() | finite),
        draw(statuses),
        draw(texts),
        draw(scans),
    )


@st.composite
def sums(draw: Any) -> GroupSums:
    by = draw(names.filter(bool))
    groups, queries, numbers, total = draw(group_keys(len(by))), draw(st.integers(1, 3)), None, None
    shape = queries, len(groups)
    if groups and draw(st.booleans()):  # the largest of each query
        shape, total = (queries, draw(st.integers(0, 3))), draw(counts)
        numbers = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, len(groups) - 1)))
    values, members = draw(arrays.arrays(np.float64, shape)), draw(arrays.arrays(np.int64, len(groups)))
    beside = map(draw, (scans, texts, st.none() | statuses))
    return GroupSums(groups, values, members, by, *beside, numbers, total)


@st.composite
def query_sets(draw: Any) -> QuerySet:
    rows = st.just(draw(st.integers(0, 4)))
    some = st.none() | matrices(np.float32, rows)
    labels = st.none() | rows.flatmap(lambda count: arrays.arrays(np.int64, count))
    outputs, examples = draw(some), draw(st.none() | counts)
    summary = draw(st.none() | rows.flatmap(output_summaries)) if outputs is None else None
    return QuerySet(draw(texts), draw(labels), outputs, draw(some), draw(scans), examples, summary)


@st.composite
def output_summaries(draw: Any, rows: int) -> OutputSummary:
    k = draw(st.integers(1, 5))
    width = draw(st.integers(k, 60_000))
    largest = draw(arrays.arrays(np.int64, (rows, k), elements=st.integers(0, width - 1)))
    values = draw(arrays.arrays(np.float32, (rows, k)))
    return OutputSummary(largest, values, *(draw(arrays.arrays(np.float32, rows)) for _ in range(2)), width)


preview_lookups = st.lists(int64s).flatmap(
    lambda ids: (
        st.builds(PreviewLookup, st.just(np.array(ids, dtype=np.int64)), st.none() | texts)
        | st.builds(PreviewLookup, st.just(np.array(ids, dtype=np.int64)), st.none(), texts)
    )
)


@st.composite
def previews(draw: Any) -> Previews:
    n = draw(FEW)
    known = draw(arrays.arrays(np.bool_, n))
    beside: dict[str, Any] = {"scan": draw(scans)}
    kind = draw(st.sampled_from(["images", "texts", "table"]))
    if kind == "images":
        pngs = st.binary(max_size=8).map(lambda rest: b"\x89PNG\r\n\x1a\n" + rest)
        beside["images"] = tuple(draw(pngs) if own else None for own in known)
        beside["scale"] = draw(st.none() | st.tuples(finite, finite))
    elif kind == "texts":
        beside["texts"] = tuple(draw(texts) if own else None for own in known)
        pairs = matrices(np.int32, cols=st.just(2))
        beside["offsets"] = draw(st.none() | st.tuples(*[pairs] * n))
        if n and beside["offsets"] is not None:
            beside["firsts"] = draw(st.none() | arrays.arrays(np.int64, n))
    else:
        beside["columns"] = {name: draw(column(n)) for name in draw(names)}
    return Previews(draw(arrays.arrays(np.int64, n)), kind, known, **beside)


sides = st.integers(1, 9)
patches = st.integers(1, 3).flatmap(
    lambda n: st.builds(Patches, *[st.tuples(*[own] * n) for own in (sides, sides, sides, st.integers(0, 3), sides)])
)
layer_infos = st.builds(
    LayerInfo,
    *(texts, counts, counts, st.booleans(), texts, counts, counts, st.booleans(), statuses, names, counts),
    st.none() | patches,
)


@st.composite
def outputs_values(draw: Any) -> Outputs:
    values, (kernel, temperature) = draw(matrices(np.float32)), draw(kernels)
    effective = draw(arrays.arrays(np.float64, len(values))) if kernel == "softmax" else None
    beside = map(draw, (texts, statuses, finite, scans))
    return Outputs(values, *beside, kernel, temperature, draw(st.booleans()), effective)


outputs_answers = outputs_values()


@st.composite
def contributions_values(draw: Any) -> Contributions:
    n, width, by = draw(FEW), draw(FEW), draw(names.filter(bool))
    keys = draw(st.lists(st.tuples(*[st.none() | texts] * len(by)), max_size=3, unique=True))
    doubles = [draw(arrays.arrays(np.float64, (n, width))) for _ in range(3)]
    unexplained = draw(st.none() | arrays.arrays(np.float64, (n, width)))
    return Contributions(
        tuple(keys),
        draw(arrays.arrays(np.float64, (n, len(keys), width))),
        draw(arrays.arrays(np.int64, len(keys), elements=counts)),
        doubles[0],
        draw(arrays.arrays(np.float64, width)),
        *doubles[1:],
        unexplained,
        by,
        *map(draw, (texts, statuses, scans)),
    )


@st.composite
def distributions_values(draw: Any) -> Distributions:
    n, r = draw(FEW), draw(FEW)
    return Distributions(
        draw(arrays.arrays(np.int64, r)),
        draw(arrays.arrays(np.float32, (n, r))),
        *(draw(arrays.arrays(np.float64, shape)) for shape in ((n, r), n, n)),
        *map(draw, (counts, scans, texts, st.none() | statuses)),
    )


contributions_answers, distributions_answers = contributions_values(), distributions_values()
parameters = st.sampled_from(["f2", "f4", "f8", "i8", "?", "c8", "c16"]).flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
concentrations = st.dictionaries(texts, st.builds(Concentration, st.floats(), st.floats()), max_size=3)
cancellations = st.builds(Cancellation, st.dictionaries(texts, st.floats(), max_size=3), scans, concentrations)


@st.composite
def weights(draw: Any) -> Weights:
    layers = draw(st.lists(texts, max_size=3, unique=True))
    return Weights(
        draw(st.dictionaries(texts, parameters, max_size=3)),
        {layer: draw(statuses) for layer in layers},
        {layer: draw(finite) for layer in layers},
        draw(names),
        draw(st.dictionaries(texts, counts, max_size=3)),
        draw(scans),
        draw(names),
        draw(st.booleans()),
    )


infos = st.builds(
    MemoryInfo,
    format=counts,
    snapshot=counts,
    recording=st.booleans(),
    slots=st.dictionaries(texts, counts, max_size=3),
    steps=counts,
    optimizer=texts,
    layers=st.lists(layer_infos, max_size=3).map(tuple),
    skipped=st.dictionaries(texts, texts, max_size=3),
    datasets=st.dictionaries(texts, counts, max_size=3),
    columns=st.dictionaries(texts, st.dictionaries(texts, texts, max_size=3), max_size=3),
    query_sets=st.lists(st.builds(QuerySetInfo, texts, counts, names, texts), max_size=3).map(tuple),
    cut_off=texts,
    final=st.dictionaries(texts, texts, max_size=3),
    sampling=texts,
    answered_by=texts,
    previews=st.dictionaries(texts, texts, max_size=3),
    output_layer=st.none() | texts,
)
reconstructions = st.builds(
    Reconstructions,
    st.dictionaries(
        texts, st.builds(Reconstruction, st.none() | st.floats(allow_nan=False), statuses, finite), max_size=3
    ),
    scans,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type, shape, order and every bit; NULLs are equal whatever stands under them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(one), np.ma.getmaskarray(other)
        return same(*masks) and same(one.data[~masks[0]], other.data[~masks[0]])
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)
