"""Tables say what was found: no wrong answer looks like a time, and no absence like a success."""

from __future__ import annotations

import json

import pytest
from benchmarks import document
from benchmarks.__main__ import alike, main
from benchmarks.harness import OURS, Cell, Row, Section, Target
from click.testing import CliRunner

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
    assert document.duration(seconds) == said


def section() -> Section:
    rows = [
        Row(
            "fast one",
            {OURS: Cell(0.001), "peer": Cell(0.01), "liar": Cell(0.0001, wrong="slot 3 is wrong")},
            "fastest peer: peer",
            0.01,
            0.1,
            Target("at most", 0.5),
        ),
        Row("slow one", {OURS: Cell(1.0), "peer": Cell(why_not="no search")}, "peer", 0.5, 2.0, Target("at most", 1)),
        Row("absent one", {OURS: Cell(why_not="needs data")}, target=Target("at most", 1)),
    ]
    return Section("topk", "Top", rows, {"fact": "3 things"}, notes=["A note."], date="2026-01-01")


def written(tmp_path, sections) -> tuple[str, str]:
    """The page and the report that are written again of a run with these sections."""
    plain = {name: json.loads(json.dumps(one.to_json())) for name, one in sections.items()}
    (tmp_path / "benchmarks.json").write_text(json.dumps({**RUN, "sections": plain}))
    report = tmp_path / "build" / "report.md"
    done = CliRunner().invoke(main, ["--again", "--out", str(tmp_path), "--report", str(report)])
    assert done.exit_code == 0, done.output
    return (tmp_path / "benchmarks.md").read_text(), report.read_text()


def test_a_first_answer_without_a_target_is_on_the_page(tmp_path):
    row = Row("the very first", {OURS: Cell(2.0), "a pass": Cell(1.0)}, "a pass", 1.0, 2.0)
    absent = Row("not compared", {OURS: Cell(3.0)})
    for name, stands in (("cold", True), ("topk", False)):
        text, _ = written(tmp_path, {name: Section(name, "Some", [row, absent], date="2026-01-01")})
        assert ("| the very first | 2.00 s | a pass: 1.00 s | 2.00 |" in text) == stands
        assert "| not compared |" not in text


def test_the_page_says_what_was_missed_before_what_was_met(tmp_path):
    text, report = written(tmp_path, {"topk": section()})
    parts = [
        "## Targets missed",
        "| slow one | 1.00 s | peer: 500 ms | 2.00 | at most 1 |",
        "| absent one | — | — | — | at most 1 (not measured) |",
        "## Targets met",
        "| fast one | 1.00 ms | fastest peer: peer: 10.0 ms | 0.10 | at most 0.5 |",
        "(benchmarks.png)",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert (tmp_path / "benchmarks.png").stat().st_size > 1000
    for said in (
        "| fast one | dualform | 1.00 ms | 0.10 fastest peer: peer: 10.0 ms |  |",
        "| fast one | peer | 10.0 ms | 10.00 x |  |",
        "| fast one | liar | **wrong** (100 µs) |  | slot 3 is wrong |",
        "| slow one | peer | — |  | no search |",
        "| absent one | dualform | — |  | needs data |",
        "python -m benchmarks --quick --only",
    ):
        assert said in report


def test_of_the_targets_that_a_section_meets_the_nearest_is_on_the_page(tmp_path):
    ratios = {"a": 0.1, "b": 0.9, "c": 0.2, "d": 0.8, "e": 0.7, "least": 10.0}
    rows = [
        Row(name, {OURS: Cell(ratio)}, "peer", 1.0, ratio, Target("at least" if ratio > 1 else "at most", 1.0))
        for name, ratio in ratios.items()
    ]
    text, report = written(tmp_path, {"topk": Section("topk", "Top", rows)})
    assert [name for name in ratios if f"| {name} |" in text] == ["b"]
    assert all(f"| {name} |" in report for name in ratios)


def test_the_summary_that_is_written_by_hand_stays(tmp_path):
    written(tmp_path, {"topk": section()})
    page = tmp_path / "benchmarks.md"
    page.write_text(page.read_text().replace("# Benchmarks\n", "# Benchmarks\n\nBy hand.\n"))
    assert written(tmp_path, {"topk": section()})[0].startswith("# Benchmarks\n\nBy hand.\n\n<!--")


FELT = {
    "cold": [
        Row("topk", {OURS: Cell(0.5), "FAISS": Cell(1.0)}, "FAISS", 1.0, ratio=0.5, target=Target("at most", 0.6))
    ],
    "recording": [
        Row(
            "training",
            {OURS: Cell(1.2, 1.1, worst=1.4)},
            "unrecorded",
            1.0,
            ratio=1.2,
            ratios=(1.1, 1.4),
            target=Target("at most", 1.1),
        )
    ],
    "serving": [Row("64 clients", {OURS: Cell(0.002)}, "one", 0.016, ratio=8.0, target=Target("at least", 8))],
    "memory": [
        Row("idle", {OURS: Cell(bytes=3e8)}, target=Target("at most", 4e8, "bytes")),
        Row("whole run", {OURS: Cell(why_not="no report")}, target=Target("at most", 6e9, "bytes")),
    ],
}


def test_the_page_has_what_a_person_feels(tmp_path):
    text, _ = written(
        tmp_path, {name: Section(name, name.title(), rows, date="2026-01-01") for name, rows in FELT.items()}
    )
    parts = ["benchmarks-summary.png", "| training |", "| whole run | — | — | — | at most 6 GB (not measured) |"]
    parts += ["| topk | 500 ms", "| 64 clients |", "| idle | 300 MB | — | — | at most 400 MB |"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert (tmp_path / "benchmarks-summary.png").stat().st_size > 1000


def test_what_was_not_measured_is_not_drawn(tmp_path):
    text, _ = written(tmp_path, {"recording": Section("recording", "Recording", [FELT["recording"][0]])})
    assert "benchmarks-summary.png" in text
    assert "Targets met" not in text
    for path in tmp_path.glob("*.png"):
        path.unlink()
    text, _ = written(tmp_path, {"growth": Section("growth", "Growth", facts={"reading": "1 s"})})
    assert ".png" not in text
    assert not list(tmp_path.glob("*.png"))


def test_a_page_is_not_written_of_no_run(tmp_path):
    done = CliRunner().invoke(main, ["--again", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "There is no" in done.output


def test_spreads_and_bytes_are_printed():
    (row,) = FELT["recording"]
    assert document.figure_of(row.ours) == "1.20 s (1.10 s to 1.40 s)"
    assert (document.beside_of(row), document.ratio_of(row)) == ("unrecorded: 1.00 s", "1.20 (1.10 to 1.40)")
    assert document.figure_of(Cell(bytes=3e8, wrong="an answer was")) == "**wrong** (300 MB)"


@pytest.mark.parametrize(
    ("cell", "target", "bound", "met"),
    [
        (Cell(bytes=3e8), Target("at most", 4e8, "bytes"), "at most 400 MB", True),
        (Cell(bytes=5e8), Target("at most", 4e8, "bytes"), "at most 400 MB", False),
        (Cell(bytes=3e8, wrong="an answer was"), Target("at most", 4e8, "bytes"), "at most 400 MB", False),
        (Cell(0.2), Target("at most", 0.3, "s"), "at most 300 ms", True),
        (Cell(4.6), Target("at most", 4.5, "s"), "at most 4.5 s", False),
        (Cell(why_not="no report"), Target("at most", 6e9, "bytes"), "at most 6 GB", None),
    ],
)
def test_a_target_may_be_seconds_or_bytes(cell, target, bound, met):
    row = Row("question", {OURS: cell}, target=target)
    assert (row.met, document.target_of(row), document.beside_of(row), document.ratio_of(row)) == (met, bound, "", "")


def test_a_section_survives_json():
    for rows in FELT.values():
        one = Section("recording", "Recording", rows)
        assert Section.from_json(json.loads(json.dumps(one.to_json()))) == one
    before = section()
    assert Section.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_tables_hold_one_line_a_row():
    table = document.table(["a", "b"], [["x | y", "two\nlines"]])
    assert table == "| a | b |\n| --- | --- |\n| x \\| y | two lines |"


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"versions": {"numpy": "2.4"}}, True),
        ({"versions": {"numpy": "2.5", "lancedb": "0.4"}}, False),
        ({"slots": 2}, False),
        ({"machine": {"cores": "4"}}, False),
    ],
)
def test_figures_stand_together_where_size_machine_and_versions_are_the_same(changed, same):
    earlier = {"slots": 1, "machine": {"cores": "2"}, "versions": {"numpy": "2.4", "lancedb": "0.4"}}
    assert alike({**earlier, "sections": {}, "date": "today"}, {**earlier, **changed}) is same
