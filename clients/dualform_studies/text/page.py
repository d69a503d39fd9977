"""The page of a language study, made from its report alone, so that it can be made again when prompts are added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualform_studies.pages.claims import Beside, Claim, beside_table, claims_table
from dualform_studies.pages.folder import Report
from dualform_studies.pages.page import Page
from dualform_studies.text.course_page import show_course
from dualform_studies.text.prompt_page import show_prompt
from dualform_studies.text.streams import reads_evenly


def language_page(run: Path, report: Report, claims: Sequence[Claim]) -> Page:
    page = Page(run, report["title"])
    _describe(page, report)
    if claims:
        page.show(claims_table(claims))
    page.show(beside_table([(report["study"], Beside(**row)) for row in report["beside_paper"]]))
    _show_perplexity(page, report)
    show_course(page, report)
    for prompt in report["prompts"]:
        show_prompt(page, prompt, report)
    page.heading("Asking on")
    page.paragraph(_asking_on(report))
    return page


def _describe(page: Page, report: Report) -> None:
    corpus, recipe = report["corpus"], report["recipe"]
    unit = corpus["unit"]
    cut_short = (
        ""
        if reads_evenly(recipe["steps"], corpus["chunks_of_a_pass"])
        else ", the last of them cut short: some tokens were read once more than others, and their sums are greater "
        "for that alone"
    )
    page.paragraph(
        f"A {unit}-level language model of one LSTM layer with {recipe['hidden']:,} units, trained on "
        f"{corpus['trained_on']} ({corpus['train_tokens']:,} {unit}s) for {recipe['steps']:,} updates. "
        f"{recipe['batch']} streams read the text side by side, each a run of {corpus['chunks_of_a_pass']:,} chunks of "
        f"{recipe['unroll']} {unit}s, which is {corpus['tokens_of_a_pass']:,} {unit}s a pass; the rest at the end of "
        f"the text is not read. That makes {corpus['passes']:.1f} passes{cut_short}. The state is carried from chunk "
        f"to chunk; it begins anew with each pass, and at any step with probability {recipe['reset']:g}. The "
        f"vocabulary has {corpus['vocabulary']:,} {unit}s. Preset `{report['preset']}`, seed {report['seed']}."
    )
    if corpus["note"]:
        page.paragraph(corpus["note"])
    way = "without keys, the questions answered while it ran a second time" if report["rerun"] else "with its keys"
    page.paragraph(
        f"The training was recorded {way}: {report['slots']:,} datapoints, "
        f"{report['disk_bytes'] / 1e9:.2f} GB on disk. Attention weights are those of the LSTM's one linear "
        "transformation, whose key is the state before a token and the token's input; the query is that of the last of "
        "100 tokens read from a state of zeros. The absolute values of all weights that go to the same training token "
        "position are summed, as in the paper's code; the passages below stand around the positions with the greatest "
        "sums."
    )


def _show_perplexity(page: Page, report: Report) -> None:
    corpus, recipe = report["corpus"], report["recipe"]
    rows = [["recorded", report["perplexity"]["recorded"], report["bits"]["recorded"], _sameness(report)]]
    if "plain" in report["perplexity"]:
        rows.append(["plain PyTorch", report["perplexity"]["plain"], report["bits"]["plain"], "-"])
    unknown = (
        f"; {100 * corpus['unknown']:.2f} % of them are <unk> in the corpus itself, and "
        f"{100 * corpus['lacking']:.2f} % are read as <unk>, as the training text does not have them"
        if corpus["unit"] == "word"
        else ""
    )
    page.table(
        "perplexity",
        f"How well the test text ({corpus['test_tokens']:,} {corpus['unit']}s{unknown}) is predicted. It is read in "
        f"{recipe['batch']} streams, each from a state of zeros, as the paper's code reads it; the paper states no "
        "perplexity.",
        ["training", "perplexity", f"bits per {corpus['unit']}", "weights"],
        rows,
    )


def _sameness(report: Report) -> str:
    if report["unharmed"] is None:
        return "those of the second training, step by step (a rerun refuses any other)"
    return "equal to the last bit to the plain training's" if report["unharmed"] else "DIFFERENT"


def _asking_on(report: Report) -> str:
    study = report["study"]
    if report["rerun"]:
        return (
            "No keys are stored, so questions about other prompts need the training once more: give them to another "
            f"run, `dualform study {study} --data DATA --out RUN --rerun --prompt TEXT`."
        )
    return (
        f"`dualform study {study} --data DATA --out RUN --prompt TEXT`, RUN being this run's folder, adds a prompt "
        "to this page without training again. The queries of the prompts asked last are in `report/queries.npy`, one a "
        "token: `dualform topk RUN --layer lstm --query RUN/report/queries.npy` lists single datapoints, "
        "`dualform group-sum` with `--by position` every sum."
    )
