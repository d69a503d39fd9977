"""The part of a language study's page on how its training went."""

from __future__ import annotations

from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.text.course import extrapolations, tables_of
from dualform_studies.text.ranks import BEST


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
        + "Checkpoints end whole passes, where there are as many, so that all tokens have been read equally often."
    )
    page.figure(
        report_folder(page.run) / "course.png",
        (
            f"Above, the ranks of the paper's passages among all positions, by updates (grey: rank {BEST}). Below, how "
            f"many of the {BEST} best positions are of the form that the paper sees in its passages, and the "
            "perplexity of the test text."
            if tables
            else "Perplexity of the test text by updates."
        ),
    )
    rows: list[list[Cell]] = []
    for entry in course:
        row: list[Cell] = [f"{entry['updates']:,}", f"{entry['passes']:.1f}", entry["perplexity"]]
        for told in entry["tables"]:
            row += [
                ", ".join("-" if rank is None else f"{rank:,}" for rank in told["ranks"]),
                ", ".join(map(str, told["of_ten"])),
            ]
        rows.append(row)
    page.table(
        "course",
        "Checkpoints. The paper's ranks are 1, 2, 3. "
        + (f"Of the {BEST} best: those of each form that is claimed below." if tables else ""),
        [
            "updates",
            "passes",
            "perplexity",
            *(column for table in tables for column in (f"ranks of Table {table}'s passages", f"of the {BEST} best")),
        ],
        rows,
    )
    if report["preset"] == "paper":
        for sentence in extrapolations(course, report["updates_of_the_paper"]):
            page.paragraph(sentence)
