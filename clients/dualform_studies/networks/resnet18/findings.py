"""What the study of ResNet-18 found, in sentences that are made from its figures.

Which of its wordings a sentence takes follows from the figures as well, so that another training cannot falsify it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dualform_studies.networks.ranges import span
from dualform_studies.networks.resnet18.figures import short
from dualform_studies.pages.folder import Report
from dualform_studies.pages.words import percent

_LAST = ("network.layer4.", "network.fc")
"""Of the last stage and the classifier."""
_OFTEN = 0.1
"""An image that leads for so many test images leads whatever is asked."""
_AS_MUCH, _MOST = 0.9, 0.5
"""Of what the mask of a class takes, what the control takes as well."""


def example_finding(example: Report, report: Report) -> str:
    layers, predicted = example["layers"], report["class_names"][example["said"]]
    same = sum(one["label"] == example["said"] for one in layers)
    images = Counter(one["image"] for one in layers)
    often = [
        one["layer"] for one in layers if report["attention"][one["layer"]]["leads_for"][str(one["image"])] >= _OFTEN
    ]
    early = sum(not _is_last(layer) for layer in often)
    conclusion = (
        f"At {len(often)} layers, {early} of them before layer4, the same image leads for a tenth of the "
        f"{report['asked']['images']} test images or more: there it says something about the layer, and nothing about "
        "this test image."
        if often
        else f"At no layer does the same image lead for a tenth of the {report['asked']['images']} test images."
    )
    return (
        f"Finding: the training image that gets most attention is of the predicted class, {predicted}, at {same} of "
        f"{len(layers)} layers; {len(images)} different images lead. {conclusion}"
    )


def classes_finding(report: Report) -> str:
    told = report["attention"]
    last = [one for layer, one in told.items() if _is_last(layer)]
    before = [one for layer, one in told.items() if not _is_last(layer)]
    worst = max(told, key=lambda layer: max(told[layer]["leads_for"].values()))
    shares = [[one["said"] for one in those] for those in (before, last)]
    conclusion = (
        "So attention goes to the predicted class in the last stage, and hardly before it."
        if min(shares[1]) > max(shares[0])
        else "So attention goes to the predicted class before the last stage, too."
    )
    return (
        f"Finding: before layer4 the class that gets most attention is the predicted one for {_percents(shares[0])} "
        f"of the test images, in layer4 and fc for {_percents(shares[1])} (chance: 10 %). {conclusion} Of "
        f"{report['recipe']['images']:,} training images, {span([one['images'] for one in before], 'd')} lead for any "
        f"of the {report['asked']['images']} test images at a layer before layer4, and "
        f"{span([one['images'] for one in last], 'd')} at a later one. At {short(worst)} a single image leads for "
        f"{percent(max(told[worst]['leads_for'].values()))}: the pictures of such a layer are the same for every "
        "question."
    )


def masks_finding(report: Report) -> str:
    whole, *masks = report["masks"]
    drawn = [mask for mask in masks if mask["label"] is None]
    of_class = [mask for mask in masks if mask["label"] is not None]
    told = []
    for name, words in (
        ("recognised", "with the running statistics of the training"),
        ("new_statistics", "with new statistics"),
    ):
        without, of_drawn, of_classes = _mean(whole[name]), _means(drawn, name), _means(of_class, name)
        told.append(
            f"{words}, the network recognises {percent(without)} of all test images, {_percents(of_classes)} with the "
            f"class removed and {_percents(of_drawn)} with as many images removed that were drawn at random: "
            + _conclusion(without - max(of_drawn), without - min(of_classes))
        )
    return f"Finding: {'. '.join(one[0].upper() * bool(at) + one[bool(at) :] for at, one in enumerate(told))}."


def _conclusion(at_random: float, of_class: float) -> str:
    """How many test images either removal loses, as shares of all of them."""
    if of_class <= 0:
        return "removing the class loses nothing"
    also = at_random / of_class
    if also >= _AS_MUCH:
        return "images at random ruin the network as much, so the ablation does not show the effect of the class"
    if also >= _MOST:
        return (
            f"images at random lose {percent(also, '.0f')} as much as the class, so most of the loss is not specific "
            "to the class"
        )
    return f"images at random lose {percent(also, '.0f')} as much as the class"


def _is_last(layer: str) -> bool:
    return layer.startswith(_LAST)


def _means(masks: Sequence[Report], name: str) -> list[float]:
    return [_mean(mask[name]) for mask in masks]


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares)


def _percents(shares: Sequence[float]) -> str:
    return f"{span([100 * share for share in shares], '.1f')} %"
