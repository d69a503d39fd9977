"""The page of the study, made from its report alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dualform_studies.networks.certificates import show_certificates
from dualform_studies.networks.commands import show_commands
from dualform_studies.networks.gpt2.likeness import LIKENESSES
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, MarkedPassage, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent
from dualform_studies.text.passages import Passage

_MANY = 20
"""Masks of own passages from which on their effect is a frequency."""
_KINDS = {
    "right": "The surest prediction that is right",
    "letters": "The surest prediction of letters that is right",
    "wrong": "The surest prediction of letters that is wrong",
}


def gpt2_page(out: Path, report: Report) -> Page:
    page = Page(out, "A GPT-2 by the Hugging Face Trainer, AdamW in bfloat16")
    _describe(page, report)
    for example in report["examples"]:
        _show_example(page, example, report)
    _show_likeness(page, report)
    _show_agreement(page, report)
    _show_masks(page, report)
    show_certificates(page, report)
    show_commands(page, report)
    return page


def _describe(page: Page, report: Report) -> None:
    tokens, nats = report["tokens"], report["nats"]
    page.paragraph(
        f"GPT-2 small at a width of {report['width']} in place of 768: 12 blocks of 12 heads, dropout as it comes, "
        f"{report['parameters']:,} parameters, output and input embedding tied. It reads the fables of Aesop in tokens "
        f"of a byte pair encoding that was learned from them ({tokens['vocabulary']} tokens; {tokens['train']:,} in "
        f"the training text, cut into {report['passages']:,} passages of {report['length']}; {report['fables']} "
        f"fables). The Trainer made {report['steps']:,} updates, {report['passes']:.1f} passes over the text, with "
        f"{report['recipe']}."
    )
    page.paragraph(
        f"The test text, the end of the book's appendix, is foretold at {nats['network']:.2f} nats a token; the "
        f"frequencies of the tokens alone give {nats['frequencies']:.2f}. It is asked here as an example of a network "
        "that people train, not of a good one. The memory takes "
        f"{report['disk_bytes'] / 1e9:.2f} GB; the training took {report['seconds']['training'] / 60:.0f} minutes and "
        f"the questions {report['asking_seconds'] / 60:.0f}, on a processor that others used, too."
    )
    asked = report["predictions"]
    page.paragraph(
        f"{asked['asked']} places of the test text were asked about, evenly along it, each with 16 to 62 tokens before "
        f"it. At {percent(asked['right'])} of them the likeliest token is the true one. What `dualform output` says "
        f"from the memory alone has the network's own likeliest token at {percent(asked['as_the_network'])}. Slots of "
        "the last token of a passage, behind which nothing is foretold, are masked in every question."
    )
    page.paragraph(
        "What attention says: a score is the inner product of a training token's input to a layer with the "
        "prediction's. Under AdamW a score times a value is no contribution, for the value goes through the scale that "
        "all slots made; a high score tells that the layer met an input like this one there, not that the prediction "
        "would be another without it. What masking says is told below, beside what masking others does."
    )


def _show_example(page: Page, example: Report, report: Report) -> None:
    page.heading(f"{_KINDS[example['kind']]}: {_quoted(example['said'])}")
    truly = (
        "which is what follows"
        if example["said"] == example["true"]
        else f"where {_quoted(example['true'])} follows, to which it gives {percent(example['probability_true'])}"
    )
    page.paragraph(
        f"The network has read “{' '.join(example['read'].split())}”, and says {_quoted(example['said'])} with "
        f"{percent(example['probability'])}, {truly}."
    )
    rows: list[list[Cell]] = [
        [
            one["layer"].removeprefix("transformer."),
            _marked(one["text"]),
            one["title"],
            one["score"],
            percent(one["share"], ".2f"),
            one["times_chance"],
            one["fable"],
            one["fable_times_chance"],
        ]
        for one in example["layers"]
    ]
    page.table(
        f"example-{example['kind']}",
        "By layer: the training token attended to most (marked), its fable and score; what its passage draws of the "
        "absolute attention of the whole training, and that beside its number of slots; and the fable that draws most "
        "beside its own.",
        ["layer", "training passage", "fable", "score", "passage's share", "of chance", "leading fable", "of chance"],
        _apart(rows),
    )


def _apart(rows: list[list[Cell]]) -> list[list[Cell]]:
    """Numbers with three digits."""
    return [[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row] for row in rows]


def _show_likeness(page: Page, report: Report) -> None:
    told = report["likeness"]
    page.heading("What the layers look for")
    page.paragraph(
        f"Of each of the {report['predictions']['asked']} predictions the training token that a layer attends to most, "
        "and how often it is like the query. Chance is what a training token drawn at random would give."
    )
    page.figure(
        report_folder(page.run) / "likeness.png",
        "By depth and kind of layer, how often the training token attended to most is the query's own token, stands at "
        "the same place of its passage, and is followed by the token that the network says. Dotted: chance.",
    )
    rows = [
        [layer.removeprefix("transformer."), *(percent(own[name]) for name in LIKENESSES)]
        for layer, own in told["layers"].items()
    ]
    rows.append(["chance", *(percent(told["chance"][name]) for name in LIKENESSES)])
    page.table(
        "likeness",
        f"Of {report['predictions']['asked']} predictions, for how many it is so that …",
        ["layer", *LIKENESSES.values()],
        rows,
    )


def _show_agreement(page: Page, report: Report) -> None:
    told = report["agreement"]
    shares = list(told["by_layer"].values())
    page.heading("Whether the layers agree")
    page.paragraph(
        f"Two layers attend most to the same passage for {percent(float(np.mean(shares)))} of the predictions, in the "
        f"mean over all pairs; for two different predictions they do for {percent(told['chance'], '.2f')}. "
        f"{_most_and_least(told['by_layer'])}"
    )
    page.figure(
        report_folder(page.run) / "agreement.png",
        "How often the training tokens that two layers attend to most stand in the same passage.",
    )


def _most_and_least(by_layer: Report) -> str:
    ordered = sorted(by_layer, key=by_layer.__getitem__)
    least, most = ordered[0], ordered[-1]
    return (
        f"{most.removeprefix('transformer.')} agrees most with the others ({percent(by_layer[most])}), "
        f"{least.removeprefix('transformer.')} least ({percent(by_layer[least])})."
    )


def _show_masks(page: Page, report: Report) -> None:
    masks = report["masks"]
    own, count = masks["own"], masks["masks"]
    page.heading("A passage masked")
    page.paragraph(
        f"For {own} predictions the passage that most of the best hits of all layers stand in was masked in every "
        f"layer that knows passages, and {count - own} passages drawn by chance; each masked network was run again. "
        "The mask takes a passage's share out of the updates that were made, through the scales that all passages "
        "made; it is not a training without it. The log probability of what the network says moves by "
        f"{masks['own_median']:.2g} nats (median) under the mask of the prediction's own passage, and by "
        f"{masks['others_median']:.2g} under another's. Its own moves it furthest for {masks['furthest']} of the "
        f"{own}; if the passages did not matter, that would be so for {own / count:.1f}."
        + (" So few predictions show what a mask may do, not how often it does." if own < _MANY else "")
    )
    page.show(Table("masks", _MASKS, _MASK_COLUMNS, list(_mask_rows(masks))))


_MASKS = (
    "What each mask does: how far it moves the log probability of what was said, for the prediction whose passage it "
    "is and, in the median, for the others; and its concentration: the share of the squared distance from the whole "
    "that lies in one per cent of the entries, and the furthest move of an entry in multiples of its layer's way "
    "(medians over the layers, and the furthest of any layer). Where few entries hold most of a mask, what it does "
    "to a prediction is an accident of those few."
)
_MASK_COLUMNS = (
    "passage masked", "is", "own prediction (nats)", "others, median (nats)", "share in 1 %", "furthest", "of any layer"
)  # fmt: skip


def _mask_rows(masks: Report) -> Iterator[list[Cell]]:
    for at, (passage, title) in enumerate(zip(masks["masked"], masks["titles"], strict=True)):
        changes, concentrated = masks["changes"][at], masks["concentration"][at]
        mine = at < masks["own"]
        others = np.abs([change for number, change in enumerate(changes) if not mine or number != at])
        yield [
            f"{passage} ({title.capitalize()})",
            f"of prediction {masks['predictions'][at]}" if mine else "by chance",
            f"{changes[at]:+.2g}" if mine else None,
            f"{float(np.median(others)):.2g}" if len(others) else None,
            percent(concentrated["share"], ".0f"),
            f"{concentrated['greatest']:.2g}",
            f"{concentrated['furthest']:.2g}",
        ]


def _marked(text: Report) -> MarkedPassage:
    return Passage(**text).marked()


def _quoted(token: str) -> str:
    return f"“{token.replace(chr(10), '↵').replace(' ', '␣')}”"
