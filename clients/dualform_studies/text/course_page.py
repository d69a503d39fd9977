"""The part of a language study's page on how its training went."""

from __future__ import annotations

from collections.abc import Sequence

from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.text.course import extrapolations, tables_of
from dualform_studies.text.ranks import BEST
from dualform_studies.text.streams import reads_evenly


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
