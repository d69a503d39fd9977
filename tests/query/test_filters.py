"""Filters with bound values and ids keep what SQL with literals keeps, and refuse what could mean two things."""

from __future__ import annotations

from itertools import permutations

import duckdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dualform.errors import BadMask, DualformError, EmptyMask
from dualform.query.where import expression
from dualform.questions import Filter, TopK
from tests.query import arrays

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


@pytest.mark.parametrize(
    "where",
    [
        ("sample IN ?", 5),
        ("label IN ?", "3"),
        ("label NOT IN ?", 3.0),
        ("NOT label IN ?", None),
        ("dataset IN ?", "first"),
        ("(dataset) IN ?", "the first"),
        ("note IN ? AND label = ?", "1", 2),
        "dataset IN 'first'",
        "label IN 3",
    ],
)
def test_one_value_after_in_is_refused(engine, where):
    """SQL reads it as a search within a text, which finds "ban" in "banana"."""
    with pytest.raises(BadMask, match="one value after IN, which SQL reads as a search within it"):
        engine.topk("fc", [1.0], where=where)


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


NO_UNICODE = [
    "note = '\ud800'",
    "\ud800",
    ("note = ? \udfff", 1),
    ("note = ?", "\ud800"),
    ("note LIKE ?", "\ud800%"),
    ("note IN ?", ["1", "\ud800"]),
    ("dataset = ?", "\ud800"),
    ("dataset IN ?", ["\ud800"]),
    {"sample": ["\ud800"]},
]


@pytest.mark.parametrize("where", NO_UNICODE, ids=ascii)
def test_what_is_no_unicode_is_refused_plainly(engine, where):
    with pytest.raises(BadMask) as refused:
        engine.topk("fc", [1.0], where=where)
    assert refused.value.field == "where"


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
