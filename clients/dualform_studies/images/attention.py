"""What all test images attend to: sums over classes, the best images, and hubs (the paper's appendix A).

Weights are absolute, as in the paper: inputs of the first layer may be negative, and after relu nothing changes. The
best are images, as in the paper's figures: a slot is one visit of an image, and visits of one have the same key at the
first layer and like keys after it.

Hubs are training images that many test images attend to. Whether they are such by their keys' length or by their
direction is told by ranking with the cosine instead: there length has no say. The cosine is signed, and so is the
weight that it is compared with, for the same test images; after the first layer, where no input is negative, that is
the paper's absolute weight.

Shapes: T slots, n test images, G groups, I training images, k best slots of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.methods import Answers
from dualform.query.engine import Engine
from dualform.questions import QuerySetExamples
from dualform_studies.claims import Claim, judge, judged, verdict_of
from dualform_studies.figures import Rows, new_figure, show_pictures
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.training import Checkpoint
from dualform_studies.recorded_memory import distinct_slots, key_blocks
from dualform_studies.report import Report, in_fraction, percent


@dataclass(frozen=True, eq=False)
class Datapoints:
    """Of each slot, in the order of slots. An image that is trained on in every epoch has a slot for each visit."""

    datasets: NDArray[np.object_]
    """object[T]: names of datasets."""
    labels: NDArray[np.int64]
    """int64[T]."""
    samples: NDArray[np.int64]
    """int64[T]: of each image, its row in the file of its dataset."""
    steps: NDArray[np.int64]
    """int64[T]: the updates, from 0, that it was part of."""

    @cached_property
    def images(self) -> NDArray[np.int64]:
        """int64[T]: the image of each slot; images are numbered from 0, by dataset and row."""
        _, sources = np.unique(self.datasets, return_inverse=True)
        numbers = sources * (self.samples.max() + 1) + self.samples
        return np.asarray(np.unique(numbers, return_inverse=True)[1])

    @cached_property
    def visits(self) -> NDArray[np.int64]:
        """int64[I]: how often each image was trained on."""
        return np.bincount(self.images).astype(np.int64)

    @cached_property
    def first_slots(self) -> NDArray[np.int64]:
        """int64[I]: the slot of each image's first visit."""
        return np.asarray(np.unique(self.images, return_index=True)[1])

    @cached_property
    def image_datasets(self) -> NDArray[np.object_]:
        """object[I]: names of datasets."""
        return self.datasets[self.first_slots]

    @cached_property
    def image_labels(self) -> NDArray[np.int64]:
        """int64[I]."""
        return self.labels[self.first_slots]

    def mean_by_image(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[I]: the mean over each image's slots of float64[T]."""
        return np.asarray(np.bincount(self.images, values) / self.visits)


def ask_datapoints(memory: Answers) -> Datapoints:
    """All slots of a memory that has one slot space."""
    ((space, count),) = memory.info().slots.items()
    columns = memory.slots(np.arange(count), space)
    labels, samples, steps = (np.asarray(columns[name], dtype=np.int64) for name in ("label", "sample", "step"))
    return Datapoints(np.asarray(columns["dataset"], dtype=object), labels, samples, steps)


def ask_key_norms(memory: Engine, layer: str) -> NDArray[np.float64]:
    """float64[T]: the length of each slot's key, in float64."""
    # Where inputs repeat, each distinct key is stored, and measured, once.
    first, rows = distinct_slots(memory, layer)
    wide = (keys.astype(np.float64) for _, keys in key_blocks(memory, layer, first))
    norms = [np.sqrt(np.einsum("td,td->t", keys, keys)) for keys in wide]
    return np.concatenate(norms)[rows]


TOP = 3
"""The paper shows the three training images of greatest weight."""
_BY = ("dataset", "label")
_AT_ONCE = 1024
"""Queries of one question: their scores take memory together."""


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of all test images of a dataset at one layer."""

    layer: str
    groups: tuple[GroupKey, ...]
    """(dataset, label) of each group: the classes of the datasets that were trained on, in the order of training."""
    sums: NDArray[np.float64]
    """float64[n, G]: the absolute attention weights of each group summed; 0 of a class without datapoints."""
    best: NDArray[np.int64]
    """int64[n, TOP]: the images of greatest absolute weight, best first, as `Datapoints.images` numbers them."""

    def columns(self, dataset: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the groups of labels of one dataset."""
        return np.asarray(self.groups.index((dataset, 0)) + labels)

    def leading(self) -> NDArray[np.int64]:
        """int64[n]: the group with the greatest sum."""
        return np.asarray(self.sums.argmax(axis=1))

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[n, G]: of all attention of each image, from 0 to 1; 0 of an image that attends to nothing."""
        total = self.sums.sum(axis=1, keepdims=True)
        return np.asarray(np.divide(self.sums, total, out=np.zeros_like(self.sums), where=total > 0))


@dataclass(frozen=True, eq=False)
class Seen:
    """What all test images of one dataset attend to, and what the network takes them for."""

    checkpoint: Checkpoint
    layers: Sequence[LayerAttention]
    points: Datapoints
    given: NDArray[np.int64]
    """int64[n]: the class that the network gives each test image."""

    @property
    def dataset(self) -> Dataset:
        return self.checkpoint.dataset

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.dataset.test.labels

    @property
    def right(self) -> NDArray[np.bool_]:
        """bool[n]: the test images that are recognised."""
        return np.equal(self.given, self.labels)


def ask_attention(
    memory: Answers, layers: Sequence[str], checkpoint: Checkpoint, datasets: Sequence[Dataset], points: Datapoints
) -> Seen:
    """Sums over classes and the best images of every test image of a checkpoint, layer by layer."""
    found, rows = [], np.arange(len(checkpoint.dataset.test))
    for layer in layers:
        query_set = QuerySetExamples(checkpoint.query_set)
        answer = memory.group_sum(layer, query_set, by=_BY, where=checkpoint.where, score="abs")
        sums = _spread(answer.sums, answer.groups, datasets)
        best = best_images(memory, layer, checkpoint, rows, points, "abs")
        found.append(LayerAttention(layer, classes_of(datasets), sums, best))
    return Seen(checkpoint, found, points, checkpoint.classes_given(memory))


def best_images(
    memory: Answers, layer: str, checkpoint: Checkpoint, rows: NDArray[np.int64], points: Datapoints, score: str
) -> NDArray[np.int64]:
    """int64[n, TOP]: the images of greatest score of some test images, best first; a score is that of the best visit.

    There must be TOP images among the datapoints.
    """
    # So many slots surely hold TOP images: one scan, where the engine's own distinct hits may take two.
    enough = (TOP - 1) * int(points.visits.max()) + 1
    best = points.images[best_slots(memory, layer, checkpoint, rows, enough, score)]
    return np.array([list(dict.fromkeys(row))[:TOP] for row in best.tolist()], dtype=np.int64)


def best_slots(
    memory: Answers, layer: str, checkpoint: Checkpoint, rows: NDArray[np.int64], k: int, score: str
) -> NDArray[np.int64]:
    """int64[n, k]: the k slots of greatest score of some test images, best first; fewer if there are no more."""
    parts = []
    for start in range(0, len(rows), _AT_ONCE):
        queries = QuerySetExamples(checkpoint.query_set, tuple(rows[start : start + _AT_ONCE].tolist()))
        hits = memory.topk(layer, queries, k=k, where=checkpoint.where, score=score)
        parts.append(hits.ids.reshape(len(hits), -1))
    return np.concatenate(parts)


def sampled_rows(images: int, count: int, seed: int = 0) -> NDArray[np.int64]:
    """int64[count], ascending: test images drawn by chance, all of them where there are no more."""
    drawn = np.random.default_rng(seed).choice(images, min(count, images), replace=False)
    return np.sort(drawn).astype(np.int64)


def ask_greatest(
    memory: Answers, layer: str, checkpoint: Checkpoint, rows: NDArray[np.int64], datasets: Sequence[Dataset]
) -> NDArray[np.float64]:
    """float64[n, G]: the greatest absolute weight in each class, of some test images; 0 without datapoints."""
    queries = QuerySetExamples(checkpoint.query_set, tuple(rows.tolist()))
    hits = memory.topk(layer, queries, k=1, where=checkpoint.where, by=_BY, score="abs")
    scores = hits.flat_scores.reshape(len(rows), -1).astype(np.float64)
    return _spread(scores, hits.groups or (), datasets)


def classes_of(datasets: Sequence[Dataset]) -> tuple[GroupKey, ...]:
    """Every class of every dataset, whether or not the training has seen it."""
    return tuple((dataset.name, label) for dataset in datasets for label in range(len(dataset.label_names)))


def _spread(
    values: NDArray[np.float64], groups: Sequence[GroupKey], datasets: Sequence[Dataset]
) -> NDArray[np.float64]:
    """Columns of `groups` put where `classes_of` has them."""
    classes = classes_of(datasets)
    spread = np.zeros((len(values), len(classes)))
    spread[:, [classes.index(group) for group in groups]] = values
    return spread


OFTEN = 1 / 20
"""What is said to happen, and not to be the rule, happens of this share of the test images at least."""
GREATEST = 10
"""Hubs that are shown."""
COMPARED = 1000
"""Test images that are ranked by cosine: a look at every key for each, where the weight's codes leave most out."""


def ask_hubs(memory: Engine, seen: Sequence[Seen]) -> Report:
    """`layer_hubs` of each layer, over the test images of all datasets; COMPARED of them are ranked by cosine, too."""
    points = seen[0].points
    rows = [sampled_rows(len(one.labels), COMPARED // len(seen)) for one in seen]
    report: Report = {}
    for at, layer in enumerate(one.layer for one in seen[0].layers):
        rankings = [[one.layers[at].best for one in seen]]
        for score in ("dot", "cosine"):
            compared = zip(seen, rows, strict=True)
            rankings.append([best_images(memory, layer, one.checkpoint, own, points, score) for one, own in compared])
        best = [np.concatenate(each) for each in rankings]
        shares = [np.bincount(each.ravel(), minlength=len(points.visits)) / len(each) for each in best]
        norms = points.mean_by_image(ask_key_norms(memory, layer))
        report[layer] = {"queries": len(best[0]), "compared": len(best[1])} | layer_hubs(points, norms, *shares)
    return report


def layer_hubs(
    points: Datapoints,
    norms: NDArray[np.float64],
    weight: NDArray[np.float64],
    signed: NDArray[np.float64],
    cosine: NDArray[np.float64],
) -> Report:
    """The hubs of one layer in plain values.

    `norms` is float64[I], the mean length of each image's keys; the others are float64[I], the share of the queries
    that have an image among their best: by absolute weight, as in the paper, of all test images, and of some by signed
    weight and by cosine.
    """

    def told(shares: NDArray[np.float64], images: NDArray[np.int64]) -> list[Report]:
        return [
            {
                "dataset": str(points.image_datasets[image]),
                "sample": int(points.samples[points.first_slots[image]]),
                "label": int(points.image_labels[image]),
                "weight": float(shares[image]),
                "norm": float(norms[image]),
            }
            for image in images.tolist()
        ]

    def greatest(shares: NDArray[np.float64]) -> list[Report]:
        """The images found most often, and where they tie by number; none that was never found."""
        order = np.argsort(-shares, kind="stable")[:GREATEST]
        return told(shares, order[shares[order] > 0])

    return {
        "often": told(weight, np.flatnonzero(weight >= OFTEN)),
        "by weight": greatest(signed),
        "by cosine": greatest(cosine),
    }


def draw_hubs(path: Path, hubs: Mapping[str, Report], datasets: Sequence[Dataset]) -> Path:
    """The ten greatest hubs of each layer, of the test images compared; `hubs` as `ask_hubs` gives it."""
    sources = {dataset.name: dataset for dataset in datasets}
    rows: Rows = {}
    for layer, found in hubs.items():
        for ranking in ("by weight", "by cosine"):
            pictures = rows[f"{layer}\n{ranking}"] = []
            for image in found[ranking]:
                source, name = sources[image["dataset"]], sources[image["dataset"]].label_names[image["label"]]
                caption = f"{name}\n{percent(image['weight'])}\nlength {image['norm']:.1f}"
                pictures.append((source.train_picture(image["sample"]), caption))
    compared = next(iter(hubs.values()))["compared"]
    title = f"The greatest hubs: class, share of {compared:,} test images, length of the key"
    with new_figure(path, 0.3 + 1.22 * len(rows), title) as figure:
        show_pictures(figure, rows, GREATEST, fontsize=7.5)
    return path


Found: TypeAlias = Mapping[tuple[str, int, int], tuple[float, str]]
"""By dataset, row in its file and label: the greatest share of a study's test images over the layers, from 0 to 1, and
that layer, of the images that are often found among the best."""


def often_found(hubs: Mapping[str, Report]) -> Found:
    """Of one study, whose report has `hubs` as `ask_hubs` gives them."""
    found: dict[tuple[str, int, int], tuple[float, str]] = {}
    for layer, own in hubs.items():
        for one in own["often"]:
            image = one["dataset"], one["sample"], one["label"]
            found[image] = max(found.get(image, (0.0, "")), (one["weight"], layer))
    return found


_ZERO = ("mnist", 0)
_SHARE = f"{in_fraction(OFTEN)} of a study's test images"


def hub_claims(settings: Mapping[str, Found]) -> list[Claim]:
    """That one image is a hub in different studies, and that it is a "0"; no claim of fewer than two studies."""
    if len(settings) < 2:
        return []
    hubs: dict[tuple[str, int, int], dict[str, tuple[float, str]]] = {}
    for study, found in settings.items():
        for image, best in found.items():
            hubs.setdefault(image, {})[study] = best
    ranked = sorted(hubs.items(), key=lambda hub: (-len(hub[1]), -sum(share for share, _ in hub[1].values())))
    studies, ours, zeros = 0, f"no image is among the {TOP} best of {_SHARE}", [False]
    if ranked:
        (dataset, sample, label), shares = ranked[0]
        told = ", ".join(f"{percent(share)} in {study} ({layer})" for study, (share, layer) in shares.items())
        studies, ours = len(shares), f"{dataset} image {sample:,}, class {label}: {told}"
        zeros = [(dataset, label) == _ZERO for (dataset, _, label), _ in ranked]
    return [
        judge("hubs.same", studies, f"{ours}; studies: {', '.join(settings)}", top=TOP, share=_SHARE),
        judged("hubs.zero", verdict_of(zeros[0], any(zeros)), ours),
    ]
