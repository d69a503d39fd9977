"""Tables say what was found: no wrong answer looks like a time, and no absence like a success."""

from __future__ import annotations

import json

import pytest
from benchmarks import document, words
from benchmarks.result import OURS, Cell, Row, Section, Target, fastest_peer

RUN = {
    "quick": True,
    "slots": 48_000,
    "backend": "automatic",
    "data": "generated",
    "machine": {"processor": "some"},
    "versions": {"numpy": "2.4"},
    "date": "2026-01-01",
}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(2.5e-6, "2.50 µs"), (45e-6, "45.0 µs"), (0.0123, "12.3 ms"), (0.99999, "1.00 s"), (123.4, "123 s")],
)
def test_durations(seconds, said):
    assert words.duration(seconds) == said


def test_the_fastest_peer_is_one_whose_answer_is_right():
    cells = {
        OURS: Cell(0.001),
        f"{OURS}, no mask": Cell(0.002),
        "wrong": Cell(0.01, wrong="slots"),
        "absent": Cell(why_not="not installed"),
        "slow": Cell(0.3),
        "right": Cell(0.2),
    }
    assert fastest_peer(cells) == ("right", 0.2)
    assert fastest_peer({OURS: Cell(0.001)}) is None


def test_targets_bound_from_above_or_from_below():
    assert Target("at most", 0.5).met(0.5)
    assert not Target("at most", 0.5).met(0.51)
    assert Target("at least", 8).met(8)
    assert not Target("at least", 8).met(7.9)


def test_a_wrong_answer_meets_no_target():
    row = Row("q", {OURS: Cell(1.0, wrong="a score is off")}, "peer", 10.0, 0.1, Target("at most", 0.5))
    assert row.met is False


def section() -> Section:
    rows = [
        Row(
            "fast one",
            {OURS: Cell(0.001), "peer": Cell(0.01), "liar": Cell(0.0001, wrong="slot 3 is wrong")},
            "fastest peer: peer",
            0.01,
            0.1,
            Target("at most", 0.5),
            "fast",
        ),
        Row("slow one", {OURS: Cell(1.0), "peer": Cell(why_not="no search")}, "peer", 0.5, 2.0, Target("at most", 1)),
        Row("absent one", {OURS: Cell(why_not="needs data")}, target=Target("at most", 1), short="absent"),
    ]
    return Section("topk", "Top", rows, {"fact": "3 things"}, notes=["A note."], date="2026-01-01")


def test_the_document_says_what_was_found(tmp_path):
    document.write(tmp_path, {**RUN, "sections": {"topk": json.loads(json.dumps(section().to_json()))}})
    text = (tmp_path / "benchmarks.md").read_text()
    assert "| fast one | 1.00 ms | fastest peer: peer: 10.0 ms | 0.10 | at most 0.5 | yes |" in text
    assert "| slow one | 1.00 s | peer: 500 ms | 2.00 | at most 1 | **no** |" in text
    assert "| absent one | no | — | — | at most 1 | not measured |" in text
    assert "**wrong** (100 µs)" in text
    assert "slot 3 is wrong" in text
    assert "no search" in text
    assert "needs data" in text
    assert "python -m benchmarks --quick --only topk" in text
    assert (tmp_path / "benchmarks.png").stat().st_size > 1000


def test_a_section_survives_json():
    before = section()
    assert Section.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_tables_hold_one_line_a_row():
    assert list(document.table(["a", "b"], [["x | y", "two\nlines"]])) == [
        "| a | b |",
        "| --- | --- |",
        "| x \\| y | two lines |",
        "",
    ]
