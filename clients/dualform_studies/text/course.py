"""How ranks of the paper's passages change during a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log, log2
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.report import Cell, Page, Report, report_folder
from dualform_studies.text.attention import BEST, Attention, Questions, Standard, positions_of
from dualform_studies.text.training import Checkpoint, reads_evenly

_FITTED = 3
"""Checkpoints that a line is drawn through, at least."""


def course_of(
    asking: Questions,
    attention: Attention,
    standards: Mapping[str, Standard],
    checkpoints: Sequence[Checkpoint],
    of_a_pass: int,
) -> list[Report]:
    """One entry for each checkpoint, the last of which is the end of the training: what the paper's queries as of then
    find in the training up to then.
    """
    ends = [*attention.at_checkpoints, None] if asking.compared else [None] * len(checkpoints)
    told = []
    for checkpoint, answer in zip(checkpoints, ends, strict=True):
        tables = []
        for row, number in enumerate(asking.compared):
            if answer is None:
                positions, sums = attention.positions, attention.by_position.sums[asking.last[number]]
            else:
                positions, sums = positions_of(answer), answer.sums[row]
            standard = standards[asking.prompts[number].name]
            ranks = zip(standard.table.rows, standard.ranks(positions, sums), strict=True)
            tables.append(
                {
                    "table": standard.table.number,
                    "passages": [{"row": row.rank, "leads": row.leads, "rank": rank} for row, rank in ranks],
                    "forms": [form.claim for form in standard.forms],
                    "of_ten": standard.of_the_best(positions, sums),
                }
            )
        told.append(
            {
                "updates": checkpoint.updates,
                "passes": checkpoint.updates / of_a_pass,
                "perplexity": checkpoint.perplexity,
                "tables": tables,
            }
        )
    return told


def middle_ranks(course: Sequence[Report], table: int) -> list[tuple[int, float]]:
    """Updates, and the geometric mean of the ranks of the passages that lead in the paper's table, of the checkpoints
    that have read them."""
    found = []
    for entry in course:
        ranks = _ranks(entry, table)
        if ranks:
            found.append((int(entry["updates"]), exp(float(np.mean(np.log(ranks))))))
    return found


def _ranks(entry: Report, table: int) -> list[int]:
    passages = [passage for told in entry["tables"] if told["table"] == table for passage in told["passages"]]
    return [passage["rank"] for passage in passages if passage["leads"] and passage["rank"] is not None]


def tables_of(course: Sequence[Report]) -> list[int]:
    return [told["table"] for told in course[-1]["tables"]] if course else []


def extrapolations(course: Sequence[Report], updates: int) -> Iterator[str]:
    """One sentence for each table: where the ranks of its passages would be after so many updates, were they to go on
    as in the later half of the checkpoints. Nothing where the training has had as many.
    """
    if not course or course[-1]["updates"] >= updates:
        return
    for table in tables_of(course):
        ranks = middle_ranks(course, table)
        fitted = ranks[-max(_FITTED, len(ranks) // 2) :]
        if len(fitted) < _FITTED:
            yield f"Table {table}: too few checkpoints to say where the ranks of its passages go."
            continue
        slope, height = np.polyfit([log(u) for u, _ in fitted], [log(rank) for _, rank in fitted], 1)
        (first, rank_then), (last, rank_now) = fitted[0], fitted[-1]
        seen = (
            f"Table {table}: between {first:,} and {last:,} updates the geometric mean of the ranks of its passages "
            f"went from {rank_then:,.0f} to {rank_now:,.0f}"
        )
        if slope >= 0:
            yield f"{seen}. It does not fall, so nothing in it leads to the paper's ranks at {updates:,} updates."
            continue
        there = max(1.0, exp(height + slope * log(updates)))
        yield (
            f"{seen}, by a factor of {2**slope:.2f} with each doubling on a line through the logarithms. That line "
            f"comes to {there:,.0f} at the paper's {updates:,} updates, {log2(updates / last):.1f} doublings further: "
            "an extrapolation, not a measurement."
        )


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


def show_course(page: Page, report: Report) -> None:
    course = report["course"]
    if not course:
        page.paragraph("The run was stopped before it was asked, so that what its checkpoints had taken is lost.")
        return
    tables = tables_of(course)
    page.heading("The course of the training")
    page.paragraph(
        f"At {len(course)} of its {course[-1]['updates']:,} updates the training was asked as if it had ended there: "
        + (
            "the paper's queries were taken from the network as it was, and their weights summed over the datapoints "
            "up to then. "
            if tables
            else "no passage of the paper stands in the text that was trained on, so that perplexity is all that can "
            "be followed. "
        )
        + _evenness(course, report["corpus"]["chunks_of_a_pass"])
    )
    page.figure(
        report_folder(page.run) / "course.png",
        (
            f"Above, the ranks of the paper's passages among all positions, by updates (grey: rank {BEST}). Below, how "
            f"many of the {BEST} best positions are of the form that the paper sees in its passages (of the narrower "
            "one, where two are counted), and the perplexity of the test text."
            if tables
            else "Perplexity of the test text by updates."
        ),
    )
    rows: list[list[Cell]] = []
    for entry in course:
        row: list[Cell] = [f"{entry['updates']:,}", f"{entry['passes']:.1f}", entry["perplexity"]]
        for told in entry["tables"]:
            row += [
                ", ".join("-" if one["rank"] is None else f"{one['rank']:,}" for one in told["passages"]),
                ", ".join(map(str, told["of_ten"])),
            ]
        rows.append(row)
    page.table(
        "course",
        "Checkpoints." + (" The passages of the paper that lead have the ranks 1, 2, 3 there." if tables else ""),
        ["updates", "passes", "perplexity", *(column for told in course[-1]["tables"] for column in _columns(told))],
        rows,
    )
    if report["preset"] == "paper":
        for sentence in extrapolations(course, report["updates_of_the_paper"]):
            page.paragraph(sentence)


def _columns(told: Report) -> tuple[str, str]:
    """Of one table, in the order of what stands in a cell."""
    passages = ", ".join(passage["row"] for passage in told["passages"])
    return f"Table {told['table']}: ranks of {passages}", f"of the {BEST} best: {'; '.join(told['forms'])}"


def _evenness(course: Sequence[Report], of_a_pass: int) -> str:
    """Whether every token had been read equally often at each checkpoint, in a sentence."""
    uneven = [f"{entry['updates']:,}" for entry in course if not reads_evenly(entry["updates"], of_a_pass)]
    if not uneven:
        return "At each of them all tokens that had been read had been read equally often."
    return (
        f"After {', '.join(uneven)} updates some tokens had been read once more than others, and their sums are "
        "greater for that alone."
    )
