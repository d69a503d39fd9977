"""Answers as tables: what they print, and what pandas, polars and pyarrow take them for."""

from __future__ import annotations

import html
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy import ma

from dualform.answers import (
    Cancellation,
    Columns,
    Concentration,
    Contributions,
    Distributions,
    GroupSums,
    Hits,
    LayerInfo,
    Ledger,
    MemoryInfo,
    Outputs,
    Previews,
    QuerySet,
    QuerySetInfo,
    Reconstruction,
    Reconstructions,
    Scan,
    Status,
    Weights,
)

HITS = Hits(
    ids=np.array([7, 3, 9, 3, 1]),
    flat_scores=np.array([0.5, 0.25, 0.125, 4.0, 2.0], dtype=np.float32),
    counts=np.array([[2, 1], [0, 2]]),
    groups=((1, "a"), (None, "b")),
    by=("label", "dataset"),
    space="sample",
)
PLAIN = Hits(np.array([7, 3, 9]), np.array([3.0, 2.0, 1.0], dtype=np.float32), np.array([[2], [1]]), space="token")
SUMS = GroupSums(((0,), (1,), (None,)), np.array([[1.5, -2.5, 0.5], [3.0, 0.0, 9.0]]), np.array([4, 5, 6]), ("label",))
TERMS = Contributions(
    groups=((0,), (1,)),
    sums=np.arange(12.0).reshape(2, 2, 3),
    counts=np.array([4, 5]),
    initial=np.full((2, 3), 20.0),
    bias=np.array([30.0, 31.0, 32.0]),
    unrecorded_change=np.full((2, 3), 40.0),
    residual=np.full((2, 3), 50.0),
    by=("label",),
)
SPREAD = Distributions(
    np.array([1, 2, 4]),
    np.array([[3.0, 0.5, -0.5], [0.0, 0.0, 0.0]], dtype=np.float32),
    np.array([[3.0, 3.5, 4.0], [0.0, 0.0, 0.0]]),
    np.array([4.0, 0.0]),
    np.array([1.6, 0.0]),
    4,
    space="token",
)
LEDGER = Ledger(
    "test",
    ((0,), (1,)),
    np.array([[1.0, -3.0]]),
    np.array([4, 5]),
    np.array([5.0]),
    np.array([3.5]),
    {"decay": np.array([0.25])},
    np.array([0.25]),
    ("sample",),
)
RECONSTRUCTIONS = Reconstructions({
    "a": Reconstruction(1e-7, Status("exact")),
    "b": Reconstruction(None, Status("scores only", reason="no values")),
})  # fmt: skip
INFO = MemoryInfo(
    format=1,
    snapshot=2,
    recording=False,
    slots={"sample": 12},
    steps=3,
    optimizer="SGD",
    layers=(LayerInfo("0", 4, 3, True, "sample", 12, 12, True, Status("exact")),),
    skipped={},
    datasets={},
    columns={},
    query_sets=(QuerySetInfo("test", 1000, ("0",)),),
)
TWO = np.array([5, 9]), np.array([True, False])
PICTURES = Previews(TWO[0], "images", TWO[1], images=(b"\x89PNG\r\n\x1a\n<script>", None))
PASSAGES = Previews(TWO[0], "texts", TWO[1], texts=("<script>alert(1)</script>", None))
FEATURES = Previews(
    TWO[0], "table", TWO[1], columns={"age": ma.array([30, 0], mask=[False, True]), "sample": np.array([0.5, 1.5])}
)
COLUMNS = Columns({
    "step": np.array([1, 2, 3]),
    "label": ma.array([4, 5, 6], mask=[False, True, False]),
    "text": np.array(["a", None, "<b>"], dtype=object),
})  # fmt: skip
ROWS = {
    "hits": (HITS, [
        {"query": 0, "rank": 1, "label": 1, "dataset": "a", "slot": 7, "score": 0.5},
        {"query": 0, "rank": 2, "label": 1, "dataset": "a", "slot": 3, "score": 0.25},
        {"query": 0, "rank": 1, "label": None, "dataset": "b", "slot": 9, "score": 0.125},
        {"query": 1, "rank": 1, "label": None, "dataset": "b", "slot": 3, "score": 4.0},
        {"query": 1, "rank": 2, "label": None, "dataset": "b", "slot": 1, "score": 2.0},
    ]),
    "hits without groups": (PLAIN, [
        {"query": 0, "rank": 1, "slot": 7, "score": 3.0},
        {"query": 0, "rank": 2, "slot": 3, "score": 2.0},
        {"query": 1, "rank": 1, "slot": 9, "score": 1.0},
    ]),
    "sums": (SUMS, [
        {"query": query, "label": label, "sum": total, "count": count}
        for query, row in enumerate([[1.5, -2.5, 0.5], [3.0, 0.0, 9.0]])
        for label, total, count in zip((0, 1, None), row, (4, 5, 6), strict=True)
    ]),
    "largest sums": (SUMS.of_largest(1), [
        {"query": 0, "label": 1, "sum": -2.5, "count": 5}, {"query": 1, "label": None, "sum": 9.0, "count": 6},
    ]),
    "contributions": (TERMS, [
        {"query": query, "term": term, "label": label, "output": output, "contribution": value, "count": count}
        for query in range(2)
        for term, label, count, of_outputs in (
            ("group", 0, 4, [6.0 * query, 6.0 * query + 1, 6.0 * query + 2]),
            ("group", 1, 5, [6.0 * query + 3, 6.0 * query + 4, 6.0 * query + 5]),
            ("initial", None, None, [20.0] * 3),
            ("bias", None, None, [30.0, 31.0, 32.0]),
            ("unrecorded_change", None, None, [40.0] * 3),
            ("residual", None, None, [50.0] * 3),
        )
        for output, value in enumerate(of_outputs)
    ]),
    "distributions": (SPREAD, [
        {"query": 0, "rank": 1, "score": 3.0, "cumulative": 3.0, "share": 0.75},
        {"query": 0, "rank": 2, "score": 0.5, "cumulative": 3.5, "share": 0.875},
        {"query": 0, "rank": 4, "score": -0.5, "cumulative": 4.0, "share": 1.0},
        *({"query": 1, "rank": rank, "score": 0.0, "cumulative": 0.0, "share": 0.0} for rank in (1, 2, 4)),
    ]),
    "ledger": (LEDGER, [
        {"example": 0, "term": "group", "sample": 0, "contribution": 1.0},
        {"example": 0, "term": "group", "sample": 1, "contribution": -3.0},
        {"example": 0, "term": "decay", "sample": None, "contribution": 0.25},
        {"example": 0, "term": "residual", "sample": None, "contribution": 0.25},
    ]),
    "reconstructions": (RECONSTRUCTIONS, [
        {"layer": "a", "status": "exact", "reconstruction_error": 1e-7, "reason": ""},
        {"layer": "b", "status": "scores only", "reconstruction_error": None, "reason": "no values"},
    ]),
    "reconstruction": (RECONSTRUCTIONS["a"], [{"status": "exact", "reconstruction_error": 1e-7, "reason": ""}]),
    "images": (PICTURES, [
        {"sample": 5, "image": b"\x89PNG\r\n\x1a\n<script>"}, {"sample": 9, "image": None},
    ]),
    "texts": (PASSAGES, [{"sample": 5, "text": "<script>alert(1)</script>"}, {"sample": 9, "text": None}]),
    "rows": (FEATURES, [
        {"sample_": 5, "age": 30, "sample": 0.5}, {"sample_": 9, "age": None, "sample": 1.5},
    ]),
    "info": (INFO, [
        {"layer": "0", "space": "sample", "d_in": 4, "d_out": 3, "slots": 12, "values": True, "status": "exact"},
    ]),
}  # fmt: skip


def records(frame):
    """Rows of a DataFrame, what is missing as None."""
    return [
        {name: None if pd.isna(value) else value for name, value in row.items()} for row in frame.to_dict("records")
    ]


@pytest.mark.parametrize(("answer", "expected"), ROWS.values(), ids=ROWS)
def test_an_answer_is_its_rows_wherever_it_goes(answer, expected):
    assert answer.rows == len(expected)
    assert answer.table().records() == expected
    assert answer.table(1).records() == expected[:1]
    assert answer.table(0).rows == 0
    assert answer.to_arrow().to_pylist() == expected
    assert pa.table(answer).to_pylist() == expected
    # Reconstruction errors are a mapping by layer, which polars looks for first.
    assert pl.DataFrame(answer.to_arrow()).to_dicts() == expected
    assert isinstance(answer, Reconstructions) or pl.DataFrame(answer).to_dicts() == expected
    assert records(answer.to_pandas()) == expected


@pytest.mark.parametrize(("answer", "expected"), ROWS.values(), ids=ROWS)
def test_it_prints_its_rows_and_a_notebook_shows_them(answer, expected):
    printed, shown_html = repr(answer), answer._repr_html_()
    if isinstance(answer, Contributions):  # which shows a row a term, and its outputs beside each other
        return
    assert printed.splitlines()[0] == answer.title()
    assert printed.splitlines()[1].split() == [*expected[0]]
    assert all(f"<th>{name}</th>" in shown_html for name in expected[0])
    shown, more = (len(expected), "") if len(expected) <= 12 else (10, f"… {len(expected) - 10} more rows")
    assert len(printed.splitlines()) == 2 + shown + bool(more)
    assert shown_html.count("<tr>") == 1 + shown
    assert more in printed
    assert more in shown_html


def test_columns_are_a_table_to_all_who_take_tables():
    expected = [
        {"step": 1, "label": 4, "text": "a"}, {"step": 2, "label": None, "text": None},
        {"step": 3, "label": 6, "text": "<b>"},
    ]  # fmt: skip
    assert [*COLUMNS] == COLUMNS.records() == expected
    assert len(COLUMNS) == COLUMNS.rows == 3
    assert COLUMNS.keys() == ("step", "label", "text")
    assert "label" in COLUMNS
    assert "rows" not in COLUMNS
    assert dict(COLUMNS) == COLUMNS.arrays
    assert records(pd.DataFrame(COLUMNS)) == records(COLUMNS.to_pandas()) == expected
    assert pa.table(COLUMNS).to_pylist() == expected
    assert pl.DataFrame(COLUMNS).to_dicts() == expected


def test_columns_print_cells_and_what_a_memory_holds_is_text():
    assert repr(COLUMNS).splitlines() == ["step  label  text", "   1      4  a", "   2      -  -", "   3      6  <b>"]
    assert "&lt;b&gt;" in COLUMNS._repr_html_()
    assert "<b>" not in COLUMNS._repr_html_()
    strange = Columns({"te\x1b[2Jxt": np.array(["a\nb\x1b[31m" + "x" * 100], object)})
    for shown in (repr(strange), strange._repr_html_()):
        assert "\x1b" not in shown
        assert "x" * 100 not in shown
    assert len(repr(strange).splitlines()) == 2
    assert repr(Columns({})).strip() == "(no rows)"
    assert repr(Columns({"a": np.zeros(0)})) == "a\n(no rows)"
    assert "No rows." in Columns({"a": np.zeros(0)})._repr_html_()


def test_hits_are_joined_with_what_the_memory_says_of_their_slots():
    class Memory:
        asked = 0

        def slots(self, hits):
            self.asked += 1
            return Columns({"slot": hits.ids, "step": hits.ids * 10, "label": np.arange(5), "rank": hits.ids + 100})

    memory = Memory()
    rows = HITS.joined(memory).records()
    assert memory.asked == 1
    assert rows[1] == {
        "query": 0, "rank_": 2, "label": 1, "dataset": "a", "slot": 3, "score": 0.25, "step": 30, "rank": 103,
    }  # fmt: skip
    empty = Hits(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((1, 1), np.int64))
    assert empty.joined(memory).rows == 0
    assert memory.asked == 1


def test_answers_are_gone_through_query_by_query():
    first, second = HITS
    assert [(hit.rank, hit.slot, hit.score, hit.group) for hit in first] == [
        (1, 7, 0.5, (1, "a")), (2, 3, 0.25, (1, "a")), (1, 9, 0.125, (None, "b")),
    ]  # fmt: skip
    assert [hit.slot for hit in second] == [3, 1]
    assert [[hit.slot for hit in own] for own in PLAIN] == [[7, 3], [9]]
    assert [*SUMS] == [SUMS.ranked(0), SUMS.ranked(1)]
    assert len(SUMS) == len(TERMS) == 2
    assert [own.output.tolist() for own in TERMS] == TERMS.output[:, None].tolist()
    assert [own.scores.tolist() for own in SPREAD] == SPREAD.scores[:, None].tolist()
    assert [own.effective_slots.tolist() for own in SPREAD] == [[1.6], [0.0]]
    assert [*LEDGER] == [LEDGER.best(0, 2)]
    assert [layer.name for layer in INFO] == ["0"]


def test_images_are_shown_as_images_and_texts_as_texts():
    shown = PICTURES._repr_html_()
    assert '<img alt="sample 5" src="data:image/png;base64,iVBORw0KGgo8c2NyaXB0Pg==" style="' in shown
    assert "<tr><td>9</td><td>-</td></tr>" in shown
    assert "script>" not in shown + PASSAGES._repr_html_().replace("&lt;script&gt;", "").replace("&lt;/script&gt;", "")
    assert repr(PICTURES).splitlines()[1:] == ["sample  image", "     5  a PNG of 16 bytes", "     9  -"]
    many = Previews(np.arange(30), "images", np.zeros(30, dtype=bool), images=(None,) * 30)
    assert many._repr_html_().count("<td>-</td>") == 10
    assert "… 20 more rows" in many._repr_html_()


def test_contributions_show_a_row_a_term_and_what_no_group_has_first():
    lines = [line.split() for line in repr(TERMS).splitlines()[1:]]
    assert lines[0] == ["query", "term", "label", "count", "output", "0", "output", "1", "output", "2"]
    others = [["20"] * 3, ["30", "31", "32"], ["40"] * 3, ["50"] * 3]
    groups = [["0", "1", "2"], ["3", "4", "5"]]
    assert lines[1:5] == [
        ["0", term, "-", "-", *own]
        for term, own in zip(("initial", "bias", "unrecorded_change", "residual"), others, strict=True)
    ]
    assert lines[5:7] == [["0", "group", str(g), str(4 + g), *own] for g, own in enumerate(groups)]
    parts = {name: np.zeros((2, 9)) for name in ("initial", "unrecorded_change", "residual")}
    wide = replace(TERMS, sums=np.zeros((2, 0, 9)), groups=(), counts=np.zeros(0, np.int64), bias=np.zeros(9), **parts)
    assert "9 outputs (the first 6 are shown)" in repr(wide)
    assert repr(wide).splitlines()[1].endswith("output 5")


SCAN = Scan(3, 1320, 20, "int8", 0.1)


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        (replace(PLAIN, scan=SCAN), "Hits: 2 queries, 3 hits among 20 of 1,320 slots of space 'token'"),
        (replace(PLAIN, status=Status("approximate", 0.5, since=3)), "; the layer's record is approximate since step "
        "3, error 5.0e-01"),
        (replace(PLAIN, scan=replace(SCAN, share=0.5, missing=("shard-00001",))), "without those of shard-00001"),
        (replace(SUMS, scan=SCAN, space="sample"), "3 groups of 20 of 1,320 slots of space 'sample'"),
        (replace(SUMS.of_largest(1), scan=SCAN), "; the 1 largest of each query"),
        (RECONSTRUCTIONS, "2 layers, 1 of them exact; reconstruction_error is ||W_T - rebuilt|| / ||W_T - W_0||"),
        (replace(INFO, datasets={"m": 12}), "12 sample slots; query sets: test (1,000); datasets (slots): m (12)"),
        (replace(INFO, datasets=dict.fromkeys("abcdefg", 1)), "e (1), and 2 more"),
        (replace(INFO, skipped={"n": "no tap"}), "; 1 layer not recorded (.skipped)"),
    ],
)  # fmt: skip
def test_a_title_says_what_was_asked_of_how_much(answer, title):
    assert title in repr(answer).splitlines()[0]
    assert html.escape(title) in answer._repr_html_()


def test_outputs_weights_query_sets_and_cancellation_show_themselves():
    outputs = Outputs(np.array([[1, 5, 2], [7, 0, 0]], np.float32), "sample", Status("exact"), scan=SCAN)
    assert repr(outputs).splitlines() == [
        "Outputs: 2 queries, 3 outputs, of 20 of 1,320 slots of space 'sample'; the layer's record is exact",
        "query  largest  output 0  output 1  output 2",
        "    0        1         1         5         2",
        "    1        0         7         0         0",
    ]
    softmax = replace(outputs, kernel="softmax", temperature=0.5, effective_slots=np.array([2.5, 3.0]), initial=False)
    assert "weighed by a softmax at temperature 0.5, without W_0 and bias" in repr(softmax)
    assert "effective slots" in softmax._repr_html_()
    weights = Weights(
        {"a.<b>": np.zeros((2, 3), np.float32), "n": np.array(7)}, {"a": Status("approximate")}, {"a": 0.0}, ("n",)
    )
    assert [line.split() for line in repr(weights).splitlines()[2:]] == [
        ["a.<b>", "2", "x", "3", "float32"], ["n", "scalar", "int64"],
    ]  # fmt: skip
    assert "2 tensors; 1 layer not exact (.statuses); 1 tensor not recorded (.remark)" in repr(weights)
    assert "a.&lt;b&gt;" in weights._repr_html_()
    query_set = QuerySet("test", np.array([3, -1]), np.array([[0, 1], [1, 0]], np.float32))
    assert [line.split() for line in repr(query_set).splitlines()[2:]] == [["0", "3", "1"], ["1", "-", "0"]]
    assert repr(QuerySet("bare", None, None)).splitlines() == ["Query set 'bare': no labels", "example", "(no rows)"]
    cancelled = Cancellation({"a": 12.5}, concentrations={"b": Concentration(0.75, 2.5)})
    assert [line.split() for line in repr(cancelled).splitlines()[2:]] == [
        ["a", "12.5", "-", "-"],
        ["b", "-", "0.75", "2.5"],
    ]
    for shown in (outputs, weights, query_set, cancelled):
        assert shown._repr_html_().startswith("<table>")


def test_on_a_terminal_columns_that_have_no_room_stand_below(monkeypatch):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "20")
    table = Columns({"first": np.array([1]), "second": np.array(["x" * 15], object), "third": np.array([3])})
    assert repr(table).splitlines() == ["first", "    1", "", "second", "x" * 15, "", "third", "    3"]


WIDE = 2**53 + 1
"""A whole number that no float64 has."""


@pytest.mark.parametrize(
    ("values", "dtype", "kind"),
    [
        ([WIDE, None, -WIDE], np.int64, pa.int64()),
        ([2**64 - 1, None, 0], np.uint64, pa.uint64()),
        ([7, None, -7], np.int32, pa.int32()),
        ([0.5, None, float("nan")], np.float32, pa.float32()),
        ([True, None, False], np.bool_, pa.bool_()),
        ([None, None, None], np.int64, pa.int64()),
    ],
    ids=["wide", "unsigned", "narrow", "floats", "flags", "nothing but NULL"],
)
def test_a_column_with_nulls_keeps_its_type_and_every_digit(values, dtype, kind):
    column = ma.array([value or 0 for value in values], dtype, mask=[value is None for value in values])
    given = Columns({"a": column})
    found = given.to_arrow()["a"]
    assert found.type == kind
    assert list(map(str, found.to_pylist())) == list(map(str, pl.DataFrame(given)["a"])) == list(map(str, values))
    frame = given.to_pandas()["a"]
    assert [None if own is None else str(own) for own in frame.astype(object).where(frame.notna(), None)] == [
        None if value is None or value != value else str(value) for value in values
    ]


def test_groups_of_wide_numbers_keep_their_digits():
    sums = GroupSums(((WIDE,), (None,)), np.zeros((1, 2)), np.array([4, 5]), ("sample",))
    assert sums.to_pandas()["sample"].tolist() == [WIDE, pd.NA]


def test_an_answers_column_gives_way_to_each_of_a_users_names():
    hits = Hits(np.array([7]), np.array([3.0], np.float32), np.array([[1]]), ((5, 6),), ("rank", "rank_"))
    assert hits.table().records() == [{"query": 0, "rank__": 1, "rank": 5, "rank_": 6, "slot": 7, "score": 3.0}]
