"""One hit a sample, filters by ids and placebos: alike in process and over gRPC, and equal to brute force."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.errors import BadInput, BadMask, EmptyMask, NotFound
from tests.cases import some
from tests.contract.recorded import CLASSES

LAYER = "2"


def columns(engine, *names):
    slots = engine.slots(np.arange(engine.info().slots["sample"]), "sample")
    return [np.ma.getdata(slots[name]) for name in names]


def scores(engine, query):
    """float64[slots], of the output layer."""
    keys = engine.keys(LAYER).astype(np.float64)
    return np.float32(keys @ engine.query_set("test", LAYER).queries[query].astype(np.float64))


def ranked(engine, query):
    found = scores(engine, query)
    return np.lexsort((np.arange(len(found)), -found)), found


@pytest.mark.parametrize("k", [1, 7, 100])
def test_one_hit_a_sample(ask, engine, k):
    dataset, sample = columns(engine, "dataset", "sample")
    hits = ask("topk", LAYER, "test/0-6", k=k, distinct="sample")
    for query in range(7):
        order, found = ranked(engine, query)
        seen, expected = {}, []
        for slot in order:
            key = (dataset[slot], sample[slot])
            if key not in seen and len(expected) < k:
                expected.append(slot)
            if len(expected) <= k:
                seen[key] = seen.get(key, 0) + 1
            if len(expected) == k:
                break
        last = np.flatnonzero(order == expected[-1])[0]
        end = last + 1 if len(expected) == k else len(order)
        repeats = [
            sum((dataset[s], sample[s]) == (dataset[slot], sample[slot]) for s in order[:end]) for slot in expected
        ]
        assert hits.slots[query].tolist() == expected
        assert hits.scores[query].tolist() == found[expected].tolist()
        first = int(hits.counts[:query].sum())
        assert hits.repeats[first : first + len(expected)].tolist() == repeats
        assert sum(repeats) == end


def test_distinct_of_gradients(ask, engine):
    whole = engine.topk("*", "traced/0-2", k=10_000, score="gradient")
    hits = ask("topk", "*", "traced/0-2", k=3, score="gradient", distinct="sample")
    dataset, sample = columns(engine, "dataset", "sample")
    for own, plain in some(zip(hits.slots, whole.slots, strict=True)):
        best = {}
        for slot in plain:
            best.setdefault((dataset[slot], sample[slot]), slot)
        assert own.tolist() == list(best.values())[:3]


@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ({"slot": np.array([3, 17, 40])}, "slot IN (3, 17, 40)"),
        ({"not slot": [3, 17, 40]}, "slot NOT IN (3, 17, 40)"),
        (("dataset = ? AND sample IN ?", "first", range(9)), "dataset = 'first' AND sample < 9"),
        (
            ("NOT (dataset = ? AND sample IN (?))", "first", (1, 2, 3)),
            "NOT (dataset = 'first' AND sample IN (1, 2, 3))",
        ),
        (("label = ? OR weight < ?", 2, 0.25), "label = 2 OR weight < 0.25"),
        (("label IS DISTINCT FROM ?", None), "label IS NOT NULL"),
        (("dataset IN ?", ["first"]), "dataset = 'first'"),
        (("label = $2 AND step > $1", 1, 3), "label = 3 AND step > 1"),
        # 1 and 1.0 are equal in Python, and other filters.
        (("CAST(? AS VARCHAR) = '1'", 1), "step >= 0"),
        (("CAST(? AS VARCHAR) = '1.0'", 1.0), "step >= 0"),
    ],
)
def test_filters_by_ids_and_values(ask, where, sql):
    expected, found = ask("topk", LAYER, "test/3", k=1000, where=sql), ask("topk", LAYER, "test/3", k=1000, where=where)
    assert len(expected.ids)
    assert found.ids.tolist() == expected.ids.tolist()
    outputs = [ask("output", LAYER, "test/3", where=own).values for own in (where, sql)]
    sums = [ask("group_sum", LAYER, "test/3", "label", where=own).sums for own in (where, sql)]
    weights = [np.asarray(ask("weights", own)["2.weight"]) for own in (where, sql)]
    assert all(np.array_equal(*pair) for pair in (outputs, sums, weights))


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (np.array([1, 2]), "could be samples or slots"),
        ([1, 2], "could be samples or slots"),
        ({"sample": [0, 1, 2]}, "several datasets"),
        ({"slot": [1.5]}, r"where\['slot'\] must be a whole number, a text, or a list of either, not \[1.5\]"),
        ({"slot": np.ma.masked_array([1, 2], [0, 1])}, r"where\['slot'\]"),
        ({"colour": [1]}, "where"),
        (("label = ?",), "a question mark without a value"),
        (("label = ?", 1, 2), "where has 1 question marks but 2 values"),
        (("label = ? + ?", 1, [2]), "where can use a list of ids only after a column and IN."),
        (("abs(label) IN ?", [2]), "where can compare only a column with a list of ids."),
        (("dataset IN ?", [2]), "with a list of whole numbers"),
        (("weight IN ?", [2]), "with a list of whole numbers"),
        (("label = $name", 2), "question mark without a value"),
        (("dataset = ?", "frist"), "no dataset 'frist'"),
        (("dataset IN ?", ["first", "frist"]), "no dataset 'frist'"),
        (("sample in (?)", [0, 1, 2]), "several datasets"),
        (("step >= 0 AND NOT (sample IN ?)", [0, 1, 2]), "several datasets"),
        (("label IN ?", "3"), "one value after IN"),
        (("sample IN ?", 5), "one value after IN"),
        (("dataset NOT IN ?", "first"), "one value after IN"),
        (("dataset IN ?", []), "where matches none"),
    ],
)
def test_filters_that_are_refused(ask, where, says):
    with pytest.raises((BadMask, EmptyMask, NotFound), match=says):
        ask("topk", LAYER, "test/3", where=where)


@pytest.mark.parametrize(
    "where",
    ["dataset = '\ud800'", ("dataset = ?", "\udfff"), ("dataset IN ?", ["first", "\ud800"]), {"sample": ["\ud800"]}],
    ids=ascii,
)
def test_filters_that_are_no_unicode_are_refused_plainly(ask, where):
    for method, arguments in {"topk": (LAYER, "test/3"), "weights": ()}.items():
        with pytest.raises(BadInput) as refused:
            ask(method, *arguments, where=where)
        assert refused.value.field == "where"


def test_the_output_layer_is_asked_where_none_is_named(ask, engine):
    assert ask("info").output_layer == LAYER
    assert ask("topk", queries="test/1").ids.tolist() == engine.topk(LAYER, "test/1").ids.tolist()
    assert np.array_equal(ask("output", queries="test"), engine.output(LAYER, "test"))


@pytest.mark.parametrize("where", ["dataset = 'first'", "label <> 3", "step BETWEEN 1 AND 2"])
def test_placebos_are_outputs_under_the_sets_that_they_leave_out(ask, engine, where):
    found = ask("placebo", queries="test", where=where, n=20)
    full, rows = np.asarray(engine.output(LAYER, "test"), dtype=np.float64), np.arange(7)
    order = np.argsort(-full, axis=1, kind="stable")
    assert np.array_equal(found.predicted, order[:, 0])
    assert np.allclose(full[rows, found.second], full[rows, order[:, 1]])

    def changed(sql):
        ablated = np.asarray(engine.output(LAYER, "test", sql), dtype=np.float64)
        return margins(ablated) - margins(full), ablated.argmax(axis=1)

    def margins(outputs):
        others = np.where(np.arange(CLASSES) == found.predicted[:, None], -np.inf, outputs)
        return outputs[rows, found.predicted] - others.max(axis=1)

    scale = np.abs(full).max()
    sets = [where, *map(left_out, found.siblings)]
    assert len(found.siblings) >= 1
    assert found.changes.shape == (7, 1 + found.random + len(found.siblings))
    for sql, column in zip(sets, [0, *range(1 + found.random, found.changes.shape[1])], strict=True):
        change, outcome = changed(sql)
        assert np.abs(found.changes[:, column] - change).max() <= 1e-5 * scale
        close = np.abs(np.sort(engine.output(LAYER, "test", sql), axis=1)[:, -2:] @ [-1, 1]) < 1e-5 * scale
        assert ((found.outcomes[:, column] == outcome) | close).all()
    labels = engine.query_set("test").labels
    assert found.labels.tolist() == labels.tolist()
    assert found.corrected[0] == np.sum((found.predicted != labels) & (found.outcomes[:, 0] == labels))
    assert found.broken[0] == np.sum((found.predicted == labels) & (found.outcomes[:, 0] != labels))


def left_out(name):
    """The filter that leaves out a sibling of this name: "label = 1", "steps 2 to 3", "all but label = 1"."""
    few = name.removeprefix("all but ")
    if few.startswith("steps "):
        first, last = few.removeprefix("steps ").split(" to ")
        few = f"step BETWEEN {first} AND {last}"
    elif few.startswith("dataset"):
        few = few.replace("= ", "= '") + "'"
    return few if name.startswith("all but ") else f"NOT ({few})"


@pytest.mark.parametrize(
    ("said", "rows"),
    [("test/3", [3]), ("test/3,5", [3, 5]), ("test/2-4", [2, 3, 4]), ("test/3:0", [3]), ("test/1,0-1:0", [1, 0, 1])],
)
def test_examples_by_name(ask, engine, said, rows):
    queries = engine.query_set("test", LAYER).queries
    assert np.array_equal(ask("output", LAYER, said), engine.output(LAYER, queries[rows]))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("test/7", "There is no example of query set 'test' with number 7"),
        ("test/3:1", "There is no token of an example of query set 'test' in layer '2' with number 1"),
        ("test/5-3", "contains an empty range."),
        ("test/-1", "does not name an example"),
        ("test/1:2:3", "does not name an example"),
        (f"test/0-{CLASSES * 10**6}", "names more than 1,000,000 queries"),
    ],
)
def test_examples_that_there_are_not(ask, said, says):
    with pytest.raises((BadInput, NotFound), match=says):
        ask("output", LAYER, said)
