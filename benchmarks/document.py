"""benchmarks.md and its two pictures, from what a run found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import figure, summary, words
from benchmarks.result import OURS, Cell, Row, Section
from benchmarks.sections import FELT, REPEATED, SECTIONS

COLUMNS = 3
"""Questions beside each other: more make a table too wide to read."""


def write(out: Path, run: Mapping[str, Any]) -> None:
    sections = [Section.from_json(run["sections"][name]) for name in SECTIONS if name in run["sections"]]
    (out / "benchmarks.md").write_text("\n".join(_lines(out, run, sections)) + "\n")


def _lines(out: Path, run: Mapping[str, Any], sections: Sequence[Section]) -> Iterator[str]:
    command = "make bench-quick" if run["quick"] else "make bench"
    felt = [section for section in sections if section.name in FELT]
    repeated = [section for section in sections if section.name in REPEATED]
    yield from ("# Benchmarks", "")
    if summary.draw(out / "benchmarks-summary.png", felt):
        yield from (f"![{summary.TITLE}](benchmarks-summary.png)", "")
        machine = ", ".join(
            f"{name} {run['machine'][name]}" for name in ("processor", "cores") if name in run["machine"]
        )
        yield from (f"*{summary.TITLE}; {machine}. [How it is measured](#how-it-is-measured).*", "")
    for heading, some in (("What a person feels", felt), ("Questions that are asked again", repeated)):
        if rows := list(_compared(some)):
            yield from (f"## {heading}", "")
            yield from table(["question", "dualform", "beside", "ratio", "target", "met"], rows)
    if figure.draw(out / "benchmarks.png", repeated):
        yield from ("![The time of each contestant, question by question](benchmarks.png)", "")
    yield from ("## How it is measured", "")
    yield f"Written by `{command}` on {run['date']}. Do not edit."
    yield "A section that was measured again, by the command that it names, stands in place of the run's own."
    yield ""
    yield from _reading(run)
    yield from table(["machine", ""], [[name, value] for name, value in run["machine"].items()])
    yield ", ".join(f"{name} {version}" for name, version in run["versions"].items()) + "."
    yield ""
    for section in sections:
        yield from _section(section, run)


def _reading(run: Mapping[str, Any]) -> Iterator[str]:
    yield (f"T = {run['slots']:,} slots, where a row does not say otherwise; {run['data']}.")
    yield ""
    yield (
        "Times are medians; contestants take turns within one race, on all cores, with the keys already in the form "
        "they like best. Every answer, ours and each peer's, is compared with a float64 oracle in the same run: ours "
        "must name the same slots in the same order, a peer's may differ where float32 cannot tell. A wrong answer is "
        "called **wrong** in its cell, and its time counts for nothing. `x` is a peer's time over ours."
    )
    yield ""
    if run["backend"] != "automatic":
        yield from (f"dualform's backend: {run['backend']}.", "")


def _compared(sections: Sequence[Section]) -> Iterator[list[str]]:
    """Lines of a table: what has a target, and of what a person feels whatever was measured beside something."""
    for section in sections:
        for row in section.rows:
            if row.target is None and (section.name not in FELT or row.ratio is None):
                continue
            met = {None: "not measured" if row.target else "—", True: "yes", False: "**no**"}[row.met]
            beside, ratio = words.beside_of(row) or "—", words.ratio_of(row) or "—"
            yield [row.question, words.figure_of(row.ours), beside, ratio, words.target_of(row) or "—", met]


def _section(section: Section, run: Mapping[str, Any]) -> Iterator[str]:
    quick = "--quick " if run["quick"] else ""
    yield from (f"## {section.title}", "")
    yield f"`python -m benchmarks {quick}--only {section.name}` ({section.date}, {section.seconds:.0f} s)"
    yield ""
    notes = Notes()
    if len({name for row in section.rows for name in row.cells}) > 1:
        for start in range(0, len(section.rows), COLUMNS):
            yield from _contestants(section.rows[start : start + COLUMNS], section.build, notes)
    elif section.rows:
        yield from _alone(section.rows, notes)
    yield from notes.lines()
    if section.facts:
        yield from table(["", ""], [[name, value] for name, value in section.facts.items()])
    for note in section.notes:
        yield from (note, "")


def _contestants(rows: Sequence[Row], build: Mapping[str, float], notes: Notes) -> Iterator[str]:
    """One line for each contestant, one column for each question."""
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    lines = []
    for name in names:
        line = [f"**{name}**" if name.startswith(OURS) else name]
        for row in rows:
            cell = row.cells.get(name)
            ours = None if name == OURS else row.ours.seconds
            line.append("—" if cell is None else words.figure_of(cell, ours) + notes.mark(name, cell))
        if build:
            line.append(words.duration(build[name]) if name in build else "")
        lines.append(line)
    yield from table(["", *(row.short for row in rows), *(["loading the keys"] if build else [])], lines)


def _alone(rows: Sequence[Row], notes: Notes) -> Iterator[str]:
    """Questions that only one was asked, one a line."""
    lines = []
    for row in rows:
        ((name, cell),) = row.cells.items()
        lines.append(
            [row.question, words.figure_of(cell) + notes.mark(name, cell), words.beside_of(row), words.ratio_of(row)]
        )
    yield from table(["question", next(iter(rows[0].cells)), "beside", "ratio"], lines)


class Notes:
    """Numbers for what stands under a table: each text once."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def mark(self, name: str, cell: Cell) -> str:
        numbers = [self._number(text, name) for text in (cell.why_not, cell.wrong, cell.remark) if text]
        return "".join(f" ({number})" for number in numbers)

    def _number(self, text: str, name: str) -> str:
        names = self._texts.setdefault(text, [])
        if name not in names:
            names.append(name)
        return str(list(self._texts).index(text) + 1)

    def lines(self) -> Iterator[str]:
        for text, names in list(self._texts.items()):
            yield f"- ({self._number(text, names[0])}) {', '.join(names)}: {text}"
        if self._texts:
            yield ""


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table, and the empty line after it."""
    for line in (heading, ["---"] * len(heading), *rows):
        yield "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in line) + " |"
    yield ""
