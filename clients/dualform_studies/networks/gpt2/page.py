"""The page of the study and its figures, made from its report alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualform_studies.networks.commands import show_commands
from dualform_studies.networks.gpt2.figures import draw_agreement, draw_likeness
from dualform_studies.networks.gpt2.findings import (
    agreement_finding,
    example_finding,
    likeness_finding,
    masks_finding,
    own_predictions,
    share_that_moves_less,
)
from dualform_studies.networks.gpt2.likeness import LIKENESSES
from dualform_studies.networks.reconstructions import show_reconstructions
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent
from dualform_studies.text.passages import Passage

_KINDS = {"right": "A right prediction, drawn at random", "wrong": "A wrong prediction, drawn at random"}


def gpt2_page(out: Path, report: Report) -> Page:
    report["subject"] = (
        f"a GPT-2 of {report['blocks']} blocks at a width of {report['width']} with a vocabulary of "
        f"{report['tokens']['vocabulary']} tokens ({report['parameters']:,} parameters), trained by the Hugging Face "
        f"Trainer on {report['tokens']['train']:,} tokens of Aesop's fables"
    )
    page = Page(out, "A small GPT-2 by the Hugging Face Trainer, AdamW under bfloat16 autocast")
    _describe(page, report)
    for example in report["examples"]:
        _show_example(page, example, report)
    _show_likeness(page, report)
    _show_agreement(page, report)
    _show_masks(page, report)
    show_reconstructions(page, report)
    show_commands(page, report)
    return page


def _describe(page: Page, report: Report) -> None:
    tokens, nats = report["tokens"], report["nats"]
    page.paragraph(
        f"GPT-2 small at a width of {report['width']} in place of 768 and with a vocabulary of {tokens['vocabulary']} "
        f"tokens in place of 50,257, which makes {report['parameters']:,} parameters in place of 124 million: "
        f"{report['blocks']} blocks of {report['heads']} heads, dropout as it comes, output and input embedding tied, "
        "float32 weights under bfloat16 autocast. It reads the fables of Aesop in tokens of a byte pair encoding that "
        f"was learned from them ({tokens['train']:,} tokens in the training text, cut into {report['passages']:,} "
        f"passages of {report['length']}; {report['fables']} fables). The Trainer made {report['steps']:,} updates, "
        f"{report['passes']:.1f} passes over the text, with {report['recipe']}."
    )
    page.paragraph(
        f"The test text is the end of the book's appendix. The network needs {nats['network']:.2f} nats for each of "
        f"its tokens; the frequencies of the tokens alone would need {nats['frequencies']:.2f}. It is asked here as an "
        "example of a network that people train, not of a good one. The memory takes "
        f"{report['disk_bytes'] / 1e9:.2f} GB; the training took {report['seconds']['training'] / 60:.0f} minutes and "
        f"the questions {report['asking_seconds'] / 60:.0f}, on a processor that others used, too."
    )
    asked = report["predictions"]
    page.paragraph(
        f"{asked['asked']} places of the test text were asked about, evenly spaced along it, each with "
        f"{report['first']} to {report['length'] - 2} tokens before it. At {percent(asked['right'])} of them the "
        "likeliest token is the true one. `dualform output` computes the last layer, `lm_head`, from its slots and its "
        "initial weights, for the inputs that the network gave that layer; its likeliest token is likeliest by the "
        f"network's own logits, too, at {percent(asked['as_the_network'])} of the places. Under autocast the network "
        "rounds these to bfloat16, so that several tokens share the greatest one at "
        f"{percent(asked['several_likeliest'])} of the places; those of `dualform output` are not rounded. Slots of "
        "the last token of a passage, which has no next token to predict, are masked in `topk` and `sums`."
    )
    page.paragraph(
        "What attention means here: a score is the inner product of a training token's input to a layer with the "
        "query's, the input of that layer for the prediction. Under AdamW a score times a value is not a contribution, "
        "for the value goes through a scale that all slots made; a high score tells that the layer met an input like "
        "this one there, not that the prediction would be another without it. What a mask does is told below."
    )


def _show_example(page: Page, example: Report, report: Report) -> None:
    page.heading(f"{_KINDS[example['kind']]}: {_quoted(example['said'])}")
    right = example["said"] == example["true"]
    truly = (
        "which is what follows"
        if right
        else f"where {_quoted(example['true'])} follows, to which it gives {percent(example['probability_true'])}"
    )
    page.paragraph(
        f"Drawn at random (seed {report['seed']}) among those of the {report['predictions']['asked']} predictions that "
        f"are {example['kind']}. The network has read “{' '.join(example['read'].split())}” and predicts "
        f"{_quoted(example['said'])} with {percent(example['probability'])}, {truly}."
    )
    rows: list[list[Cell]] = [
        [
            _short(one["layer"]),
            Passage(**one["text"]).marked(),
            one["title"],
            f"{one['score']:.3g}",
            percent(one["share"], ".2f"),
            f"{one['times_slots']:.2f}",
            one["fable"],
            f"{one['fable_times_slots']:.2f}",
        ]
        for one in example["layers"]
    ]
    page.table(
        f"example-{example['kind']}",
        "By layer: the training token attended to most (marked), its fable and score; the share of the absolute "
        "attention to the whole training that its passage draws, also in multiples of the passage's share of the "
        "slots; and the fable that draws most in multiples of its own share of the slots.",
        [
            "layer", "training token attended to most", "its fable", "its score", "its passage's share of attention",
            "that share / the passage's share of slots", "leading fable", "its share of attention / of slots",
        ],
        rows,
    )  # fmt: skip
    page.paragraph(example_finding(example))


def _show_likeness(page: Page, report: Report) -> None:
    told, asked = report["likeness"], report["predictions"]["asked"]
    page.heading("What the training token attended to most shares with the query")
    page.paragraph(
        f"For each of the {asked} predictions and every layer, the training token that the layer attends to most, and "
        "how often it is like the query. Chance is what a training token drawn at random would give."
    )
    folder = report_folder(page.run)
    page.figure(
        draw_likeness(folder / "likeness.png", told),
        "By block and kind of layer, for how many predictions the training token attended to most is the token that "
        "the query read, stands at the same place of its passage, and is followed by the token that the network "
        "predicts. Each panel has its own scale; dotted is chance.",
    )
    rows = [[_short(layer), *(percent(own[name]) for name in LIKENESSES)] for layer, own in told["layers"].items()]
    rows.append(["chance", *(percent(told["chance"][name]) for name in LIKENESSES)])
    page.table(
        "likeness",
        f"For how many of {asked} predictions the training token attended to most is like the query.",
        ["layer", *LIKENESSES.values()],
        rows,
    )
    page.paragraph(likeness_finding(told))


def _show_agreement(page: Page, report: Report) -> None:
    told = report["agreement"]
    page.heading("Whether the layers agree")
    page.paragraph(
        "How often two layers attend most to training tokens of the same passage, for the same prediction. Layers of "
        "different kinds have different inputs, so that a mean over all pairs would describe none of them."
    )
    page.figure(
        draw_agreement(report_folder(page.run) / "agreement.png", told),
        "For how many predictions the training tokens that two layers attend to most stand in the same passage. Layers "
        "are grouped by kind and, within a kind, ordered by depth. attn.c_attn and mlp.c_fc read the residual stream "
        "behind a normalisation, which all blocks add to; attn.c_proj and mlp.c_proj read what their own block made, "
        "which no other layer reads. Where rows and columns of the former two cross, both layers read that stream.",
    )
    page.paragraph(agreement_finding(told))


def _show_masks(page: Page, report: Report) -> None:
    masks, asked = report["masks"], report["predictions"]["asked"]
    drawn = sum(not own_predictions(report, mask) for mask in masks)
    page.heading("A passage removed")
    page.paragraph(
        "For each of the predictions shown above, the passage that most of the ten best hits of all its layers stand "
        f"in was masked, and so were {drawn} passages drawn at random (seed {report['seed']}) among all that were "
        "trained on. A mask takes the passage's share out of the updates that were made, in every layer that has "
        "tokens, through the scales that all passages made; it is not a training without the passage. Each masked "
        f"network was run on the test text, and the log probability of what the whole network predicts compared at the "
        f"{asked} places."
    )
    rows = []
    for mask in masks:
        own, moves = own_predictions(report, mask), np.abs(mask["changes"])
        rows.append(
            [
                f"{mask['passage']} ({mask['title']})",
                " and ".join(f"of the {example['kind']} prediction" for example in own) or "drawn at random",
                " and ".join(f"{mask['changes'][example['prediction']]:+.2g}" for example in own) or "-",
                " and ".join(percent(share_that_moves_less(mask, example), ".0f") for example in own) or "-",
                f"{np.median(moves):.2g}",
                f"{moves.max():.2g}",
                percent(mask["share"], ".0f"),
                f"{mask['greatest']:.2g}",
                f"{mask['furthest']:.2g}",
            ]
        )
    page.table(
        "masks",
        "What each mask does to the log probability of what was predicted, and where in the weights it lies: the share "
        "of the squared distance to the whole network that one per cent of the entries hold (median over the layers), "
        "and the greatest change of an entry in multiples of the distance that its layer's weights moved in training "
        "(median over the layers, and greatest of any). Where few entries hold most of a mask, what it does to a "
        "prediction is an accident of those few.",
        [
            "passage masked", "chosen as", "change of that prediction (nats)", "other predictions that change less",
            "median change of all (nats)", "greatest change of all (nats)", "distance in 1 % of the entries",
            "greatest change of an entry, median layer", "greatest change of an entry, any layer",
        ],
        rows,
    )  # fmt: skip
    page.paragraph(masks_finding(report))


def _short(layer: str) -> str:
    return layer.removeprefix("transformer.")


def _quoted(token: str) -> str:
    return f"“{token.replace(chr(10), '↵').replace(' ', '␣')}”"
