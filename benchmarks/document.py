"""The results of a run: benchmarks.md with its two pictures, for docs/results, and report.md with every table."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import FELT, OURS, REPEATED, SECTIONS, Cell, Row, Section, Target
from dualform.store.files.ram_budget import readable
from dualform_studies.documents import write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    if _draw_felt(out / "benchmarks-summary.png", [section for section in sections if section.name in FELT]):
        yield from (f"![{TITLE}](benchmarks-summary.png)", "")
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
    if _draw_contests(out / "benchmarks.png", [section for section in sections if section.name in REPEATED]):
        yield from ("![The time of each contestant, question by question](benchmarks.png)", "")


def _nearest(met: Sequence[Row]) -> Row:
    """The row that is nearest to missing its target."""
    return max(met, key=lambda row: row.used)


def _compared(row: Row) -> list[str]:
    ratio = ratio_of(row) or "—"
    target = (target_of(row) or "—") + (" (not measured)" if row.target and row.met is None else "")
    return [row.question, figure_of(row.ours), beside_of(row) or "—", ratio, target]


def _written(run: Mapping[str, Any]) -> str:
    return f"Written by `{'make bench-quick' if run['quick'] else 'make bench'}` on {run['date']}."


def _slots(run: Mapping[str, Any]) -> str:
    return f"A row is about {run['slots']:,} slots unless it says otherwise; {run['data']}."


def _report(run: Mapping[str, Any], sections: Sequence[Section]) -> Iterator[str]:
    yield from ("# Benchmarks", "", _written(run))
    yield "A section that was measured again, by the command that it names, replaces the run's own."
    yield from ("", _slots(run), "")
    yield (
        "Times are medians; contestants take turns within one race, on all cores, with the keys already in the form "
        "they like best. Every answer, ours and each peer's, is compared with a float64 oracle in the same run: ours "
        "must name the same slots in the same order, a peer's may differ where float32 cannot tell. A wrong answer is "
        "called **wrong**, and its time counts for nothing. `x` is a peer's time over ours."
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
    rows = [[row.question, name, *_judged(row, name, cell)] for row in section.rows for name, cell in row.cells.items()]
    yield from table(("question", "", "time or bytes", "ratio", "remark"), rows)
    if section.facts:
        yield from table(["", ""], [[name, value] for name, value in section.facts.items()])
    for note in section.notes:
        yield from (note, "")


def _judged(row: Row, name: str, cell: Cell) -> tuple[str, str, str]:
    """A contestant's figure; the row's ratio for ours, the multiple of ours for others; the check's remarks."""
    ours, remark = row.ours.seconds, "; ".join(filter(None, (cell.why_not, cell.wrong, cell.remark)))
    if name == OURS:
        return figure_of(cell), " ".join(filter(None, (ratio_of(row), beside_of(row)))), remark
    return figure_of(cell), f"{ratio(cell.seconds / ours)} x" if ours and cell.counts and cell.seconds else "", remark


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table, and the empty line after it."""
    for line in (heading, ["---"] * len(heading), *rows):
        yield "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in line) + " |"
    yield ""


# ---- Figures as they are printed


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-6)} µs"


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def figure_of(cell: Cell) -> str:
    """A cell's time, with its spread, or its bytes; "—" if it has neither."""
    if cell.bytes is not None:
        return f"**wrong** ({readable(cell.bytes)})" if cell.wrong else readable(cell.bytes)
    if cell.seconds is None:
        return "—"
    if cell.wrong:
        return f"**wrong** ({duration(cell.seconds)})"
    spread = "" if cell.best is None or cell.worst is None else f" ({duration(cell.best)} to {duration(cell.worst)})"
    return duration(cell.seconds) + spread


def beside_of(row: Row) -> str:
    """The other side of the ratio, and its figure; "" without one."""
    return "" if row.beside_seconds is None else f"{row.beside}: {duration(row.beside_seconds)}"


def ratio_of(row: Row) -> str:
    """The ratio and its spread; "" without one."""
    if row.ratio is None:
        return ""
    spread = "" if row.ratios is None else f" ({ratio(row.ratios[0])} to {ratio(row.ratios[1])})"
    return ratio(row.ratio) + spread


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
ANSWERS = "The first answer (blue) and plain programs over the same files"
TRAININGS = "A training that is recorded, times the same one unrecorded; its target in green"
CLIENTS = f"Questions a second that {OURS} serve answers"
_BLUE, _GREY, _GREEN = "#0072B2", "0.55", "#009E73"


def _draw(path: Path, panels: Sequence[Callable[[Axes], None]], across: int, size: Any, **layout: Any) -> bool:
    """Draw the panels into a file. Returns False, and draws nothing, if the list is empty."""
    if not panels:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from dualform_studies.figures import packed_png

    down = -(-len(panels) // across)
    title = layout.pop("title", "")
    drawing, axes = pyplot.subplots(down, across, figsize=size(down), squeeze=False, layout="constrained", **layout)
    for axis, panel in zip(axes.flat, panels, strict=False):
        panel(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    if title:
        drawing.suptitle(title)
    path.write_bytes(packed_png(drawing, dpi=110))
    pyplot.close(drawing)
    return True


def _draw_contests(path: Path, sections: Sequence[Section]) -> bool:
    """The time of everyone who can answer, question by question: those with a peer's time, spread over sections."""
    found = {section.name: [row for row in section.rows if len(_times(row)) > 1] for section in sections}
    rows = [
        *found.get("topk", [])[:3],
        *found.get("filtered", [])[:2],
        *found.get("grouped", []),
        *found.get("sums", [])[:3],
    ]
    title = "Seconds an answer takes, median; logarithmic, shorter is faster"
    panels = [partial(_contest, row=row) for row in rows]
    return _draw(path, panels, 3, lambda down: (12, 2.6 * down), title=title)


def _times(row: Row) -> dict[str, float]:
    return {name: cell.seconds for name, cell in row.cells.items() if cell.counts and cell.seconds is not None}


def _contest(axis: Axes, row: Row) -> None:
    times = dict(sorted(_times(row).items(), key=lambda entry: -entry[1]))
    colors = ["tab:blue" if name.startswith(OURS) else "0.7" for name in times]
    bars = axis.barh(list(times), list(times.values()), color=colors)
    axis.bar_label(bars, [duration(seconds) for seconds in times.values()], padding=3, fontsize=8)
    axis.set_xscale("log")
    low, high = min(times.values()), max(times.values())
    axis.set_xlim(low / 3, high * (high / low) ** 0.3 * 2)
    axis.set_title(row.question, fontsize=8)
    axis.tick_params(labelsize=8)


def _draw_felt(path: Path, sections: Sequence[Section]) -> bool:
    """Rows of answers, of trainings and of clients, as far as they were measured."""
    rows = {section.name: section.rows for section in sections}
    answers = [row for row in rows.get("cold", []) if (row.target or row.ratio) and row.ours.counts]
    trainings = [
        row for name in ("recording", "checkpointing") for row in rows.get(name, []) if row.target and row.ratio
    ]
    clients = [
        row for row in rows.get("serving", []) if row.target and row.target.kind == "at least" and row.met is not None
    ][:1]
    kinds: list[tuple[list[Row], Any]] = [(answers, _answers), (trainings, _trainings), (clients, _clients)]
    panels = [partial(panel, rows=found) for found, panel in kinds if found]
    heights = [len(found) + 1 for found, _ in kinds if found]
    return _draw(path, panels, 1, lambda down: (10, 0.43 * sum(heights) + 0.4 * down), height_ratios=heights)


def _answers(axis: Axes, rows: Sequence[Row]) -> None:
    """Seconds, ours and the other's."""
    for place, row in enumerate(rows):
        ours, beside = row.ours.seconds, row.beside_seconds if row.beside in row.cells else None
        assert ours is not None
        left = beside is None or ours <= beside
        if beside is not None:
            axis.plot([ours, beside], [place, place], color="0.8", linewidth=2, zorder=1)
            axis.plot(beside, place, "o", color=_GREY, markersize=7)
            _say(axis, beside, place, f"{row.beside}: {duration(beside)}", left=not left, color="0.3")
        axis.plot(ours, place, "o", color=_BLUE, markersize=9)
        _say(axis, ours, place, duration(ours), left=left, color=_BLUE)
    axis.set_xscale("log")
    low = min(row.ours.seconds or 1.0 for row in rows)
    high = max(max(row.ours.seconds or 0.0, row.beside_seconds or 0.0) for row in rows)
    axis.set_xlim(low / 4, high * 100)
    axis.set_xticks([10.0**power for power in range(-6, 4) if low / 4 <= 10.0**power <= high * 3])
    axis.set_xticks([], minor=True)
    axis.xaxis.set_major_formatter(lambda seconds, _: duration(seconds).replace(".00", "").replace(".0", ""))
    _finish(axis, [row.question for row in rows], ANSWERS)


def _trainings(axis: Axes, rows: Sequence[Row]) -> None:
    """Times the unrecorded training; the target is a mark."""
    for place, row in enumerate(rows):
        assert row.ratio is not None
        assert row.target is not None
        least, most = row.ratios or (row.ratio, row.ratio)
        axis.plot([least, most], [place, place], color=_BLUE, linewidth=2, zorder=1)
        axis.plot(row.ratio, place, "o", color=_BLUE, markersize=9)
        axis.plot(row.target.value, place, "|", color=_GREEN, markersize=16, markeredgewidth=2.5)
        _say(axis, max(most, row.target.value), place, ratio(row.ratio), left=False, color=_BLUE)
    axis.axvline(1.0, color=_GREY, linewidth=1)
    every = [ratio for row in rows for ratio in row.ratios or (row.ratio or 1.0,)]
    axis.set_xlim(min(0.95, min(every) - 0.03), max(every) + 0.15)
    _finish(axis, [row.question for row in rows], TRAININGS)


def _clients(axis: Axes, rows: Sequence[Row]) -> None:
    """Questions a second."""
    (row,) = rows
    assert row.ours.seconds is not None
    assert row.beside_seconds is not None
    rates = [1 / row.beside_seconds, 1 / row.ours.seconds]
    axis.barh([0, 1], rates, color=[_GREY, _BLUE], height=0.6)
    for place, rate in enumerate(rates):
        _say(axis, rate, place, f"{rate:,.0f}", left=False, color="0.2")
    axis.set_xlim(0, max(rates) * 1.15)
    _finish(axis, [row.beside, row.question.partition(":")[0]], CLIENTS)


def _say(axis: Axes, x: float, y: float, text: str, *, left: bool, color: str) -> None:
    place, side = (-8 if left else 8, 0), "right" if left else "left"
    axis.annotate(text, (x, y), place, textcoords="offset points", ha=side, va="center", fontsize=8.5, color=color)


def _finish(axis: Axes, questions: Sequence[str], title: str) -> None:
    axis.set_yticks(range(len(questions)), [textwrap.fill(question, 54) for question in questions], fontsize=8.5)
    axis.set_ylim(len(questions) - 0.4, -0.6)
    axis.set_title(title, fontsize=10, loc="left", weight="bold")
    axis.tick_params(axis="x", labelsize=8)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
