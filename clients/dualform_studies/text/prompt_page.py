"""The part of a language study's page on one prompt."""

from __future__ import annotations

from collections.abc import Sequence

from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent
from dualform_studies.text.findings import passage_of
from dualform_studies.text.observations import heading_of, is_most, without_verdict
from dualform_studies.text.passages import Passage
from dualform_studies.text.ranks import BEST


def show_prompt(page: Page, prompt: Report, report: Report) -> None:
    name, unit, table = prompt["name"], report["corpus"]["unit"], prompt["table"]
    page.heading(heading_of(prompt))
    if not prompt["in_the_text"]:
        page.paragraph("The texts at hand do not have this passage of the paper; it was asked in the paper's words.")
    if prompt["unread"] is not None:
        page.paragraph(
            f"The query is {unit} {prompt['unread']:,} of the training text, beyond what the streams read: it was not "
            "itself trained on."
        )
    query = Passage(**prompt["query"])
    if prompt["tokens"][-1]["unknown"]:
        page.paragraph(f"The training text does not have the marked {unit}: the network reads it as unknown.")
    page.table(
        f"{name}-passages",
        f"The training passages attended to most by the marked {unit}"
        + (f", beside those of Table {table} of the paper" if table else "")
        + (f", in which the paper sees {prompt['remark']}" if table else "")
        + f". {prompt['of_these_also_signed']} of these {len(prompt['passages'])} also lead where weights are summed "
        "with their sign." + _marks(prompt["unmarked"]),
        [
            "",
            "training passage",
            "from",
            "summed weight",
            *(
                [
                    "the paper's passage",
                    "from",
                    f"its rank here, of {report['corpus']['tokens_read']:,}",
                    "its rank by signed sums",
                ]
                if table
                else []
            ),
        ],
        _passage_rows(prompt, query, bool(table)),
    )
    _show_forms(page, prompt, report)
    _show_prevalence(page, prompt, report)
    for sentence in without_verdict(prompt, report):
        page.paragraph(sentence)
    page.figure(
        report_folder(page.run) / f"{name}-attention.png",
        "Absolute attention weights of the marked token, summed by training token position along the text (left: how "
        "the sums are distributed in each stretch of it, and the positions of the passages above, by rank"
        f"{_signs(prompt)}), and the mean weight by training step (right).",
    )
    page.table(
        f"{name}-tokens",
        f"{_which(prompt, unit)} of what was read of the prompt, and the training passage that it attends to most.",
        [unit, "training passage", "from", "summed weight"],
        [[_token(entry), passage_of(entry).marked(), entry["title"], entry["sum"]] for entry in prompt["tokens"]],
    )


def _show_forms(page: Page, prompt: Report, report: Report) -> None:
    """What the best positions show of what the paper sees in its passages."""
    if not prompt["forms"]:
        return
    page.table(
        f"{prompt['name']}-forms",
        f"How many of the {BEST} best positions, and of all {report['corpus']['tokens_read']:,}, show what; and of how "
        "many pairs with a position that its page alone rules out a case has the greater sum.",
        ["what they show", "counted where", f"of the {BEST} best", "of all", "ruled out by their page", "pairs"],
        [
            [
                form["claim"],
                form["rule"],
                form["of_ten"],
                form["of_all"],
                form["elsewhere"],
                None if form["told_apart"] is None else percent(form["told_apart"], ".3g"),
            ]
            for form in prompt["forms"]
        ],
    )


def _show_prevalence(page: Page, prompt: Report, report: Report) -> None:
    """How other queries of the same form fare."""
    rows: list[list[Cell]] = [
        [
            told["claim"],
            told["of_all"],
            told["in_the_test_text"],
            len(told["of_ten"]),
            sum(map(is_most, told["of_ten"])),
            ", ".join(map(str, told["of_ten"])),
        ]
        for told in report["prevalence"]
        if told["table"] == prompt["table"]
    ]
    if not rows:
        return
    page.table(
        f"{prompt['name']}-prevalence",
        "Other queries of the same form from the test text, chosen evenly along it where there are many: of how many "
        f"two thirds of the {BEST} best positions are of the form, too.",
        [
            "form",
            "positions of the training text",
            "other tokens of the test text",
            "queries asked",
            "of these with two thirds",
            f"of the {BEST} best, query by query",
        ],
        rows,
    )


def _marks(unmarked: Sequence[str]) -> str:
    if not unmarked:
        return ""
    return f" The paper's text as we have it lost the marks of {', '.join(unmarked)}: they stand as in its other rows."


def _signs(prompt: Report) -> str:
    """What the signs of the paper's passages mean that the figure has: those that were read."""
    read = [row for row in prompt["published"] if row["rank_here"] is not None]
    shown = ", ".join(row["sign"] for row in read if row["leads"])
    others = ", ".join(row["sign"] for row in read if not row["leads"])
    words = f"; of Table {prompt['table']} of the paper: {shown}, passages shown by their rank there" if shown else ""
    return words + (f"; {others}, its example that is not attended to" if others else "")


def _which(prompt: Report, unit: str) -> str:
    asked = len(prompt["tokens"])
    return f"Every {unit}" if asked == prompt["length"] else f"The last {asked:,} of {prompt['length']:,} {unit}s"


def _token(entry: Report) -> str:
    return Passage("", entry["of"], "").marked().token + (" (unknown)" if entry["unknown"] else "")


def _passage_rows(prompt: Report, query: Passage, published: bool) -> Sequence[Sequence[Cell]]:
    rows: list[list[Cell]] = [["query", query.marked(), "", None]]
    rows += [
        [str(rank), passage_of(entry).marked(), entry["title"], entry["sum"]]
        for rank, entry in enumerate(prompt["passages"], start=1)
    ]
    if published:
        nothing: list[Cell] = ["", "", None, None]
        told = [nothing] + [
            [passage_of(entry).marked(), entry["title"], entry["rank_here"], entry["rank_signed"]]
            for entry in prompt["published"]
        ]
        for at in range(max(len(rows), len(told))):
            if at >= len(rows):
                rows.append(["", "", "", None])
            rows[at] += told[at] if at < len(told) else nothing
    return rows
