"""What a run found: benchmarks.md with its two pictures, for docs/results, and report.md with every table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import figure, summary, words
from benchmarks.result import OURS, Cell, Row, Section
from benchmarks.sections import FELT, REPEATED, SECTIONS
from dualform_studies.pages.document import write_page

COLUMNS = 3
"""Questions beside each other: more make a table too wide to read."""
_HEADING = ("question", "dualform", "compared with", "ratio", "target")


def write(out: Path, report: Path, run: Mapping[str, Any]) -> None:
    """Write the page and its pictures into `out`, and every table into the file `report`."""
    sections = [Section.from_json(run["sections"][name]) for name in SECTIONS if name in run["sections"]]
    write_page(out / "benchmarks.md", "Benchmarks", ["\n".join(_page(out, report, run, sections))])
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("\n".join(_report(run, sections)) + "\n")


def _page(out: Path, report: Path, run: Mapping[str, Any], sections: Sequence[Section]) -> Iterator[str]:
    yield (
        f"{_written(run)} Every table, with the peers' own figures, is in the `{report}` that the command leaves. "
        f"{_slots(run)}"
    )
    yield ""
    yield (
        "Times are medians, on all cores. Every answer is compared with a float64 oracle; a wrong one counts for "
        f"nothing. The machine: {', '.join(f'{name} {value}' for name, value in run['machine'].items())}."
    )
    yield ""
    if summary.draw(out / "benchmarks-summary.png", [section for section in sections if section.name in FELT]):
        yield from (f"![{summary.TITLE}](benchmarks-summary.png)", "")
    rows = [(section, row) for section in sections for row in section.rows]
    missed = [row for _, row in rows if row.target and not row.met]
    unjudged = [row for section, row in rows if section.name in FELT and row.ratio is not None and not row.target]
    met = [_nearest(own) for section in sections if (own := [row for row in section.rows if row.met])]
    for heading, some, columns in (
        ("Targets missed", missed, len(_HEADING)),
        ("No target", unjudged, len(_HEADING) - 1),
        ("Targets met: the one of each section that is nearest to being missed", met, len(_HEADING)),
    ):
        if some:
            yield from (f"## {heading}", "")
            yield from table(_HEADING[:columns], [_compared(row)[:columns] for row in some])
    if figure.draw(out / "benchmarks.png", [section for section in sections if section.name in REPEATED]):
        yield from ("![The time of each contestant, question by question](benchmarks.png)", "")


def _nearest(met: Sequence[Row]) -> Row:
    """The row that is nearest to missing its target."""
    return max(met, key=lambda row: row.used)


def _compared(row: Row) -> list[str]:
    ratio = words.ratio_of(row) or "—"
    target = (words.target_of(row) or "—") + (" (not measured)" if row.target and row.met is None else "")
    return [row.question, words.figure_of(row.ours), words.beside_of(row) or "—", ratio, target]


def _written(run: Mapping[str, Any]) -> str:
    return f"Written by `{'make bench-quick' if run['quick'] else 'make bench'}` on {run['date']}."


def _slots(run: Mapping[str, Any]) -> str:
    return f"A row is about {run['slots']:,} slots unless it says otherwise; {run['data']}."


def _report(run: Mapping[str, Any], sections: Sequence[Section]) -> Iterator[str]:
    yield from ("# Benchmarks", "", _written(run))
    yield "A section that was measured again, by the command that it names, stands in place of the run's own."
    yield from ("", _slots(run), "")
    yield (
        "Times are medians; contestants take turns within one race, on all cores, with the keys already in the form "
        "they like best. Every answer, ours and each peer's, is compared with a float64 oracle in the same run: ours "
        "must name the same slots in the same order, a peer's may differ where float32 cannot tell. A wrong answer is "
        "called **wrong** in its cell, and its time counts for nothing. `x` is a peer's time over ours."
    )
    yield ""
    if run["backend"] != "automatic":
        yield from (f"dualform's backend: {run['backend']}.", "")
    yield from table(["machine", ""], [[name, value] for name, value in run["machine"].items()])
    yield from (", ".join(f"{name} {version}" for name, version in run["versions"].items()) + ".", "")
    for section in sections:
        yield from _section(section, run)


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
