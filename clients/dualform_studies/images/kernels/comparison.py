"""The trained network with softmax attention in place of the inner product (paper, remarks 2.3 and 3.2).

    y  =  W_0 q  +  b  +  sum_t p_t e_t,    with and without the first two terms

at its last layer alone, whose queries are then the network's own, or at every layer, where what one layer answers is,
after the relu, the next one's query. The training stays what it was: with the inner product. Temperatures are compared
on images of the file that are neither trained nor tested on. Shapes: n images, d_in and d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Outputs
from dualform.store.snapshot import Snapshot
from dualform_studies.exact_tests import mcnemar
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.kernels.softmax_attention import Attended, Share, attend, open_for_passes
from dualform_studies.pages.folder import Report
from dualform_studies.progress import Progress, or_silent

_CHECKED = 5
"""Test images for which sums and effective slots of the last layer are held against the engine's exact ones."""


@dataclass(frozen=True)
class KernelsRecipe:
    temperatures: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    scales: tuple[float, ...] = tuple(10.0**power for power in range(8))
    """What the sum is multiplied by at the last layer, as a variant: a mean of values is as many times smaller."""
    last: int = 100
    """Test images of each class, and as many held-out ones, that the last layer alone is asked about."""
    every: int = 20
    """Of these, test images of each class that are taken through every layer, and half as many held-out ones."""


class Kernel(NamedTuple):
    """What weighs the slots, and whether W_0 and the bias stand beside them."""

    temperature: float | None
    """Of the softmax; None for the inner product."""
    initial: bool


@dataclass(frozen=True, eq=False)
class Weights:
    """One layer's."""

    initial: NDArray[np.float32]
    """float32[d_out, d_in]: W_0."""
    final: NDArray[np.float32]
    bias: NDArray[np.float32]
    """float32[d_out], of the end."""

    def linear(self, queries: NDArray[np.float32], *, initial: bool) -> NDArray[np.float32]:
        """float32[n, d_out]: the layer's own answer, or the part of it that the slots' sum is."""
        return queries @ self.final.T + self.bias if initial else queries @ (self.final - self.initial).T

    def beside(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[n, d_out]: W_0 q + b, what stands beside a softmax; the bias is the trained one."""
        return queries @ self.initial.T + self.bias

    def softmax(self, queries: NDArray[np.float32], attended: Attended, *, initial: bool) -> NDArray[np.float32]:
        """float32[n, d_out], with W_0 and the bias beside the sum or without."""
        return self.beside(queries) + attended.sums if initial else attended.sums


@dataclass(frozen=True, eq=False)
class Examined:
    """The images of one comparison: test images and held-out ones."""

    inputs: NDArray[np.float32]
    """float32[n, pixels]."""
    labels: NDArray[np.int64]
    tested: NDArray[np.bool_]
    """bool[n]: test images; the others are held out."""

    def report(self, outputs: NDArray[np.float32], baseline: NDArray[np.float32]) -> Report:
        """Accuracies of outputs [n, classes], and how the tested ones compare with those of the network."""
        right, before = (found.argmax(axis=1) == self.labels for found in (outputs, baseline))
        gained = int((right & ~before)[self.tested].sum())
        lost = int((before & ~right)[self.tested].sum())
        return {
            "held_out": float(right[~self.tested].mean()),
            "tested": float(right[self.tested].mean()),
            "gained": gained,
            "lost": lost,
            "p": mcnemar(gained, lost),
        }


def ask_kernels(
    out: Path,
    dataset: Dataset,
    layers: Sequence[str],
    progress: Progress | None = None,
    recipe: KernelsRecipe | None = None,
) -> Report:
    """Accuracies by kernel, with medians of the effective number of slots over the test images."""
    recipe, say = recipe or KernelsRecipe(), or_silent(progress)
    weights = _weights(out, layers)
    last, every = _examine(dataset, recipe.last, recipe.last), _examine(dataset, recipe.every, recipe.every // 2)
    say("asking with other kernels", 0, 2)
    report: Report = {"temperatures": list(recipe.temperatures), "last": _ask_last(out, layers, weights, last, recipe)}
    say("asking with other kernels", 1, 2)
    report["every"] = _ask_every(out, layers, weights, every, recipe)
    say("asking with other kernels", 2, 2)
    return report


def _weights(out: Path, layers: Sequence[str]) -> list[Weights]:
    memory = Snapshot.open(out)
    initial, final = memory.initial(), memory.final()
    assert initial is not None, "the recorder stores it first"
    assert final is not None, "the training came to its end"
    return [Weights(initial[f"{layer}.weight"], final[f"{layer}.weight"], final[f"{layer}.bias"]) for layer in layers]


def _examine(dataset: Dataset, tested: int, held_out: int) -> Examined:
    """So many test images of each class, and so many held-out ones: the first of each in their files."""
    left = np.setdiff1d(np.arange(len(dataset.train)), dataset.split.kept)
    rows = [
        (dataset.test, _first_of_each(dataset.test.labels, np.arange(len(dataset.test)), tested)),
        (dataset.train, _first_of_each(dataset.train.labels, left, held_out)),
    ]
    return Examined(
        np.concatenate([dataset.inputs(images, own) for images, own in rows]),
        np.concatenate([images.labels[own] for images, own in rows]),
        np.repeat([True, False], [len(own) for _, own in rows]),
    )


def _first_of_each(labels: NDArray[np.int64], rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.sort(np.concatenate([rows[labels[rows] == label][:count] for label in np.unique(labels)]))


def _forward(
    weights: Sequence[Weights], inputs: NDArray[np.float32], *, initial: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The queries of the last layer and its outputs, of a network whose layers answer with the inner product."""
    queries = inputs
    for own in weights[:-1]:
        queries = np.maximum(own.linear(queries, initial=initial), 0)
    return queries, weights[-1].linear(queries, initial=initial)


def _ask_last(
    out: Path, layers: Sequence[str], weights: Sequence[Weights], images: Examined, recipe: KernelsRecipe
) -> Report:
    """The last layer alone, over the network's own queries."""
    queries, baseline = _forward(weights, images.inputs, initial=True)
    shares = [Share(slice(None), temperature) for temperature in recipe.temperatures]
    with open_for_passes(out) as memory:
        attended = attend(memory, layers[-1], queries, shares)
        ask = partial(memory.output, layers[-1], queries[:_CHECKED], kernel="softmax", initial=False)
        exact = [ask(temperature=share.temperature) for share in shares]
    kernels = []
    for initial in (True, False):
        outputs = weights[-1].linear(queries, initial=initial)
        kernels.append(_row(Kernel(None, initial), images.report(outputs, baseline), []))
        for share, one in zip(shares, attended, strict=True):
            outputs = weights[-1].softmax(queries, one, initial=initial)
            effective = [_median(one, images)]
            kernels.append(_row(Kernel(share.temperature, initial), images.report(outputs, baseline), effective))
    off = max(_distance(*both) for both in zip(attended, exact, strict=True))
    beside = weights[-1].beside(queries)
    scaled = []
    for share, one in zip(shares, attended, strict=True):
        each = [{"scale": s, **images.report(beside + np.float32(s) * one.sums, baseline)} for s in recipe.scales]
        scaled.append({"temperature": share.temperature, **max(each, key=lambda row: row["held_out"])})
    return _comparison(images, kernels, images.report(beside, baseline)) | {"scaled": scaled, "off": off}


def _ask_every(
    out: Path, layers: Sequence[str], weights: Sequence[Weights], images: Examined, recipe: KernelsRecipe
) -> Report:
    """Every layer, one after the other."""
    (_, baseline), (_, sums_alone) = (_forward(weights, images.inputs, initial=one) for one in (True, False))
    kernels = [Kernel(temperature, initial) for initial in (True, False) for temperature in recipe.temperatures]
    medians: dict[Kernel, list[float]] = {kernel: [] for kernel in kernels}
    # At the first layer the queries are the images, whatever the kernel: those of a temperature share their weights.
    queries = dict.fromkeys(kernels, images.inputs)
    for number, (layer, own) in enumerate(zip(layers, weights, strict=True)):
        for kernel, one in _attend_each(out, layer, queries, shared=number == 0).items():
            medians[kernel].append(_median(one, images))
            outputs = own.softmax(queries[kernel], one, initial=kernel.initial)
            queries[kernel] = outputs if layer == layers[-1] else np.maximum(outputs, 0)
    rows = [_row(Kernel(None, initial=True), images.report(baseline, baseline), [])]
    rows.append(_row(Kernel(None, initial=False), images.report(sums_alone, baseline), []))
    rows += [_row(kernel, images.report(queries[kernel], baseline), medians[kernel]) for kernel in kernels]
    outputs = images.inputs
    for number, own in enumerate(weights):
        outputs = own.beside(np.maximum(outputs, 0) if number else outputs)
    return _comparison(images, rows, images.report(outputs, baseline))


def _attend_each(
    out: Path, layer: str, queries: dict[Kernel, NDArray[np.float32]], *, shared: bool
) -> dict[Kernel, Attended]:
    """What each kernel's queries attend to, in one pass over the layer's memory."""
    temperatures = {kernel: kernel.temperature for kernel in queries if kernel.temperature is not None}
    each = next(iter(queries.values()))
    with open_for_passes(out) as memory:
        if shared:
            distinct = list(dict.fromkeys(temperatures.values()))
            found = attend(memory, layer, each, [Share(slice(None), temperature) for temperature in distinct])
            return {kernel: found[distinct.index(temperature)] for kernel, temperature in temperatures.items()}
        starts = range(0, len(each) * len(queries), len(each))
        shares = [
            Share(slice(start, start + len(each)), temperature)
            for start, temperature in zip(starts, temperatures.values(), strict=True)
        ]
        return dict(zip(queries, attend(memory, layer, np.concatenate(list(queries.values())), shares), strict=True))


def _median(attended: Attended, images: Examined) -> float:
    return float(np.median(attended.effective_slots[images.tested]))


def _distance(found: Attended, exact: Outputs) -> float:
    """Of the sums, relative to the greatest, or of effective slots, each relative to itself: whichever is further."""
    assert exact.effective_slots is not None, "a softmax has them"
    sums = np.abs(found.sums[: len(exact)] - exact.values).max() / np.abs(exact.values).max()
    slots = np.abs(found.effective_slots[: len(exact)] / exact.effective_slots - 1).max()
    return float(max(sums, slots))


def _row(kernel: Kernel, report: Report, effective_slots: Sequence[float]) -> Report:
    return {**kernel._asdict(), **report, "effective_slots": list(effective_slots)}


def _comparison(images: Examined, kernels: Sequence[Report], alone: Report) -> Report:
    """With the softmax that is best on the held-out images: of several the one with W_0, then the first.

    `alone`: W_0 and the trained bias without the sum.
    """
    softmax = [row for row in kernels if row["temperature"] is not None]
    chosen = max(softmax, key=lambda row: row["held_out"])
    counts = {"tested": int(images.tested.sum()), "held_out": int((~images.tested).sum())}
    return {"images": counts, "kernels": list(kernels), "alone": alone, "chosen": chosen}
