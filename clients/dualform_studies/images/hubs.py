"""Hubs: training images that many test images attend to (the paper's appendix A).

Training images that many test images attend to (the paper's appendix A). Shapes: n queries, I images, k best.

Whether hubs are such by their keys' length or by their direction is told by ranking with the cosine instead: there
length has no say. The cosine is signed, and so is the weight that it is compared with, for the same test images; behind
the first layer, where no input is negative, that is the paper's absolute weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from dualform.answers.influence import rank_correlation
from dualform.methods import Answers
from dualform_studies.claims import Claim, judge, judged, verdict_of
from dualform_studies.documents import OftenFound
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.images.attention import TOP, Datapoints, LayerAttention, best_images, sampled_rows
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.observations import OFTEN
from dualform_studies.images.query_figure import show_picture
from dualform_studies.images.training import Checkpoint
from dualform_studies.report import Report, in_fraction, percent

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


def draw_hub_distribution(path: Path, layers: Sequence[LayerHubs]) -> Path:
    """Of each training image the share of the test images compared that have it among their best, descending."""
    with new_figure(path, 3.2, "How many test images attend most to the same training image") as figure:
        panels = figure.subplots(1, len(layers), sharex=True, sharey=True, squeeze=False)[0]
        for panel, one in zip(panels, layers, strict=True):
            rankings = {"by weight": one.signed.shares, "by cosine": one.cosine.shares}
            for at, (words, shares) in enumerate(rankings.items()):
                _draw_ranks(panel, shares, at, words)
            panel.set_title(one.layer, loc="left", pad=3)
            panel.set_xlabel("rank of the training image")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        panels[0].set_ylabel(f"test images that have it\namong their {TOP} best (%)")
        handles, words = panels[0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=len(handles))
    return path


def _draw_ranks(panel: Axes, shares: NDArray[np.float64], at: int, words: str) -> None:
    ordered = np.sort(shares[shares > 0])[::-1]
    ranks = np.arange(1, len(ordered) + 1)
    marked = np.unique(np.searchsorted(ranks, np.geomspace(1, len(ranks), 7).round()))
    panel.loglog(
        ranks,
        100 * ordered,
        ("-", "--")[at],
        color=INK[at],
        marker=MARKS[at],
        markersize=4,
        markevery=marked.tolist(),
        linewidth=1.3,
        label=words,
    )


def draw_hubs(path: Path, hubs: Mapping[str, Report], datasets: Sequence[Dataset]) -> Path:
    """The ten greatest hubs of each layer, of the test images compared; `hubs` as `hubs_report` gives it."""
    sources = {dataset.name: dataset for dataset in datasets}
    rows = [
        (f"{layer}\n{words}", found[ranking], share)
        for layer, found in hubs.items()
        for ranking, words, share in (
            ("greatest_signed", "by weight", "signed"),
            ("greatest_by_cosine", "by cosine", "cosine"),
        )
    ]
    compared = next(iter(hubs.values()))["compared"]
    title = f"The greatest hubs: class, share of {compared:,} test images, length of the key"
    with new_figure(path, 0.3 + 1.22 * len(rows), title) as figure:
        grid = figure.subplots(len(rows), GREATEST, squeeze=False)
        for panels, (words, images, share) in zip(grid, rows, strict=True):
            panels[0].set_ylabel(words, fontsize=7.5)
            for panel in panels[len(images) :]:
                panel.set_axis_off()
            for panel, image in zip(panels, images, strict=False):
                source = sources[image["dataset"]]
                name, part = source.label_names[image["label"]], f"{100 * image[share]:.1f} %"
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
