"""How much attention crosses from one dataset to another (the paper's section 5.3). Shapes: n test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dualform_studies.exact_tests import CHANCE, is_gain
from dualform_studies.images.claims.attention import TOP, LayerAttention
from dualform_studies.images.claims.datapoints import Datapoints
from dualform_studies.images.claims.prevalence import HEADING, OFTEN, Prevalence, over_layers
from dualform_studies.pages.claims import Claim, verdict_of
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.words import in_fraction

_EXAMPLES = {"section 5.3": "one example (Figures 6 and 11)", "section 5.4": "one example (Figures 23 to 25)"}
_NEAR = f"an image of the other dataset is among the {TOP} best images"


def near_others(
    attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str
) -> dict[str, NDArray[np.bool_]]:
    """By layer, bool[n]: whether an image of another dataset than `dataset` is among the three best."""
    foreign = datapoints.image_datasets != dataset
    return {one.layer: foreign[one.best].any(axis=1) for one in attention}


def crossing(attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str) -> Report:
    """By layer, of all test images of a dataset: how many attend across, and the share of attention that crosses.

    `near` is the share of test images with an image of another dataset among their three best, `sums` the share of
    all absolute attention weights that goes to other datasets, a mean over the test images.
    """
    near = near_others(attention, datapoints, dataset)
    report: Report = {}
    for one in attention:
        others = [at for at, (name, _) in enumerate(one.groups) if name != dataset]
        share = one.shares[:, others].sum(axis=1)
        report[one.layer] = {
            "queries": len(one.sums),
            "near": float(near[one.layer].mean()),
            "sums": float(share.mean()),
        }
    return report


def crossing_prevalence(attention: Sequence[LayerAttention], datapoints: Datapoints, dataset: str) -> list[Prevalence]:
    """How many of all test images of a dataset have images of the other among their best, layer by layer."""
    seen = near_others(attention, datapoints, dataset)
    everything = np.ones(len(attention[0].sums), dtype=np.bool_)
    return over_layers(_NEAR, f"test images of {dataset}", everything, seen)


def crossing_claim(section: str, near: Sequence[Prevalence]) -> Claim:
    """Whether attention of Fashion-MNIST to MNIST grows from layer to layer; `near` in the order of the layers."""
    often = near[-1].share >= OFTEN
    everywhere, at_all = all(_rises(*pair) for pair in pairwise(near)), _rises(near[0], near[-1])
    return Claim(
        section,
        "Attention from Fashion-MNIST crosses to MNIST in late layers, as the output is shared.",
        _EXAMPLES[section],
        ", ".join(f"{100 * one.share:.1f} % at {one.layer}" for one in near) + f" of {near[0].total:,} {near[0].among}",
        verdict_of(often and everywhere, often and at_all),
        f"the share of Fashion-MNIST test images with MNIST among their {TOP} best images is at least "
        f"{in_fraction(OFTEN)} at the last layer, and rises from each layer to the next beyond chance (paired sign "
        f"test, p < {CHANCE:g}); in part, rises so from the first layer to the last",
        HEADING,
    )


def _rises(before: Prevalence, after: Prevalence) -> bool:
    """Whether more of the same test images show it, beyond chance."""
    gained, lost = (one.concerned & one.seen & ~other.seen for one, other in ((after, before), (before, after)))
    return is_gain(int(gained.sum()), int(lost.sum()))


def crossing_table(crossings: Mapping[str, Report]) -> Table:
    """`crossings` by dataset of the queries."""
    first = next(iter(next(iter(crossings.values())).values()))
    rows = [
        (dataset, layer, f"{100 * found['near']:.1f}", f"{100 * found['sums']:.1f}")
        for dataset, layers in crossings.items()
        for layer, found in layers.items()
    ]
    caption = (
        f"Attention across datasets, over all {first['queries']:,} test images of each: how many have training images "
        f"of the other dataset among their {TOP} best, and the mean share of all attention weights that goes there."
    )
    columns = ("queries of", "layer", f"with one among the {TOP} best images (%)", "of all weights (%)")
    return Table("crossing", caption, columns, rows)
