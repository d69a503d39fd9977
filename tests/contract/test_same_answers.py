"""The same question gives the same bits over gRPC as in process; the same mistake gives the same error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dualform import QuerySetExamples, SlotKeys, Target, Vectors, errors
from dualform.answers import Scan
from dualform.questions import (
    Contribution,
    Distribution,
    ExampleGradients,
    GradientSum,
    GradientTopK,
    GroupSum,
    LayerGradients,
    MaskCancellation,
    NetworkWeights,
    Output,
    PreviewLookup,
    TopK,
)
from tests.wire.values import same

RNG = np.random.default_rng(0)
ALONG = RNG.normal(size=(3, 5)).astype(np.float32)
"""A direction for each of three queries."""
WIDE, NARROW = RNG.normal(size=(3, 6)).astype(np.float32), RNG.normal(size=(2, 5)).astype(np.float32)

OTHER = LayerGradients(WIDE[:1], WIDE[:1], np.zeros(1, dtype=np.int64))
GRADIENTS = ExampleGradients(
    2,
    {
        "0": LayerGradients(WIDE[:2], RNG.normal(size=(2, 5)), np.array([0, 1])),
        "2": LayerGradients(NARROW, RNG.normal(size=(2, 4)), np.array([0, 1])),
    },
)

QUESTIONS: dict[str, tuple[Any, ...]] = {
    "info": ("info",),
    "topk of vectors": ("topk", "0", WIDE),
    "topk of one vector": ("topk", "0", WIDE[0].tolist(), 3),
    "topk of a query set": ("topk", "2", "test", 5),
    "topk of query set rows": ("topk", "0", "test/6,0", 5),
    "topk of slots": ("topk", "0", SlotKeys((3, 40)), 5),
    "topk masked": ("topk", "0", WIDE, 4, "dataset = 'zweites ü' AND label <> 2"),
    "topk beyond what the mask leaves": ("topk", "0", WIDE, 1000, "step = 1"),
    "topk by label": ("topk", "0", WIDE, 2, None, "label"),
    "topk by two columns": ("topk", "2", NARROW, 2, "label <> 1", ("dataset", "label"), "abs"),
    "topk by a column of NULLs": ("topk", "2", NARROW, 2, None, "position"),
    "topk by doubles": ("topk", "0", WIDE, 1, None, "weight"),
    "topk by cosine": ("topk", "0", WIDE, 5, "label <> 1", None, "cosine"),
    "topk of groups by cosine": ("topk", "2", NARROW, 2, None, ("dataset", "label"), "cosine"),
    "sums": ("group_sum", "0", WIDE, "label"),
    "sums by two columns": ("group_sum", "2", "test", ("dataset", "label"), "step > 1"),
    "sums of absolute values": ("group_sum", "0", WIDE, "sample", None, "abs"),
    "sums of cosines": ("group_sum", "2", "test", "label", "step > 1", "cosine"),
    "sums by a column of NULLs": ("group_sum", "0", WIDE, "position"),
    "a distribution": ("distribution", "0", WIDE),
    "a distribution of absolute scores, masked": ("distribution", "2", "test", "label <> 1", "abs"),
    "a distribution of cosines at few ranks": ("ask", Distribution("0", Vectors(WIDE), score="cosine", points=11)),
    "a distribution of contributions": (
        "ask",
        Distribution("0", Vectors(WIDE), "step < 5", "contribution", Target(1, 0, at_step=4)),
    ),
    "contributions to an output": ("ask", TopK("0", Vectors(WIDE), 5, score="contribution", target=1)),
    "contributions to a margin": (
        "ask",
        TopK("2", QuerySetExamples("test"), 2, "label <> 1", ("dataset",), "contribution", target="1-0"),
    ),
    "contributions along vectors, earlier": (
        "ask",
        TopK("0", Vectors(WIDE), 5, score="contribution", target=Target(vectors=Vectors(ALONG), at_step=4)),
    ),
    "sums of contributions": ("ask", GroupSum("0", Vectors(WIDE), ("label",), score="contribution", target="0-1")),
    "sums of contributions along vectors": (
        "ask",
        GroupSum("0", Vectors(WIDE), ("label",), "step > 0", "contribution", target=ALONG[0]),
    ),
    "the largest sums of contributions": (
        "ask",
        GroupSum("2", QuerySetExamples("test"), ("sample",), None, "contribution", target=1, k=3),
    ),
    "the largest sums": ("ask", GroupSum("0", Vectors(WIDE), ("dataset", "label"), k=2)),
    "best by a query set's gradients": ("topk", "*", "traced/3,0", 4, None, None, "gradient"),
    "sums by a query set's gradients": ("group_sum", ["0"], "traced", "label", "step > 0", "gradient"),
    "best by gradient": ("ask", GradientTopK((), GRADIENTS, 4)),
    "best by gradient in one layer, masked": ("topk", ["2"], GRADIENTS, 4, "label <> 1", None, "gradient"),
    "sums by gradient": ("group_sum", "*", GRADIENTS, "sample", None, "gradient"),
    "the largest sums by gradient": ("ask", GradientSum(("2", "0"), GRADIENTS, ("dataset", "label"), "step > 0", 2)),
    "output": ("output", "0", WIDE),
    "output masked": ("output", "2", "test", "dataset = 'first'"),
    "output earlier": ("output", "0", "test", None, 2),
    "output of the initial network": ("output", "0", "test", None, 0),
    "contributions": ("contributions", "0", WIDE, "label"),
    "contributions masked": ("contributions", "2", "test", ("dataset", "label"), "label <> 2", 5),
    "contributions of the initial network": ("contributions", "0", "test/3", "label", None, 0, True),
    "a question as a value": ("ask", TopK("0", Vectors(WIDE), 3)),
    "a sum as a value": ("ask", GroupSum("0", QuerySetExamples("test", (2,)), ("label",))),
    "contributions as a value": ("ask", Contribution("2", SlotKeys((3, 9)), ("position",))),
    "an output as a value": ("ask", Output("0", QuerySetExamples("test"), "step < 3", 4)),
    "output that need not be exact": ("output", "0", WIDE, None, None, True),
    "output by softmax": ("output", "0", WIDE, None, None, False, "softmax"),
    "output by softmax, masked": ("output", "2", "test", "label <> 2", 5, False, "softmax", 0.25, False),
    "output without the initial weights": ("output", "0", WIDE, "step < 4", None, False, "linear", None, False),
    "an output by softmax as a value": ("ask", Output("2", SlotKeys((3, 9)), kernel="softmax", temperature=30)),
    "weights": ("weights",),
    "weights masked": ("weights", "dataset = 'first'"),
    "weights masked by space": ("weights", {"sample": "label <> 2"}, 4),
    "weights that need not be exact": ("ask", NetworkWeights(None, 3, True)),
    "cancellation": ("cancellation", "dataset = 'first'"),
    "cancellation of one layer": ("cancellation", {"sample": "label <> 2"}, 5, "2"),
    "cancellation where nothing moved": ("ask", MaskCancellation("label >= 0", 0, None)),
    "slots": ("slots", [47, 0, 3]),
    "slots of a space": ("slots", np.array([1, 2]), "sample"),
    "no slots": ("slots", []),
    "sql": ("sql", "SELECT * FROM slots ORDER BY slot"),
    "sql over steps": ("sql", "SELECT * FROM steps ORDER BY step"),
    "sql of every type": (
        "sql",
        "SELECT 1::TINYINT AS a, 2::INTEGER AS b, 3::UBIGINT AS c, 4::FLOAT AS d, 5.5::DOUBLE AS e, true AS f, "
        "NULL::BIGINT AS g, 'ü' AS h, sum(1) AS i, DATE '2020-01-01' AS j, 1.50::DECIMAL(5, 2) AS k, NULL AS l, "
        "[1, 2] AS m, 'NaN'::DOUBLE AS n",
    ),
    "sql without rows": ("sql", "SELECT slot, dataset, weight FROM slots WHERE false"),
    "query_set": ("query_set", "test"),
    "query set with a layer's queries": ("query_set", "test", "2"),
    "verify": ("verify",),
    "images": ("previews", [3, 39, 3, 41], "first"),
    "texts with places": ("previews", np.array([1, 0, -5]), "zweites ü"),
    "rows of a query set's examples": ("ask", PreviewLookup(np.array([6, 1, 7]), query_set="test")),
    "more than an int64 holds of the best": ("topk", "0", WIDE, 10**30),
    "no samples": ("previews", [], "first"),
}

MISTAKES: dict[str, tuple[tuple[Any, ...], type[errors.DualformError], str]] = {
    "sums in no layer": (("group_sum", "nix", WIDE, "label"), errors.NotFound, "layer"),
    "an output of no layer": (("output", "nix", WIDE), errors.NotFound, "layer"),
    "contributions in no layer": (("contributions", "nix", WIDE, "label"), errors.NotFound, "layer"),
    "a placebo in no layer": (("placebo", "nix", WIDE, "step < 2"), errors.NotFound, "layer"),
    "a distribution in no layer": (("distribution", "nix", WIDE), errors.NotFound, "layer"),
    "queries of no layer": (("query_set", "test", "nix"), errors.NotFound, "layer"),
    "a placebo without a mask": (("placebo", "2", "test"), errors.BadInput, "where"),
    "a placebo that leaves out nothing": (("placebo", "2", "test", "step >= 0"), errors.BadInput, "where"),
    "a placebo of no set": (("placebo", "2", "test", "step > 1", 0), errors.BadInput, "n"),
    "one hit of a column that there is not": (
        ("ask", TopK("2", Vectors(NARROW), distinct=("nix",))),
        errors.NotFound,
        "distinct",
    ),
    "a number that SQL would round": (("sql", "SELECT 18446744073709551615::UBIGINT"), errors.BadInput, "statement"),
    "unknown layer": (("topk", "nix", WIDE), errors.NotFound, "layer"),
    "unknown column": (("topk", "0", WIDE, 3, "labl = 1"), errors.NotFound, "where"),
    "no expression": (("topk", "0", WIDE, 3, "label ="), errors.BadMask, "where"),
    "a query in a mask": (("topk", "0", WIDE, 3, "label = (SELECT 1)"), errors.BadMask, "where"),
    "a mask that leaves nothing": (("topk", "0", WIDE, 3, "step > 99"), errors.EmptyMask, "where"),
    "unknown grouping": (("group_sum", "0", WIDE, "nix"), errors.NotFound, "by"),
    "grouping twice": (("group_sum", "0", WIDE, ("label", "label")), errors.BadInput, "by"),
    "a score that there is not": (("topk", "0", WIDE, 3, None, None, "nix"), errors.BadInput, "score"),
    "sums of a score that there is not": (("group_sum", "0", WIDE, "label", None, "nix"), errors.BadInput, "score"),
    "a score that is no text": (("topk", "0", WIDE, 3, None, None, 3), errors.BadInput, "score"),
    "k of none": (("topk", "0", WIDE, 0), errors.BadInput, "k"),
    "a distribution of a score that there is not": (("distribution", "0", WIDE, None, "nix"), errors.BadInput, "score"),
    "a distribution of gradients": (("distribution", "0", WIDE, None, "gradient"), errors.BadInput, "score"),
    "a distribution of no slot": (("distribution", "0", WIDE, "step > 99"), errors.EmptyMask, "where"),
    "a contribution without a direction": (
        ("topk", "0", WIDE, 3, None, None, "contribution"),
        errors.BadInput,
        "target",
    ),
    "a direction that the layer has not": (
        ("ask", TopK("0", Vectors(WIDE), score="contribution", target=Target(99))),
        errors.BadInput,
        "target",
    ),
    "gradients of a query set that has none": (
        ("topk", "*", "test", 3, None, None, "gradient"),
        errors.BadInput,
        "queries",
    ),
    "a score of gradients without any": (("topk", "*", WIDE, 3, None, None, "gradient"), errors.BadInput, "queries"),
    "gradients of another network": (
        ("ask", GradientTopK((), ExampleGradients(1, {"0": OTHER}))),
        errors.BadInput,
        "queries",
    ),
    "gradients in a layer that there is not": (("ask", GradientTopK(("nix",), GRADIENTS)), errors.NotFound, "layer"),
    "directions of another width": (
        ("ask", TopK("0", Vectors(WIDE), score="contribution", target=np.ones(99))),
        errors.BadInput,
        "target",
    ),
    "contributions of the initial network": (
        ("ask", TopK("0", Vectors(WIDE), score="contribution", target=Target(0, at_step=0))),
        errors.EmptyMask,
        "at_step",
    ),
    "wrong width": (("topk", "0", NARROW), errors.BadInput, "queries"),
    "not finite": (("topk", "0", [[np.nan] * 6]), errors.BadInput, "queries"),
    "unknown query set": (("topk", "0", "nix/1"), errors.NotFound, ""),
    "unknown query set row": (("topk", "0", "test/7"), errors.NotFound, ""),
    "no query set row": (("topk", "0", "test/x"), errors.BadInput, "queries"),
    "unknown slot as query": (("topk", "0", SlotKeys((48,))), errors.NotFound, ""),
    "a space that is not there": (("slots", [1], "token"), errors.NotFound, "space"),
    "no layer to cancel in": (("cancellation", "label = 1", None, "nix"), errors.NotFound, "layer"),
    "no mask to cancel": (("cancellation", ""), errors.BadInput, "where"),
    "a mask of a space that is not there": (("weights", {"token": "label = 1"}), errors.NotFound, "space"),
    "masks that are no texts": (("weights", {"sample": 3}), errors.BadMask, "where"),
    "weights of a step after the end": (("weights", None, 99), errors.BadInput, "at_step"),
    "weights of no slot": (("weights", "step > 99"), errors.EmptyMask, "where"),
    "no question": (("ask", "topk"), errors.BadInput, "question"),
    "unknown slot": (("slots", [48]), errors.NotFound, ""),
    "step after the end": (("output", "0", WIDE, None, 99), errors.BadInput, "at_step"),
    "step before the start": (("output", "0", WIDE, None, -1), errors.BadInput, "at_step"),
    "a kernel that there is not": (("output", "0", WIDE, None, None, False, "nix"), errors.BadInput, "kernel"),
    "a kernel that is no text": (("output", "0", WIDE, None, None, False, 3), errors.BadInput, "kernel"),
    "no temperature": (("output", "0", WIDE, None, None, False, "softmax", 0.0), errors.BadInput, "temperature"),
    "a temperature of the linear kernel": (
        ("output", "0", WIDE, None, None, False, "linear", 1.0),
        errors.BadInput,
        "temperature",
    ),
    "a softmax of no slot": (("output", "0", WIDE, "step > 99", None, False, "softmax"), errors.EmptyMask, "where"),
    "wrong sql": (("sql", "SELECT nix FROM slots"), errors.BadInput, "statement"),
    "sql that writes": (("sql", "DROP TABLE slots"), errors.BadInput, "statement"),
    "sql that reads files": (("sql", "SELECT * FROM '/etc/passwd'"), errors.BadInput, "statement"),
    "blank sql": (("sql", " "), errors.BadInput, "statement"),
    "unknown query set by name": (("query_set", "nix"), errors.NotFound, ""),
    "a dataset without a preview set": (("previews", [1], "nix"), errors.NotFound, "dataset"),
    "samples without a dataset or a preview set": (("previews", [1]), errors.NotFound, "dataset"),
    "a query set without a preview set": (
        ("ask", PreviewLookup(np.array([1]), query_set="traced")),
        errors.NotFound,
        "query_set",
    ),
    "samples that are no numbers": (("previews", ["a"], "first"), errors.BadInput, "samples"),
    "samples of which one is NULL": (
        ("previews", np.ma.array([1, 2], mask=[False, True]), "first"),
        errors.BadInput,
        "samples",
    ),
    "a sample that no int64 has": (
        ("previews", np.array([2**63 + 1], np.uint64), "first"),
        errors.BadInput,
        "samples",
    ),
    "a slot that is NULL": (("slots", np.ma.array([1, 2], mask=[False, True])), errors.BadInput, "ids"),
    "too many samples": (("previews", [0] * 1025, "first"), errors.BadInput, "samples"),
}


def timeless(answer: Any) -> Any:
    """Without the seconds that answering took."""
    if isinstance(answer, tuple):
        return tuple(map(timeless, answer))
    if isinstance(answer, Scan):
        return replace(answer, seconds=0.0)
    return replace(answer, scan=timeless(answer.scan)) if hasattr(answer, "scan") else answer


OVER_GRPC = pytest.mark.parametrize("ask", ["client", "awaited"], indirect=True)


@OVER_GRPC
@pytest.mark.parametrize("question", QUESTIONS)
def test_same_bits(question, engine, ask):
    method, *arguments = QUESTIONS[question]
    expected = getattr(engine, method)(*arguments)
    assert same(timeless(ask(method, *arguments)), timeless(expected))


@OVER_GRPC
@pytest.mark.parametrize("mistake", MISTAKES)
def test_same_error(mistake, engine, ask):
    (method, *arguments), kind, field = MISTAKES[mistake]
    with pytest.raises(kind) as expected:
        getattr(engine, method)(*arguments)
    with pytest.raises(kind) as answered:
        ask(method, *arguments)
    ours, theirs = expected.value, answered.value
    assert type(theirs) is type(ours) is kind
    assert (theirs.message, theirs.hint, theirs.field) == (ours.message, ours.hint, ours.field)
    if field:
        assert ours.field == field


@pytest.mark.parametrize("ask", ["engine", "client"], indirect=True)
def test_columns_are_named_in_any_case(ask):
    for method, said, recorded in (
        ("topk", {"by": ("Dataset", "LABEL"), "where": "STEP > 1"}, {"by": ("dataset", "label"), "where": "step > 1"}),
        ("topk", {"distinct": "Sample"}, {"distinct": "sample"}),
        ("group_sum", {"by": "Label"}, {"by": "label"}),
        ("contributions", {"by": "Label"}, {"by": "label"}),
    ):
        found = ask(method, "0", "test/3", **said)
        assert same(timeless(found), timeless(ask(method, "0", "test/3", **recorded)))
    with pytest.raises(errors.BadInput, match="by names a column twice"):
        ask("group_sum", "0", "test/3", by=("label", "Label"))
