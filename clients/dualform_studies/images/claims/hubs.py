"""Training images that many test images attend to (the paper's appendix A). Shapes: n queries, I images, k best slots.

A slot is one visit of an image, and the three best may all be visits of the same one: an image counts once a query.
Whether hubs are such by their keys' length or by their direction is told by ranking with the cosine instead: there
length has no say. At the first layer, where inputs may be negative, both rankings of that comparison are signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform_studies.images.claims.attention import TOP, LayerAttention, best_slots, sampled_rows
from dualform_studies.images.claims.datapoints import Datapoints
from dualform_studies.images.recorded import Checkpoint
from dualform_studies.pages.claims import Claim, verdict
from dualform_studies.pages.folder import Report

HEADING = "Hubs"
GREATEST = 10
"""Hubs that are shown."""
COMPARED = 1000
"""Test images that are ranked by cosine: a look at every key for each, where the weight's codes leave most out."""
_OFTEN = 0.05
"""An image is "often found in the top-3 matches" from this share of the test images on."""
_NORM, _DIRECTION = 2, 8
"""Of the ten greatest hubs, those that stay when length has no say: as few make it length, as many direction."""


@dataclass(frozen=True, eq=False)
class Hubs:
    """How often each training image is among the best of a number of queries."""

    counts: NDArray[np.int64]
    """int64[I]: queries that have it among their best."""
    queries: int

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[I]: of the queries, from 0 to 1."""
        shares: NDArray[np.float64] = self.counts / self.queries
        return shares

    def greatest(self, most: int = GREATEST) -> NDArray[np.int64]:
        """The images found most often, most often first, and where they tie by number; none that was never found."""
        order = np.argsort(-self.counts, kind="stable")[:most]
        return order[self.counts[order] > 0]


def hubs_of(best: NDArray[np.int64], images: int) -> Hubs:
    """Of int64[n, k], the images of each query's best slots; `images` is I."""
    ordered = np.sort(best, axis=1)
    first = np.ones(ordered.shape, dtype=np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return Hubs(np.bincount(ordered[first], minlength=images).astype(np.int64), len(best))


def distinct(best: NDArray[np.int64], count: int = TOP) -> NDArray[np.int64]:
    """int64[n, count]: the first images of each row that differ, in their order; the first again if there are fewer."""
    rows = [list(dict.fromkeys(row))[:count] for row in best.tolist()]
    return np.array([row + row[:1] * (count - len(row)) for row in rows], dtype=np.int64)


def enough_for_distinct(datapoints: Datapoints, count: int = TOP) -> int:
    """How many best slots surely hold `count` images, where there are as many."""
    slots = (count - 1) * int(datapoints.visits.max()) + 1
    return min(slots, len(datapoints.images))


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's: the correlation of ranks, equal values having their mean rank; None where either does not vary."""
    ranks = [_mean_ranks(values) for values in (one, other)]
    deviations = [rank - rank.mean() for rank in ranks]
    scale = float(np.sqrt((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum()))
    return float((deviations[0] * deviations[1]).sum()) / scale if scale else None


def _mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[places]
    return ranks


@dataclass(frozen=True, eq=False)
class LayerHubs:
    """The hubs of one layer, by several rankings."""

    layer: str
    slots: Hubs
    """Of all test images, by absolute weight, as in the paper: images among the three best slots."""
    images: Hubs
    """The same, of the three best images."""
    signed: Hubs
    """Of some test images, by signed weight, images among the three best slots."""
    cosine: Hubs
    """Of the same test images, by cosine."""
    norms: NDArray[np.float64]
    """float64[I]: the mean length of each image's keys."""

    @property
    def surviving(self) -> int:
        """Of the ten greatest hubs by weight, how many are among the ten greatest by cosine."""
        return len(np.intersect1d(self.signed.greatest(), self.cosine.greatest()))

    @property
    def cause(self) -> str:
        """What makes the hubs: "length" of keys, their "direction", or "both"."""
        if self.surviving <= _NORM:
            return "length"
        return "direction" if self.surviving >= _DIRECTION else "both"


def ask_hubs(
    memory: Answers,
    attention: Sequence[tuple[Checkpoint, Sequence[LayerAttention]]],
    datapoints: Datapoints,
    norms: Mapping[str, NDArray[np.float64]],
    seed: int = 0,
) -> list[LayerHubs]:
    """The hubs of each layer over the test images of all checkpoints.

    `attention` has so many best slots of each test image as `enough_for_distinct` says; `norms` is float64[T] by layer,
    the length of each slot's key. COMPARED test images, drawn by chance, are ranked by signed weight and by cosine.
    """
    images, total = datapoints.images, len(datapoints.visits)
    drawn = [
        (checkpoint, sampled_rows(len(checkpoint.dataset.test), COMPARED // len(attention), seed))
        for checkpoint, _ in attention
    ]

    def compared(layer: str, score: str) -> Hubs:
        best = [
            best_slots(memory, layer, checkpoint.probe, rows, TOP, checkpoint.where, score)
            for checkpoint, rows in drawn
        ]
        return hubs_of(images[np.concatenate(best)], total)

    found = []
    for at, one in enumerate(attention[0][1]):
        best = images[np.concatenate([layers[at].top for _, layers in attention])]
        found.append(
            LayerHubs(
                one.layer,
                hubs_of(best[:, :TOP], total),
                hubs_of(distinct(best), total),
                compared(one.layer, "signed"),
                compared(one.layer, "cosine"),
                datapoints.mean_by_image(norms[one.layer]),
            )
        )
    return found


def hub_claims(layers: Sequence[LayerHubs], datapoints: Datapoints, digits: str) -> list[Claim]:
    """That one image is a hub at several layers, and that it is a "0" of the dataset `digits`."""
    often = sum((one.slots.shares >= _OFTEN).astype(np.int64) for one in layers)
    total = sum(one.slots.shares for one in layers)
    hub = int(np.lexsort((-np.asarray(total), -np.asarray(often)))[0])
    shares = ", ".join(f"{100 * one.slots.shares[hub]:.1f} % at {one.layer}" for one in layers)
    where = f"of the three best slots of {layers[0].slots.queries:,} test images"
    zeros = (datapoints.datasets == digits) & (datapoints.labels == 0)
    is_zero = zeros[datapoints.first_slots]
    leaders = [one.layer for one in layers if is_zero[one.slots.greatest(1)].any()]
    return [
        Claim(
            "appendix A",
            "One training image is often found among the top-3 matches in different settings.",
            'a "0" (Figure 10a)',
            f"{name_image(datapoints, hub)}: {shares} {where}",
            verdict(int(np.asarray(often)[hub]), 2, 1),
            "the same image is among the three best slots of at least 5 % of the test images at two layers; in part, "
            "at one",
            HEADING,
        ),
        Claim(
            "appendix A",
            'The training image that is often found is a "0".',
            'a "0" (Figure 10a)',
            f"{name_image(datapoints, hub)}; the greatest hub is a 0 at {', '.join(leaders) or 'no layer'}",
            verdict(2 if is_zero[hub] else int(bool(leaders)), 2, 1),
            "the image of the claim above is of class 0; in part, the image found most often at some layer is",
            HEADING,
        ),
    ]


def name_image(datapoints: Datapoints, image: int) -> str:
    """Its dataset, row and class."""
    slot = datapoints.first_slots[image]
    return f"{datapoints.datasets[slot]} image {datapoints.samples[slot]:,}, class {datapoints.labels[slot]}"


def hubs_report(layers: Sequence[LayerHubs], datapoints: Datapoints) -> Report:
    """By layer, in plain values."""
    return {one.layer: _of_layer(one, datapoints) for one in layers}


def _of_layer(hubs: LayerHubs, datapoints: Datapoints) -> Report:
    ordered = np.sort(hubs.slots.counts)[::-1]
    half = int(np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)) + 1
    return {
        "queries": hubs.slots.queries,
        "compared": hubs.signed.queries,
        "images": len(hubs.norms),
        "ever": int((hubs.slots.counts > 0).sum()),
        "half": half,
        "norm_correlation": rank_correlation(hubs.slots.counts.astype(np.float64), hubs.norms),
        "cosine_norm_correlation": rank_correlation(hubs.cosine.counts.astype(np.float64), hubs.norms),
        "surviving": hubs.surviving,
        "cause": hubs.cause,
        "greatest": [_of_image(hubs, datapoints, int(image)) for image in hubs.slots.greatest()],
        "greatest_by_cosine": [_of_image(hubs, datapoints, int(image)) for image in hubs.cosine.greatest()],
    }


def _of_image(hubs: LayerHubs, datapoints: Datapoints, image: int) -> Report:
    slot = datapoints.first_slots[image]
    norm = float(hubs.norms[image])
    return {
        "dataset": str(datapoints.datasets[slot]),
        "sample": int(datapoints.samples[slot]),
        "label": int(datapoints.labels[slot]),
        "slots": float(hubs.slots.shares[image]),
        "images": float(hubs.images.shares[image]),
        "signed": float(hubs.signed.shares[image]),
        "cosine": float(hubs.cosine.shares[image]),
        "norm": norm,
        "longer_than": float((hubs.norms < norm).mean()),
    }
