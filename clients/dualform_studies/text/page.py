"""The page of a language study, made from its report alone, so that it can be made again when prompts are added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.text.findings import passage_of
from dualform_studies.text.passages import Passage


def language_page(run: Path, report: Report) -> Page:
    page = Page(run, report["title"])
    _describe(page, report)
    for prompt in report["prompts"]:
        _show_prompt(page, prompt, report)
    page.heading("Asking on")
    page.paragraph(_asking_on(report))
    return page


def _describe(page: Page, report: Report) -> None:
    corpus, recipe = report["corpus"], report["recipe"]
    page.paragraph(
        f"A {corpus['unit']}-level language model of one LSTM layer with {recipe['hidden']} units, trained on "
        f"{corpus['trained_on']} ({corpus['train_tokens']:,} {corpus['unit']}s, {corpus['vocabulary']:,} of them "
        f"distinct) for {recipe['steps']:,} updates of {recipe['batch']} streams of {recipe['unroll']} "
        f"{corpus['unit']}s: each was read {corpus['times_read']:.1f} times. "
        f"Preset `{report['preset']}`, seed {report['seed']}. {corpus['note']}".strip()
    )
    page.table(
        "perplexity",
        f"How well the test text ({corpus['test_tokens']:,} {corpus['unit']}s, {100 * corpus['unknown']:.2f} % of them "
        "unknown) is foretold, by the recorded training and by the same recipe in plain PyTorch.",
        ["training", "perplexity", f"bits per {corpus['unit']}", "weights"],
        [
            ["recorded", report["perplexity"]["recorded"], report["bits"]["recorded"], _sameness(report)],
            ["plain PyTorch", report["perplexity"]["plain"], report["bits"]["plain"], "-"],
        ],
    )
    seconds = report["seconds"]
    last, took = ("training again", "training_again") if report["replay"] else ("asking", "asking")
    page.paragraph(
        f"Training took {seconds['training']:,.0f} s plainly and {seconds['recorded_training']:,.0f} s recorded, "
        f"{last} for the answers {seconds[took]:,.0f} s."
    )
    way = "without keys, the questions answered while it ran a second time" if report["replay"] else "with its keys"
    page.paragraph(
        f"The training was recorded {way}: {report['slots']:,} datapoints, "
        f"{report['disk_bytes'] / 1e9:.2f} GB on disk. Attention weights are those of the LSTM's one linear "
        "transformation, whose key is the state before a token and the token's input. All weights that go to the same "
        "training token position are summed, with their sign; the passages below stand around the positions with the "
        "greatest sums."
    )


def _sameness(report: Report) -> str:
    return "equal to the last bit" if report["unharmed"] else "different"


def _show_prompt(page: Page, prompt: Report, report: Report) -> None:
    name, unit = prompt["name"], report["corpus"]["unit"]
    table = prompt["table"]
    page.heading(f"Table {table} of the paper" if table else f"Prompt {name.removeprefix('prompt-')}")
    if not prompt["in_the_text"]:
        page.paragraph("The texts at hand do not have this passage of the paper; it was asked in the paper's words.")
    query = Passage(**prompt["query"])
    if prompt["tokens"][-1]["unknown"]:
        page.paragraph(f"The training text does not have the marked {unit}: the network reads it as unknown.")
    page.table(
        f"{name}-passages",
        f"The training passages attended to most by the marked {unit}"
        + (f", beside those of Table {table} of the paper" if table else "")
        + (f", in which the paper sees {prompt['remark']}" if table else "")
        + f". {prompt['of_these_also_by_absolute_sums']} of these {len(prompt['passages'])} also lead where absolute "
        "weights are summed." + _marks(prompt["unmarked"]),
        [
            "",
            "training passage",
            "from",
            "summed weight",
            *(
                ["the paper's passage", "from", f"its rank here, of {report['corpus']['train_tokens'] - 1:,}"]
                if table
                else []
            ),
        ],
        _passage_rows(prompt, query, bool(table)),
    )
    page.figure(
        report_folder(page.run) / f"{name}-attention.png",
        "Attention weights of the marked token, summed by training token position along the text (left, the numbers "
        "are ranks of the passages above), and the mean weight by training step (right)."
        + (f" Beside Table {table} of the paper." if table else ""),
    )
    page.table(
        f"{name}-tokens",
        f"{_which(prompt, unit)} of the prompt, and the training passage that it attends to most.",
        [unit, "training passage", "from", "summed weight"],
        [[_token(entry), passage_of(entry).marked(), entry["title"], entry["sum"]] for entry in prompt["tokens"]],
    )


def _marks(unmarked: Sequence[str]) -> str:
    if not unmarked:
        return ""
    return f" The paper's text as we have it lost the marks of {', '.join(unmarked)}: they stand as in its other rows."


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
        told: list[list[Cell]] = [["", "", None]]
        told += [[passage_of(entry).marked(), entry["title"], entry["rank_here"]] for entry in prompt["published"]]
        for at in range(max(len(rows), len(told))):
            if at >= len(rows):
                rows.append(["", "", "", None])
            rows[at] += told[at] if at < len(told) else ["", "", None]
    return rows


def _asking_on(report: Report) -> str:
    study = report["study"]
    if report["replay"]:
        return (
            "No keys are stored, so questions about other prompts need the training once more: give them to another "
            f"run, `dualform study {study} --data DATA --out RUN --replay --prompt TEXT`."
        )
    return (
        f"`dualform study {study} --data DATA --out RUN --prompt TEXT`, RUN being this run's folder, adds a prompt "
        "to this page without training again. The queries of the prompts asked last are in `report/queries.npy`, one a "
        "token: `dualform topk RUN --layer lstm --query RUN/report/queries.npy` lists single datapoints, "
        "`dualform sums` with `--by position` every sum."
    )
