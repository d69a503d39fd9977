"""Hubs: training images that many test images attend to (the paper's appendix A).

Whether hubs are such by their keys' length or by their direction is told by ranking with the cosine instead: there
length has no say. The cosine is signed, and so is the weight that it is compared with, for the same test images; behind
the first layer, where no input is negative, that is the paper's absolute weight. Shapes: n queries, I images, k best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform_studies.claims import Claim, judge, judged, verdict_of
from dualform_studies.documents import OftenFound
from dualform_studies.figures import new_figure
from dualform_studies.images.attention import TOP, Datapoints, LayerAttention, best_images, sampled_rows
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.observations import OFTEN
from dualform_studies.images.query_figure import show_picture
from dualform_studies.images.training import Checkpoint
from dualform_studies.report import Report, in_fraction, percent

GREATEST = 10
"""Hubs that are shown."""
COMPARED = 1000
"""Test images that are ranked by cosine: a look at every key for each, where the weight's codes leave most out."""


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
    """By layer, in plain values: of each image the share of the queries that have it among their best."""

    def told(one: LayerHubs, hubs: Hubs, images: NDArray[np.int64]) -> list[Report]:
        return [
            {
                "dataset": str(datapoints.image_datasets[image]),
                "sample": int(datapoints.samples[datapoints.first_slots[image]]),
                "label": int(datapoints.image_labels[image]),
                "weight": float(hubs.shares[image]),
                "norm": float(one.norms[image]),
            }
            for image in images.tolist()
        ]

    return {
        one.layer: {
            "queries": one.weight.queries,
            "compared": one.signed.queries,
            "often": told(one, one.weight, np.flatnonzero(one.weight.shares >= OFTEN)),
            "by weight": told(one, one.signed, one.signed.greatest()),
            "by cosine": told(one, one.cosine, one.cosine.greatest()),
        }
        for one in layers
    }


def draw_hubs(path: Path, hubs: Mapping[str, Report], datasets: Sequence[Dataset]) -> Path:
    """The ten greatest hubs of each layer, of the test images compared; `hubs` as `hubs_report` gives it."""
    sources = {dataset.name: dataset for dataset in datasets}
    rows = [
        (f"{layer}\n{ranking}", found[ranking])
        for layer, found in hubs.items()
        for ranking in ("by weight", "by cosine")
    ]
    compared = next(iter(hubs.values()))["compared"]
    title = f"The greatest hubs: class, share of {compared:,} test images, length of the key"
    with new_figure(path, 0.3 + 1.22 * len(rows), title) as figure:
        grid = figure.subplots(len(rows), GREATEST, squeeze=False)
        for panels, (words, images) in zip(grid, rows, strict=True):
            panels[0].set_ylabel(words, fontsize=7.5)
            for panel in panels[len(images) :]:
                panel.set_axis_off()
            for panel, image in zip(panels, images, strict=False):
                source = sources[image["dataset"]]
                name, part = source.label_names[image["label"]], percent(image["weight"])
                caption = f"{name}\n{part}\nlength {image['norm']:.1f}"
                show_picture(panel, source.picture(source.train.pixels[image["sample"]]), caption)
    return path


_DIGITS, _ZERO = "mnist", 0
_SHARE = f"{in_fraction(OFTEN)} of a study's test images"
SAME = (
    f"the same image is among the {TOP} best of at least {_SHARE}, at some layer, in at least two studies; in part, in "
    "one"
)
ZERO = (
    f"the image found so in most studies is of class {_ZERO} of {_DIGITS}; in part, another that is found so in some "
    "study is"
)
"""The criteria of the two claims, which are judged over the studies and not by any of them."""

Settings: TypeAlias = Mapping[str, Mapping[str, Sequence[OftenFound]]]
"""By study and layer: the training images that are often found among the best."""


@dataclass(frozen=True)
class Hub:
    """A training image that is often found among the best in some study."""

    dataset: str
    sample: int
    """Its row in the file of its dataset."""
    label: int
    shares: Mapping[str, tuple[float, str]]
    """By study: the greatest share of the test images over the layers, from 0 to 1, and that layer."""

    @property
    def is_zero(self) -> bool:
        return (self.dataset, self.label) == (_DIGITS, _ZERO)

    def __str__(self) -> str:
        shares = ", ".join(f"{percent(share)} in {study} ({layer})" for study, (share, layer) in self.shares.items())
        return f"{self.dataset} image {self.sample:,}, class {self.label}: {shares}"


def hubs_by_setting(settings: Settings) -> list[Hub]:
    """Those of most studies first, then those of the greatest shares."""
    hubs: dict[tuple[str, int, int], dict[str, tuple[float, str]]] = {}
    for study, layers in settings.items():
        for layer, images in layers.items():
            for dataset, sample, label, share in images:
                shares = hubs.setdefault((dataset, sample, label), {})
                shares[study] = max(shares.get(study, (0.0, "")), (share, layer))
    return sorted(
        (Hub(*image, shares) for image, shares in hubs.items()),
        key=lambda hub: (-len(hub.shares), -sum(share for share, _ in hub.shares.values())),
    )


def hub_claims(settings: Settings) -> list[Claim]:
    """That one image is a hub in different settings, and that it is a "0"; no claim of fewer than two studies."""
    if len(settings) < 2:
        return []
    hubs = hubs_by_setting(settings)
    hub = hubs[0] if hubs else None
    ours = f"no image is among the {TOP} best of {_SHARE}" if hub is None else str(hub)
    return [
        judge(
            "hubs.same",
            len(hub.shares) if hub else 0,
            f"{ours}; studies: {', '.join(settings)}",
            top=TOP,
            same=SAME,
        ),
        judged(
            "hubs.zero", verdict_of(hub is not None and hub.is_zero, any(one.is_zero for one in hubs)), ours, zero=ZERO
        ),
    ]
