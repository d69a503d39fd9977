"""The results of a run: benchmarks.md with its two pictures, for docs/results, and report.md with every table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from benchmarks.harness import FELT, OURS, SECTIONS, Cell, Row, Section, Target
from dualform.store.files.ram_budget import readable
from dualform_studies.documents import write_page

_HEADING = ("question", "dualform", "compared with", "ratio", "target")


def write(out: Path, report: Path, run: Mapping[str, Any]) -> None:
    """Write the page and its pictures into `out`, and every table into the file `report`."""
    sections = [Section.from_json(run["sections"][name]) for name in SECTIONS if name in run["sections"]]
    write_page(out / "benchmarks.md", "Benchmarks", _page(out, report, run, sections))
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("\n\n".join(_report(run, sections)) + "\n")


def _page(out: Path, report: Path, run: Mapping[str, Any], sections: Sequence[Section]) -> Iterator[str]:
    yield (
        f"{_written(run)} Every table, with the peers' own figures, is in the `{report}` that the command leaves. "
        f"{_slots(run)}"
    )
    yield (
        "Times are medians, on all cores. Every answer is compared with a float64 oracle; a wrong one counts for "
        f"nothing. The machine: {', '.join(f'{name} {value}' for name, value in run['machine'].items())}."
    )
    by_name = {section.name: section.rows for section in sections}
    if _draw(out / "benchmarks-summary.png", _felt(by_name), 1):
        yield f"![{TITLE}](benchmarks-summary.png)"
    rows = list(chain(*by_name.values()))
    unjudged = [row for name in FELT for row in by_name.get(name, []) if row.ratio is not None and not row.target]
    met = [[row for row in own if row.met] for own in by_name.values()]
    for heading, some, columns in (
        ("Targets missed", [row for row in rows if row.target and not row.met], len(_HEADING)),
        ("No target", unjudged, len(_HEADING) - 1),
        (
            "Targets met: the one of each section that is nearest to being missed",
            [max(own, key=lambda row: row.used or 0.0) for own in met if own],
            len(_HEADING),
        ),
    ):
        if some:
            yield f"## {heading}"
            yield table(_HEADING[:columns], [_compared(row)[:columns] for row in some])
    if _draw(out / "benchmarks.png", _contests(by_name), 3):
        yield "![The time of each contestant, question by question](benchmarks.png)"


def _compared(row: Row) -> list[str]:
    target = (target_of(row) or "—") + (" (not measured)" if row.target and row.met is None else "")
    return [row.question, figure_of(row.ours), beside_of(row) or "—", ratio_of(row) or "—", target]


def _written(run: Mapping[str, Any]) -> str:
    return f"Written by `{'make bench-quick' if run['quick'] else 'make bench'}` on {run['date']}."


def _slots(run: Mapping[str, Any]) -> str:
    return f"A row is about {run['slots']:,} slots unless it says otherwise; {run['data']}."


def _report(run: Mapping[str, Any], sections: Sequence[Section]) -> Iterator[str]:
    yield "# Benchmarks"
    yield f"{_written(run)}\nA section that was measured again, by the command that it names, replaces the run's own."
    yield _slots(run)
    yield (
        "Times are medians; contestants take turns within one race, on all cores, with the keys already in the form "
        "they like best. Every answer, ours and each peer's, is compared with a float64 oracle in the same run: ours "
        "must name the same slots in the same order, a peer's may differ where float32 cannot tell. A wrong answer is "
        "called **wrong**, and its time counts for nothing. `x` is a peer's time over ours."
    )
    if run["backend"] != "automatic":
        yield f"dualform's backend: {run['backend']}."
    yield table(["machine", ""], [[name, value] for name, value in run["machine"].items()])
    yield ", ".join(f"{name} {version}" for name, version in run["versions"].items()) + "."
    for section in sections:
        quick = "--quick " if run["quick"] else ""
        yield f"## {section.title}"
        yield f"`python -m benchmarks {quick}--only {section.name}` ({section.date}, {section.seconds:.0f} s)"
        judged = [
            [row.question, name, *_judged(row, name, cell)] for row in section.rows for name, cell in row.cells.items()
        ]
        yield table(("question", "", "time or bytes", "ratio", "remark"), judged)
        if section.facts:
            yield table(["", ""], [[name, value] for name, value in section.facts.items()])
        yield from section.notes


def _judged(row: Row, name: str, cell: Cell) -> tuple[str, str, str]:
    """A contestant's figure; the row's ratio for ours, the multiple of ours for others; the check's remarks."""
    ours, remark = row.ours.seconds, "; ".join(filter(None, (cell.why_not, cell.wrong, cell.remark)))
    if name == OURS:
        return figure_of(cell), " ".join(filter(None, (ratio_of(row), beside_of(row)))), remark
    return figure_of(cell), f"{ratio(cell.seconds / ours)} x" if ours and cell.counts and cell.seconds else "", remark


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = (heading, ["---"] * len(heading), *rows)
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in line) + " |" for line in lines
    )


# ---- Figures as they are printed


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    unit, size = next(
        (own for own in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * own[1]),
        ("µs", 1e-6),
    )
    value = seconds / size
    return f"{f'{value:,.0f}' if value >= 99.95 else f'{value:.1f}' if value >= 9.995 else f'{value:.2f}'} {unit}"


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def figure_of(cell: Cell) -> str:
    """A cell's time, with its spread, or its bytes; "—" if it has neither."""
    if cell.bytes is not None:
        figure = readable(cell.bytes)
    elif cell.seconds is not None:
        figure = duration(cell.seconds)
    else:
        return "—"
    if cell.wrong:
        return f"**wrong** ({figure})"
    spread = "" if cell.best is None or cell.worst is None else f" ({duration(cell.best)} to {duration(cell.worst)})"
    return figure + spread


def beside_of(row: Row) -> str:
    """The other side of the ratio, and its figure; "" without one."""
    return "" if row.beside_seconds is None else f"{row.beside}: {duration(row.beside_seconds)}"


def ratio_of(row: Row) -> str:
    """The ratio and its spread; "" without one."""
    if row.ratio is None:
        return ""
    return ratio(row.ratio) + (f" ({ratio(row.ratios[0])} to {ratio(row.ratios[1])})" if row.ratios else "")


def target_of(row: Row) -> str:
    """The bound of the ratio, or of the figure itself; "" without one."""
    return "" if row.target is None else f"{row.target.kind} {_bound(row.target)}"


def _bound(target: Target) -> str:
    if target.unit == "bytes":
        return readable(target.value)
    if not target.unit:
        return f"{target.value:,g}"
    number, unit = duration(target.value).split()
    return f"{float(number.replace(',', '')):g} {unit}"  # without zeros that say nothing: 4.50 s is 4.5 s


# ---- Pictures

TITLE = "The first answer of a process, a training that is recorded, and clients that ask at once"
Rows: TypeAlias = Mapping[str, Sequence[Row]]
"""By section."""


class Mark(NamedTuple):
    value: float
    text: str
    is_ours: bool


Panel: TypeAlias = tuple[str, Sequence[tuple[str, Sequence[Mark]]]]
"""A title, and lines from the top: a name and its marks."""


def _felt(rows: Rows) -> list[Panel]:
    """First answers, trainings and clients, as far as they were measured."""
    answers = [
        (row.question, [_mark(row, name) for name in _times(row) if name in (OURS, row.beside)])
        for row in rows.get("cold", [])
        if (row.target or row.ratio) and row.ours.counts
    ]
    trainings = [
        (row.question, [Mark(row.ratio, ratio(row.ratio), True), Mark(row.target.value, target_of(row), False)])
        for name in ("recording", "checkpointing")
        for row in rows.get(name, [])
        if row.target and row.ratio
    ]
    clients = [_rates(row) for row in rows.get("serving", []) if row.target and row.target.kind == "at least"]
    panels: dict[str, Sequence[tuple[str, Sequence[Mark]]]] = {
        "The first answer (blue) and plain programs over the same files": answers,
        "A training that is recorded, times the same one unrecorded; its target in grey": trainings,
        f"Questions a second that {OURS} serve answers": next(iter(clients), []),
    }
    return [(title, lines) for title, lines in panels.items() if lines]


def _mark(row: Row, name: str) -> Mark:
    """The seconds of a contestant; another than ours has its name with it."""
    seconds = _times(row)[name]
    text = duration(seconds)
    return Mark(seconds, text if name == OURS else f"{name}: {text}", name == OURS)


def _rates(row: Row) -> list[tuple[str, Sequence[Mark]]]:
    sides = (row.beside, row.beside_seconds), (row.question.partition(":")[0], row.ours.seconds)
    return [(name, [Mark(1 / took, f"{1 / took:,.0f}", name != row.beside)]) for name, took in sides if took]


def _contests(rows: Rows) -> list[Panel]:
    """The seconds of everyone who can answer, question by question: those with a peer's time, spread over sections."""
    counts = {"topk": 3, "filtered": 2, "grouped": 1, "sums": 3}
    chosen = [
        row
        for name, count in counts.items()
        for row in [row for row in rows.get(name, []) if len(_times(row)) > 1][:count]
    ]
    return [
        (
            row.question,
            [
                (name, [Mark(seconds, duration(seconds), name.startswith(OURS))])
                for name, seconds in sorted(_times(row).items(), key=lambda entry: entry[1])
            ],
        )
        for row in chosen
    ]


def _times(row: Row) -> dict[str, float]:
    return {name: cell.seconds for name, cell in row.cells.items() if cell.counts and cell.seconds is not None}


def _draw(path: Path, panels: Sequence[Panel], across: int) -> bool:
    """Draw the panels, so many in a row, into a file. Returns False, and draws nothing, if there are none."""
    if not panels:
        return False
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    from dualform_studies.figures import packed_png

    down = -(-len(panels) // across)
    heights = [1.5 + max(len(lines) for _, lines in panels[row * across : (row + 1) * across]) for row in range(down)]
    figure = Figure(figsize=(9 + across, 0.36 * sum(heights)), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, height_ratios=heights)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, lines) in zip(axes.flat, panels, strict=False):
        for place, (_, marks) in enumerate(lines):
            least, most = min(marks), max(marks)
            axis.plot([least.value, most.value], [place, place], color="0.8", zorder=1)
            for mark in marks:
                colour, side = ("#0072B2" if mark.is_ours else "0.45"), 1 if mark is most else -1
                axis.plot(mark.value, place, "o", color=colour)
                axis.annotate(
                    mark.text,
                    (mark.value, place),
                    (7 * side, 0),
                    textcoords="offset points",
                    ha="left" if side > 0 else "right",
                    va="center",
                    color=colour,
                    fontsize=8,
                )
        axis.set_yticks(range(len(lines)), [textwrap.fill(name, 60) for name, _ in lines], fontsize=8)
        axis.set_ylim(len(lines) - 0.4, -0.6)
        values = [mark.value for _, marks in lines for mark in marks]
        low, high = min(values), max(values)
        if high > 10 * low:
            axis.set_xscale("log")
            axis.set_xlim(low / 8, high * 60)
            axis.xaxis.set_major_locator(LogLocator(numticks=6))
            axis.xaxis.set_major_formatter(lambda seconds, _: _bound(Target("at most", seconds, "s")))
            axis.xaxis.set_minor_locator(NullLocator())
        else:
            axis.set_xlim(0, 1.3 * high)
        axis.set_title(textwrap.fill(title, 105 if across == 1 else 40), fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    path.write_bytes(packed_png(figure, dpi=110))
    return True
