"""What the study of GPT-2 found, in sentences that are made from its figures.

Which of its wordings a sentence takes follows from the figures as well, so that another training cannot falsify it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from dualform_studies.networks.ranges import span
from dualform_studies.pages.folder import Report
from dualform_studies.pages.words import percent

_RESIDUAL = ("attn.c_attn", "mlp.c_fc", "lm_head")
"""Layers whose input is the residual stream behind a normalisation."""
_STANDS_OUT = 3
"""A passage or fable draws so many times the attention that its slots would, where a layer is said to rest on it."""
_FIRST_BLOCK = "transformer.h.0."
_MOSTLY = 0.9
"""A prediction moves with the few where so many of the others move less."""


def example_finding(example: Report) -> str:
    layers = example["layers"]
    passages = Counter(one["passage"] for one in layers)
    times, fables = ([one[name] for one in layers] for name in ("times_slots", "fable_times_slots"))
    greatest = max([*times, *fables])
    conclusion = (
        f"Attention is spread over the training: nothing gets {_STANDS_OUT} times its share."
        if greatest < _STANDS_OUT
        else f"One of them gets {greatest:.1f} times its share, and stands out."
    )
    return (
        "Finding: each layer attends most to one training token. The passages of these tokens get "
        f"{span(times, '.2f')} times their share of the attention, by number of slots (median {np.median(times):.2f}); "
        f"the leading fables get {span(fables, '.2f')} times theirs. {conclusion} The {len(layers)} layers lead to "
        f"{len(passages)} different passages, at most {max(passages.values())} of them to the same one."
    )


def likeness_finding(told: Report) -> str:
    layers, chance = told["layers"], told["chance"]
    residual = [layer for layer in layers if reads_residual(layer)]
    first = [layer for layer in residual if layer.startswith(_FIRST_BLOCK)]
    later = [layer for layer in residual if layer not in first]
    inner = [layer for layer in layers if layer not in residual]

    def shares(those: Iterable[str], name: str) -> list[float]:
        return [layers[layer][name] for layer in those]

    token, following = shares(later, "token"), shares(layers, "said")
    conclusion = (
        "Layers that read the residual stream attend by the token that was read, more than by its place or by the "
        "prediction."
        if np.mean(token) > max(np.mean(shares(later, "position")), np.mean(shares(later, "said")))
        else "The token that was read does not lead the attention of layers that read the residual stream."
    )
    return (
        "Finding: in block 0, which reads token and place embeddings, attn.c_attn and mlp.c_fc attend most to the "
        f"query's own token for {_percents(shares(first, 'token'))} of the predictions, and to its place for "
        f"{_percents(shares(first, 'position'))}. Later layers that read the residual stream (attn.c_attn, mlp.c_fc, "
        f"lm_head) attend most to the query's token for {_percents(token)} (chance: {percent(chance['token'])}), and "
        f"to its place for {percent(float(np.mean(shares(later, 'position'))))} on average (chance: "
        f"{percent(chance['position'])}). attn.c_proj and mlp.c_proj attend to its token for "
        f"{_percents(shares(inner, 'token'))}. The predicted token follows for {_percents(following)} (chance: "
        f"{percent(chance['said'])}). {conclusion}"
    )


def agreement_finding(told: Report) -> str:
    names, same = told["layers"], np.array(told["same"])
    reads = np.array([reads_residual(name) for name in names])
    pairs = np.tril(np.ones_like(same, dtype=bool), -1)
    both = reads[:, None] & reads[None]
    among, others = (float(same[pairs & those].mean()) for those in (both, ~both))
    conclusion = (
        "So only the layers that read the residual stream agree."
        if among > 2 * others
        else "So layers that read the residual stream agree no more than others."
    )
    return (
        f"Finding: two layers that read the residual stream attend most to the same passage for {percent(among)} of "
        f"the predictions, two others for {percent(others)} (chance, from two different predictions: "
        f"{percent(told['chance'], '.2f')}). {conclusion}"
    )


def masks_finding(report: Report) -> str:
    own = [(mask, example) for mask in report["masks"] for example in own_predictions(report, mask)]
    told = [
        f"the {example['kind']} prediction by {mask['changes'][example['prediction']]:+.2g} nats, further than "
        f"{percent(share_that_moves_less(mask, example), '.0f')} of the others"
        for mask, example in own
    ]
    medians = [float(np.median(np.abs(mask["changes"]))) for mask in report["masks"]]
    clear = sum(share_that_moves_less(mask, example) >= _MOSTLY for mask, example in own)
    conclusion = (
        "A prediction need not depend on the passage it attends to most."
        if clear < len(own)
        else "Here the prediction depends on the passage it attends to most, more than most others do."
    )
    return (
        f"Finding: removing the passage attended to most moves {', and '.join(told)}; for a passage drawn at random, "
        f"50 % would be expected. The median prediction moves by {span(medians, '.2g')} nats in the {len(medians)} "
        f"ablations. {conclusion} So few ablations do not say how often this happens."
    )


def own_predictions(report: Report, mask: Report) -> list[Report]:
    """The examples whose passage a mask takes out; none of a passage that was drawn at random."""
    return [example for example in report["examples"] if example["passage"] == mask["passage"]]


def share_that_moves_less(mask: Report, example: Report) -> float:
    """Of all other predictions, how many the mask moves less than that of the example, from 0 to 1."""
    moves = np.abs(mask["changes"])
    others = np.delete(moves, example["prediction"])
    return float((others < moves[example["prediction"]]).mean())


def reads_residual(layer: str) -> bool:
    return layer.endswith(_RESIDUAL)


def _percents(shares: Iterable[float]) -> str:
    return f"{span([100 * share for share in shares], '.1f')} %"
