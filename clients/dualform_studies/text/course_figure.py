"""The figure of a training's course: ranks of the paper's passages, what the best are, and perplexity, by updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure
from dualform_studies.text.course import tables_of
from dualform_studies.text.ranks import BEST

_LINES = ("-", "--", ":", "-.")


def draw_course(path: Path, course: Sequence[Report]) -> Path:
    """One panel a table with the ranks of its passages; below, how many of the best are of its form, and perplexity."""
    tables = tables_of(course)
    updates = [entry["updates"] for entry in course]
    with new_figure(path, 4.4 if tables else 2.2) as figure:
        rows = figure.subfigures(2 if tables else 1, 1, squeeze=False)[:, 0]
        if tables:
            panels = rows[0].subplots(1, len(tables), sharex=True, sharey=True, squeeze=False)[0]
            panels[0].set_yscale("log")
            panels[0].set_ylim(2 * _last(course), 0.7)  # the first rank on top
            panels[0].set_ylabel("rank among all positions")
            lines: dict[str, Line2D] = {}
            for panel, table in zip(panels, tables, strict=True):
                lines |= _draw_ranks(panel, course, updates, table)
            rows[0].legend(lines.values(), lines, loc="outside upper center", ncols=4, handlelength=2.6)
        below = rows[-1].subplots(1, 2 if tables else 1, squeeze=False)[0]
        if tables:
            _draw_forms(below[0], course, updates, tables)
        below[-1].plot(updates, [entry["perplexity"] for entry in course], color=INK[0], marker=MARKS[0], markersize=4)
        below[-1].set_title("how well the test text is predicted")
        below[-1].set_ylabel("perplexity")
        for panel in below:
            panel.set_xlabel("updates")
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return path


def _last(course: Sequence[Report]) -> int:
    """The last rank of any passage, BEST where none was read."""
    passages = (passage for entry in course for told in entry["tables"] for passage in told["passages"])
    return max((passage["rank"] for passage in passages if passage["rank"] is not None), default=BEST)


def _draw_ranks(panel: Axes, course: Sequence[Report], updates: Sequence[int], table: int) -> dict[str, Line2D]:
    """A line for each passage that was read; the lines by what the legend says of them."""
    lines: dict[str, Line2D] = {}
    of_table = [next(told for told in entry["tables"] if told["table"] == table) for entry in course]
    for row, passage in enumerate(of_table[-1]["passages"]):
        seen = [(at, told["passages"][row]["rank"]) for at, told in zip(updates, of_table, strict=True)]
        known = [(at, rank) for at, rank in seen if rank is not None]
        if known:
            label = f"{passage['row']} of the paper" if passage["leads"] else "not attended to in the paper"
            [lines[label]] = panel.plot(
                *zip(*known, strict=True),
                color=INK[row],
                linestyle=_LINES[row],
                marker=MARKS[row],
                markersize=4,
                linewidth=1,
            )
    panel.yaxis.set_major_locator(LogLocator(10, numticks=9))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda rank, _: f"{rank:,.0f}"))
    panel.axhline(BEST, color="0.7", linewidth=0.6)
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panel.set_xlabel("updates")
    panel.set_title(f"Table {table}")
    return lines


def _draw_forms(panel: Axes, course: Sequence[Report], updates: Sequence[int], tables: Sequence[int]) -> None:
    """The last form of each table, which is the narrower one where it has two."""
    for number, table in enumerate(tables):
        of_table = [next(told for told in entry["tables"] if told["table"] == table) for entry in course]
        panel.plot(
            updates,
            [told["of_ten"][-1] for told in of_table],
            color=INK[number],
            linestyle=_LINES[number],
            marker=MARKS[number],
            markersize=8 - 2 * number,  # where several are the same, all can be seen
            linewidth=1,
            label=f"Table {table}",
        )
    panel.set_ylim(-0.5, BEST + 0.5)
    panel.set_title(f"of the {BEST} best positions, those of the paper's form")
    panel.set_ylabel("positions")
    panel.legend(fontsize=7, handlelength=2.4)
