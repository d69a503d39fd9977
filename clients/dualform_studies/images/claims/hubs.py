"""Training images that many test images attend to (the paper's appendix A). Shapes: n queries, I images, k best.

Whether hubs are such by their keys' length or by their direction is told by ranking with the cosine instead: there
length has no say. The cosine is signed, and so is the weight that it is compared with, for the same test images; behind
the first layer, where no input is negative, that is the paper's absolute weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers.rank_correlation import rank_correlation
from dualform.methods import Answers
from dualform_studies.images.claims.attention import LayerAttention, best_images, sampled_rows
from dualform_studies.images.claims.datapoints import Datapoints
from dualform_studies.images.claims.prevalence import OFTEN
from dualform_studies.images.training.recorded import Checkpoint
from dualform_studies.pages.folder import Report

HEADING = "Hubs"
GREATEST = 10
"""Hubs that are shown."""
COMPARED = 1000
"""Test images that are ranked by cosine: a look at every key for each, where the weight's codes leave most out."""
_NORM, _DIRECTION = 2, 8
"""Of the ten greatest hubs, those that stay when length has no say: few may be such by length, many by direction."""


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
    """Of int64[n, k], the best images of each query; `images` is I."""
    ordered = np.sort(best, axis=1)
    first = np.ones(ordered.shape, dtype=np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return Hubs(np.bincount(ordered[first], minlength=images).astype(np.int64), len(best))


@dataclass(frozen=True, eq=False)
class LayerHubs:
    """The hubs of one layer, by several rankings."""

    layer: str
    weight: Hubs
    """Of all test images, by absolute weight, as in the paper."""
    signed: Hubs
    """Of some test images, by signed weight."""
    cosine: Hubs
    """Of the same test images, by cosine."""
    norms: NDArray[np.float64]
    """float64[I]: the mean length of each image's keys."""

    @property
    def surviving(self) -> int:
        """Of the ten greatest hubs by signed weight, how many are among the ten greatest by cosine."""
        return len(np.intersect1d(self.signed.greatest(), self.cosine.greatest()))

    @property
    def cause(self) -> str:
        """What makes the hubs: "length" of keys, their "direction", or "both".

        "neither" where few of them are hubs by cosine, but most images have keys as long as theirs.
        """
        if self.surviving > _NORM:
            return "direction" if self.surviving >= _DIRECTION else "both"
        longer = [(self.norms < self.norms[image]).mean() for image in self.signed.greatest()]
        return "length" if np.mean(longer) > 1 / 2 else "neither"


def ask_hubs(
    memory: Answers,
    attention: Sequence[tuple[Checkpoint, Sequence[LayerAttention]]],
    datapoints: Datapoints,
    norms: Mapping[str, NDArray[np.float64]],
    seed: int = 0,
) -> list[LayerHubs]:
    """The hubs of each layer over the test images of all checkpoints.

    `norms` is float64[T] by layer, the length of each slot's key. COMPARED test images, drawn by chance, are ranked by
    signed weight and by cosine.
    """
    total = len(datapoints.visits)
    drawn = [
        (checkpoint, sampled_rows(len(checkpoint.dataset.test), COMPARED // len(attention), seed))
        for checkpoint, _ in attention
    ]

    def compared(layer: str, score: str) -> Hubs:
        best = [
            best_images(memory, layer, checkpoint.query_set, rows, datapoints, checkpoint.where, score)
            for checkpoint, rows in drawn
        ]
        return hubs_of(np.concatenate(best), total)

    return [
        LayerHubs(
            one.layer,
            hubs_of(np.concatenate([layers[at].best for _, layers in attention]), total),
            compared(one.layer, "dot"),
            compared(one.layer, "cosine"),
            datapoints.mean_by_image(norms[one.layer]),
        )
        for at, one in enumerate(attention[0][1])
    ]


def hubs_report(layers: Sequence[LayerHubs], datapoints: Datapoints) -> Report:
    """By layer, in plain values."""
    return {one.layer: _of_layer(one, datapoints) for one in layers}


def _of_layer(hubs: LayerHubs, datapoints: Datapoints) -> Report:
    ordered = np.sort(hubs.weight.counts)[::-1]
    half = int(np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)) + 1

    def told(images: NDArray[np.int64]) -> list[Report]:
        return [_of_image(hubs, datapoints, image) for image in images.tolist()]

    return {
        "queries": hubs.weight.queries,
        "compared": hubs.signed.queries,
        "images": len(hubs.norms),
        "ever": int((hubs.weight.counts > 0).sum()),
        "half": half,
        "norm_correlation": rank_correlation(hubs.signed.counts.astype(np.float64), hubs.norms),
        "cosine_norm_correlation": rank_correlation(hubs.cosine.counts.astype(np.float64), hubs.norms),
        "surviving": hubs.surviving,
        "cause": hubs.cause,
        "often": told(np.flatnonzero(hubs.weight.shares >= OFTEN)),
        "greatest": told(hubs.weight.greatest()),
        "greatest_signed": told(hubs.signed.greatest()),
        "greatest_by_cosine": told(hubs.cosine.greatest()),
    }


def _of_image(hubs: LayerHubs, datapoints: Datapoints, image: int) -> Report:
    norm = float(hubs.norms[image])
    return {
        "dataset": str(datapoints.image_datasets[image]),
        "sample": int(datapoints.samples[datapoints.first_slots[image]]),
        "label": int(datapoints.image_labels[image]),
        "weight": float(hubs.weight.shares[image]),
        "signed": float(hubs.signed.shares[image]),
        "cosine": float(hubs.cosine.shares[image]),
        "norm": norm,
        "longer_than": float((hubs.norms < norm).mean()),
    }
