"""Filters with bound values and ids keep what SQL with literals keeps, also where a layer lacks some slots."""

from __future__ import annotations

from itertools import permutations

import duckdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dualform.errors import BadMask, DualformError, EmptyMask, NotFound
from dualform.query.sums import grouping
from dualform.query.where import expression
from dualform.questions import Filter, SlotKeys, TopK
from tests.query import arrays, oracle

SLOTS = 60
COLUMNS = {
    "sample": [None if i % 5 == 0 else i % 7 for i in range(SLOTS)],
    "label": [None if i % 11 == 0 else i % 4 for i in range(SLOTS)],
    "note": [["1", "1.0", "true", None, "0.0", "-0.0"][i % 6] for i in range(SLOTS)],
    "dataset": [["first", None][i % 5 == 0] for i in range(SLOTS)],
}
SEVERAL = {"sample": [i % 7 for i in range(SLOTS)], "dataset": [["a", "b"][i % 7 < 3 and i % 2] for i in range(SLOTS)]}
"""Samples 0, 1 and 2 are samples of a and of b; 3 to 6 of a alone."""


def engine_of(columns):
    keys = {"fc": np.arange(SLOTS, dtype=np.float32)[:, None]}
    return arrays.engine(arrays.memory(keys, columns, types={"note": "VARCHAR"} if "note" in columns else {}))


@pytest.fixture(scope="module")
def engine():
    return engine_of(COLUMNS)


@pytest.fixture(scope="module")
def several():
    return engine_of(SEVERAL)


@pytest.fixture(scope="module")
def theirs(engine):
    with duckdb.connect() as connection:
        connection.register("slots", engine._view.snapshot.space("sample").between(0, SLOTS, [*COLUMNS, "slot"]))
        yield connection


def kept(engine, where):
    try:
        return sorted(engine.topk("fc", [1.0], k=SLOTS, where=where).ids.tolist())
    except EmptyMask:
        return []


def literal(value):
    return f"'{value}'" if isinstance(value, str) else str(value)


NUMBERS = st.lists(st.integers(-2, 70), max_size=6)
TEXTS = st.lists(st.sampled_from(["1", "1.0", "true", "none has it"]), max_size=3)
FORMS = st.sampled_from([list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, dtype=np.int8)])


@st.composite
def conditions(draw):
    """A condition with a value for each question mark, and the same one with literals."""
    parts, values, words = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        column = draw(st.sampled_from(["sample", "label", "slot", "note"]))
        ids = draw(TEXTS if column == "note" else NUMBERS)
        negated, around = draw(st.sampled_from(["", "NOT "])), draw(st.sampled_from(["{}", "NOT ({})", "({}) IS NULL"]))
        mark = draw(st.sampled_from(["IN ?", "IN (?)", "in ?"]))
        parts.append(around.format(f"{column} {negated}{mark}"))
        values.append(ids if column == "note" else draw(FORMS)(ids) if ids else [])
        none = f"(CASE WHEN {column} IS NULL THEN NULL ELSE false END)"  # SQL has no IN ()
        plain = f"{column} IN ({', '.join(map(literal, ids))})" if ids else none
        words.append(around.format(f"(NOT {plain})" if negated else plain))
    joined = draw(st.sampled_from([" AND ", " OR "]))
    return (joined.join(parts), *values), joined.join(words)


@given(conditions())
@settings(max_examples=50)
def test_ids_keep_what_the_same_literals_keep_in_duckdb(engine, theirs, condition):
    where, sql = condition
    expected = [slot for (slot,) in theirs.execute(f"SELECT slot FROM slots WHERE {sql} ORDER BY slot").fetchall()]
    assert kept(engine, where) == expected


@given(NUMBERS, FORMS)
@settings(max_examples=25)
def test_ids_and_not_ids_share_out_all_slots(engine, ids, form):
    """A slot without a sample is none of any samples."""
    given = form(ids) if ids else []
    among = {slot for slot in range(SLOTS) if COLUMNS["sample"][slot] in ids}
    assert set(kept(engine, {"sample": given})) == among
    assert set(kept(engine, {"not sample": given})) == set(range(SLOTS)) - among
    among = set(range(SLOTS)) & set(ids)
    assert set(kept(engine, {"slot": given})) == among
    assert set(kept(engine, {"not slot": given})) == set(range(SLOTS)) - among


@pytest.mark.parametrize("array", [np.array, torch.tensor], ids=["NumPy", "torch"])
@pytest.mark.parametrize(
    "said", [lambda ids: {"slot": ids}, lambda ids: ("slot IN ?", ids), lambda ids: Filter("slot IN ?", (ids,))]
)
def test_what_becomes_of_the_callers_array_changes_no_filter(array, said):
    engine, ids = engine_of(COLUMNS), array([1, 2, 3])
    question = TopK("fc", np.ones((1, 1), np.float32), SLOTS, said(ids))
    before = hash(question.where)
    ids[:] = array([10, 11, 12])
    assert hash(question.where) == before
    for _ in range(2):
        assert sorted(engine.ask(question).ids.tolist()) == [1, 2, 3]
        assert kept(engine, {"slot": [1, 2, 3]}) == [1, 2, 3]
        assert kept(engine, said(ids)) == [10, 11, 12]


def test_a_filters_own_ids_cannot_be_changed():
    (ids,) = Filter("slot IN ?", ([1, 2, 3],)).values
    with pytest.raises(ValueError, match="read-only"):
        ids.values[0] = 7


@pytest.mark.parametrize(
    "values", [*permutations([1, 1.0, True]), (0.0, -0.0), (-0.0, 0.0)], ids=lambda values: str(values)
)
def test_values_that_are_equal_in_python_are_others_in_sql(values):
    """Each is asked after the others, of one memory and of one process."""
    engine = engine_of(COLUMNS)
    expression._parse.cache_clear()
    for value in values:
        text = "true" if value is True else str(value)
        matching = [slot for slot in range(SLOTS) if COLUMNS["note"][slot] == text]
        assert kept(engine, ("CAST(? AS VARCHAR) = note", value)) == matching
    assert len({Filter("label = ?", (value,)) for value in values}) == len(values)
    assert len({TopK("fc", np.ones((1, 1), np.float32), 1, ("label = ?", own)).kind for own in values}) == len(values)


def test_one_value_in_brackets_and_a_search_are_what_they_say(engine):
    assert kept(engine, ("label IN (?)", 3)) == kept(engine, "label = 3") != []
    assert kept(engine, ("contains(note, ?)", "1")) == kept(engine, "note LIKE '%1%'") != []


@pytest.mark.parametrize("column", ["dataset", "note", "label", "sample", "slot"])
def test_no_ids_at_all_match_nothing(engine, column):
    with pytest.raises(EmptyMask, match="where matches none of 60 slots"):
        engine.topk("fc", [1.0], where=(f"{column} IN ?", []))
    values = COLUMNS.get(column, range(SLOTS))
    known = [slot for slot in range(SLOTS) if values[slot] is not None]
    assert kept(engine, (f"{column} NOT IN ?", [])) == known


@given(st.text(alphabet="\ud800\udc00 é?'=1", max_size=6), st.text(alphabet="\ud800é1", max_size=3))
def test_any_text_and_value_is_answered_or_refused_with_one_of_our_errors(engine, text, value):
    for where in (text, ("note = ?", value), ("note IN ?", [value, "1"]), (text, value)):
        try:
            engine.topk("fc", [1.0], where=where)
        except DualformError as error:
            assert error.field == "where"  # noqa: PT017


AMBIGUOUS = [
    {"sample": [2, 5]},
    {"not sample": [2]},
    ("sample IN ?", [2]),
    ("sample in ?", [2]),
    ("SAMPLE IN (?)", [2]),
    ('("sample") NOT IN ?', [2]),
    ("(sample IN ?) AND step >= 0", [2]),
    ("NOT (step < 0 OR sample IN $1)", [2]),
    ("sample IN ? OR sample IN ?", [5], [2]),
    ("contains(?, sample)", [2]),
    ("CASE WHEN sample IN ? THEN true ELSE false END", [2]),
]


@pytest.mark.parametrize("where", AMBIGUOUS, ids=str)
def test_a_sample_of_several_datasets_is_refused_however_it_is_written(several, where):
    for _ in range(2):
        with pytest.raises(BadMask, match=r"several datasets.* a, b|several datasets \(a, b\)") as refused:
            several.topk("fc", [1.0], where=where)
        assert "Name the dataset too" in refused.value.hint
    with pytest.raises(BadMask, match="several datasets"):
        several.group_sum("fc", [1.0], "label", where=where)


def test_samples_of_one_dataset_or_of_one_that_is_named_are_none_of_several(several):
    sample, dataset = map(np.array, SEVERAL.values())
    assert kept(several, {"sample": [3, 5]}) == np.flatnonzero(np.isin(sample, [3, 5])).tolist()
    assert kept(several, {"not sample": [3, 99]}) == np.flatnonzero(sample != 3).tolist()
    named = kept(several, ("dataset = ? AND sample IN ?", "a", [1, 2]))
    assert named == np.flatnonzero((dataset == "a") & np.isin(sample, [1, 2])).tolist()
    assert kept(several, ("sample IN ? AND dataset IN ?", [1], ["a", "b"])) == np.flatnonzero(sample == 1).tolist()


ENTRIES, ENTRY_STEPS = 60, 6


class Partly:
    """Layer "whole" has every slot, layer "part" some of them."""

    def __init__(self, seed: int, repeats: bool = False, backend: str = "numpy") -> None:
        rng = np.random.default_rng(seed)
        self.slots = np.sort(rng.choice(ENTRIES, rng.integers(1, ENTRIES), replace=False))
        self.labels = [None if i == 4 else int(i) for i in rng.integers(0, 5, ENTRIES)]
        self.steps = (np.arange(ENTRIES) // (ENTRIES // ENTRY_STEPS)).tolist()
        rows = rng.normal(size=(7 if repeats else len(self.slots), 5)).astype(np.float32)
        of_entry = rng.integers(0, 7, len(self.slots)) if repeats else None
        self.keys = rows if of_entry is None else rows[of_entry]
        self.values = rng.normal(size=(len(self.slots), 3)).astype(np.float32)
        self.weight = rng.normal(size=(3, 5)).astype(np.float32)
        self.queries = rng.normal(size=(4, 5)).astype(np.float32)
        self.memory = arrays.memory(
            {"whole": rng.normal(size=(ENTRIES, 5)).astype(np.float32), "part": rows},
            {"label": self.labels, "step": self.steps},
            values={"part": self.values},
            entries={"part": self.slots.tolist()},
            rows_of_slots={} if of_entry is None else {"part": of_entry},
            segment_rows=9,
            initial={"part.weight": self.weight, "part.bias": np.zeros(3, np.float32)},
        )
        self.engine = arrays.engine(self.memory, backend)


@pytest.mark.parametrize("backend", ["numpy", "int8"])
@given(seed=st.integers(0, 999), repeats=st.booleans(), k=st.integers(1, 9), by=st.booleans(), where=st.booleans())
@settings(deadline=None, max_examples=13)
def test_hits_are_those_of_the_brute_force(backend, seed, repeats, k, by, where):
    case = Partly(seed, repeats, backend)
    stays = [not where or case.labels[slot] not in (None, 2) for slot in case.slots.tolist()]
    if not any(stays):
        return
    condition = "label <> 2" if where else None
    hits = case.engine.topk("part", case.queries, k=k, where=condition, by="label" if by else None)
    for i, query in enumerate(case.queries):
        exact = dict(zip(case.slots.tolist(), oracle.scores(case.keys, query), strict=True))
        left = [slot for slot, kept in zip(case.slots.tolist(), stays, strict=True) if kept]
        if not by:
            assert hits.slots[i].tolist() == oracle.best(exact, left, k)
            continue
        groups = oracle.groups([case.labels], [slot in left for slot in range(ENTRIES)])
        assert hits.groups == tuple(groups)
        assert [own.tolist() for own in hits.slots[i]] == [oracle.best(exact, own, k) for own in groups.values()]
    assert (hits.scan.slots_scanned, hits.scan.slots_matching) == (len(case.slots), sum(stays))


@given(seed=st.integers(0, 999), repeats=st.booleans(), budget=st.sampled_from([1, grouping.BUDGET]))
@settings(deadline=None, max_examples=10)
def test_sums_are_over_the_slots_that_the_layer_has(seed, repeats, budget):
    case = Partly(seed, repeats)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "BUDGET", budget)
        found = case.engine.group_sum("part", case.queries, by="step")
    of = np.array(case.steps)[case.slots]
    present = sorted(set(of.tolist()))
    assert found.groups == tuple((step,) for step in present)
    assert found.counts.tolist() == [int((of == step).sum()) for step in present]
    wide = case.queries.astype(float) @ case.keys.astype(float).T
    np.testing.assert_allclose(found.sums, [[row[of == step].sum() for step in present] for row in wide], atol=1e-12)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("at_step", [None, 0, 3])
def test_weights_take_the_coefficients_of_the_steps_of_its_own_slots(repeats, at_step):
    case = Partly(5, repeats)
    label = np.array([-1 if value is None else value for value in case.labels])[case.slots]
    step = np.array(case.steps)[case.slots]
    speaks = (label >= 2) & (step < (ENTRY_STEPS if at_step is None else at_step))
    moved = 0.1 * case.values[speaks].astype(float).T @ case.keys[speaks].astype(float)
    found = case.engine.output("part", np.eye(5), where="label >= 2", at_step=at_step)
    bias = -0.1 * case.values[speaks].astype(float).sum(axis=0)
    np.testing.assert_allclose(np.asarray(found).T, case.weight - moved + bias[:, None], atol=1e-6)


def test_a_slot_that_the_layer_lacks_is_named():
    case = Partly(5)
    missing = next(slot for slot in range(ENTRIES) if slot not in case.slots)
    own = int(case.slots[-1])
    found = case.engine.ask(TopK("part", SlotKeys(np.array([own])), k=1)).scores[0][0]
    assert found == np.float32(max(oracle.scores(case.keys, case.keys[-1])))
    with pytest.raises(NotFound) as caught:
        case.engine.ask(TopK("part", SlotKeys(np.array([own, missing]))))
    assert str(caught.value) == (
        f"Layer 'part' has no key for slot {missing}: it was not called there. "
        "Pass slots that it has, such as the hits of a search in layer 'part'."
    )


def test_a_column_that_is_null_in_all_slots_of_a_layer_is_an_error():
    keys = {"whole": np.ones((4, 2), np.float32), "part": np.ones((2, 2), np.float32)}
    memory = arrays.memory(keys, {"label": [1, 2, None, None], "dataset": [None] * 4}, entries={"part": [2, 3]})
    engine = arrays.engine(memory)
    assert engine.topk("whole", [1, 1], where="label = 1").slots[0].tolist() == [0]
    with pytest.raises(NotFound) as caught:
        engine.topk("part", [1, 1], where="label = 1")
    assert str(caught.value) == (
        "Column 'label' is NULL in all slots of layer 'part' (space 'sample'). Other layers of space 'sample' have it."
    )
    with pytest.raises(NotFound, match=r"Column 'position' is NULL in all .* No space has it\."):
        engine.topk("whole", [1, 1], where="position < 3")
    with pytest.raises(NotFound, match="Column 'dataset' is NULL in all slots of layer 'whole'"):
        engine.topk("whole", [1, 1], where="label = 1 OR dataset LIKE 'x%'")
    assert engine.topk("part", [1, 1], where="label IS NULL").slots[0].tolist() == [2, 3]
    assert engine.topk("part", [1, 1], where="label IS NULL AND slot > 2").slots[0].tolist() == [3]


@pytest.mark.parametrize(
    "where",
    [
        "label IS NOT NULL",
        "label IS NOT NULL AND slot >= 0",
        "NOT (label IS NULL)",
        "NOT (label IS NULL) AND slot >= 0",
        "CASE WHEN label IS NULL THEN false ELSE true END",
        "(label IS NULL) = false",
        "coalesce(label, 0) = 1",
        "label IS DISTINCT FROM NULL",
    ],
)
def test_a_mask_that_asks_a_layer_for_what_is_nowhere_said_of_it_is_an_error(where):
    keys = {"whole": np.ones((4, 2), np.float32), "part": np.ones((2, 2), np.float32)}
    columns = {"label": [1, 2, None, None], "dataset": [None] * 4}
    initial = {f"{layer}.weight": np.zeros((1, 2), np.float32) for layer in keys}
    initial |= {f"{layer}.bias": np.zeros(1, np.float32) for layer in keys}
    values = {layer: np.ones((len(rows), 1), np.float32) for layer, rows in keys.items()}
    engine = arrays.engine(arrays.memory(keys, columns, entries={"part": [2, 3]}, values=values, initial=initial))
    assert engine.topk("whole", [1, 1], where=where).slots[0].tolist() in ([0], [0, 1])
    said = (
        "Column 'label' is NULL in all slots of layer 'part' (space 'sample'). Other layers of space 'sample' have it."
    )
    for ask in (lambda: engine.topk("part", [1, 1], where=where), lambda: engine.weights(where)):
        with pytest.raises(NotFound) as caught:
            ask()
        assert str(caught.value) == said
