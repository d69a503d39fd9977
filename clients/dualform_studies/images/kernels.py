"""The trained network with softmax attention in place of the inner product (the paper's remarks 2.3 and 3.2).

    y  =  W_0 q  +  b  +  sum_t p_t e_t,    with and without the first two terms
    p_t  =  exp(x_t . q / temperature)  /  sum_s exp(x_s . q / temperature)

at its last layer alone, whose queries are then the network's own, or at every layer, where what one layer answers is,
after the relu, the next one's query. The training stays what it was: with the inner product. Temperatures are compared
on images of the file that are neither trained nor tested on. All sums of a layer come from one pass over its memory;
scores and products are float32: fast, good enough to count which class is the greatest.

Shapes: n images, m queries, T slots, b slots of a block, d_in and d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform.store.reading.snapshot import Snapshot
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.claims import CHANCE, FAILS, HOLDS, IN_PART, Claim, Verdict, is_gain, judged, mcnemar
from dualform_studies.images.datasets import Dataset
from dualform_studies.recorded_memory import layer_info, open_recorded
from dualform_studies.report import Report, percent

_BLOCK = 2048
"""Slots whose scores are held at once."""
_MEMORY = "1.5 GB"
"""Distinct images that come again and again fit, and nothing else is read twice in a pass."""


def open_for_passes(path: Path) -> Engine:
    """The memory in a folder, of which little is held between two reads."""
    return open_recorded(path, "numpy", _MEMORY)


@dataclass(frozen=True)
class Share:
    """Some of the queries, and the temperature that they attend with."""

    queries: slice
    temperature: float


def attend(
    memory: Engine, layer: str, queries: NDArray[np.float32], shares: Sequence[Share]
) -> list[NDArray[np.float32]]:
    """float32[m, d_out] of each share of float32[m, d_in]: sum_t p_t e_t at the end of the training. Shares may have
    queries in common.
    """
    info = layer_info(memory, layer)
    slots = np.arange(info.slots)
    coefficients = memory.coefficients(layer, slots).astype(np.float32)
    running = [_Running(queries[share.queries], share.temperature, info.d_out) for share in shares]
    for start in range(0, len(slots), _BLOCK):
        block = slots[start : start + _BLOCK]
        scores = queries @ memory.keys(layer, block).T
        values = memory.values(layer, block) * coefficients[block, None]
        for share, own in zip(shares, running, strict=True):
            own.add(scores[share.queries], values)
    return [own.mean() for own in running]


class _Running:
    """The sums over the slots that have come so far, relative to each query's greatest score."""

    def __init__(self, queries: NDArray[np.float32], temperature: float, d_out: int) -> None:
        self._temperature = np.float32(temperature)
        self._greatest = np.full(len(queries), -np.inf, dtype=np.float32)
        self._totals = np.zeros(len(queries))
        self._sums = np.zeros((len(queries), d_out))

    def add(self, scores: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        """One block: scores float32[m, b], values float32[b, d_out]."""
        greatest = np.maximum(self._greatest, scores.max(axis=1))
        with np.errstate(under="ignore"):  # what is far from the greatest counts for nothing
            weights = scores - greatest[:, None]
            weights /= self._temperature
            np.exp(weights, out=weights)
            fade = np.exp((self._greatest - greatest) / self._temperature).astype(np.float64)
        self._greatest = greatest
        self._totals = self._totals * fade + weights.sum(axis=1, dtype=np.float64)
        self._sums *= fade[:, None]
        self._sums += weights @ values

    def mean(self) -> NDArray[np.float32]:
        return (self._sums / self._totals[:, None]).astype(np.float32)


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

    def softmax(self, queries: NDArray[np.float32], mean: NDArray[np.float32], *, initial: bool) -> NDArray[np.float32]:
        """float32[n, d_out], with W_0 and the bias beside the slots' mean or without."""
        return self.beside(queries) + mean if initial else mean


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
    """Accuracies by kernel, at the last layer and at every layer."""
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
        means = attend(memory, layers[-1], queries, shares)
    kernels = []
    for initial in (True, False):
        outputs = weights[-1].linear(queries, initial=initial)
        kernels.append(Kernel(None, initial)._asdict() | images.report(outputs, baseline))
        for share, mean in zip(shares, means, strict=True):
            outputs = weights[-1].softmax(queries, mean, initial=initial)
            kernels.append(Kernel(share.temperature, initial)._asdict() | images.report(outputs, baseline))
    beside = weights[-1].beside(queries)
    scaled = []
    for share, mean in zip(shares, means, strict=True):
        each = [{"scale": s, **images.report(beside + np.float32(s) * mean, baseline)} for s in recipe.scales]
        scaled.append({"temperature": share.temperature, **max(each, key=lambda row: row["held_out"])})
    return _comparison(images, kernels) | {"scaled": scaled}


def _ask_every(
    out: Path, layers: Sequence[str], weights: Sequence[Weights], images: Examined, recipe: KernelsRecipe
) -> Report:
    """Every layer, one after the other."""
    (_, baseline), (_, sums_alone) = (_forward(weights, images.inputs, initial=one) for one in (True, False))
    kernels = [Kernel(temperature, initial) for initial in (True, False) for temperature in recipe.temperatures]
    # At the first layer the queries are the images, whatever the kernel: those of a temperature share their weights.
    queries = dict.fromkeys(kernels, images.inputs)
    for number, (layer, own) in enumerate(zip(layers, weights, strict=True)):
        for kernel, mean in _attend_each(out, layer, queries, shared=number == 0).items():
            outputs = own.softmax(queries[kernel], mean, initial=kernel.initial)
            queries[kernel] = outputs if layer == layers[-1] else np.maximum(outputs, 0)
    answers = {Kernel(None, initial=True): baseline, Kernel(None, initial=False): sums_alone} | queries
    return _comparison(images, [kernel._asdict() | images.report(found, baseline) for kernel, found in answers.items()])


def _attend_each(
    out: Path, layer: str, queries: dict[Kernel, NDArray[np.float32]], *, shared: bool
) -> dict[Kernel, NDArray[np.float32]]:
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


def _comparison(images: Examined, kernels: Sequence[Report]) -> Report:
    """With the softmax that is best on the held-out images: of several the one with W_0, then the first."""
    softmax = [row for row in kernels if row["temperature"] is not None]
    chosen = max(softmax, key=lambda row: row["held_out"])
    counts = {"tested": int(images.tested.sum()), "held_out": int((~images.tested).sum())}
    return {"images": counts, "kernels": list(kernels), "chosen": chosen}


_PLACES = {"last": "the last layer", "every": "every layer"}


def kernel_claims(report: Report) -> Iterator[Claim]:
    """Remark 3.2, at the last layer and at every layer."""
    for place, words in _PLACES.items():
        chosen, linear = report[place]["chosen"], report[place]["kernels"][0]
        yield judged(
            "single.kernels",
            kernel_verdict(report[place]),
            f"{_kernel(chosen)}: {percent(chosen['tested'])}; inner product: {percent(linear['tested'])}; of "
            f"{report[place]['images']['tested']:,} test images ({chosen['gained']} gained, {chosen['lost']} lost, "
            f"p = {chosen['p']:.2g})",
            place=words,
            chance=CHANCE,
        )


def kernel_verdict(comparison: Report) -> Verdict:
    """By the paired test of a softmax with the inner product; one that is no better beyond chance proves nothing.

    The softmax that held-out images choose is tested once. The others count in part, those with a factor among them,
    and each by a bound that is smaller by the number of them: of many, one may look better by chance.
    """
    chosen = comparison["chosen"]
    if is_gain(chosen["gained"], chosen["lost"]):
        return HOLDS
    tried = [row for row in comparison["kernels"] if row["temperature"] is not None] + comparison.get("scaled", [])
    return IN_PART if any(is_gain(row["gained"], row["lost"], len(tried)) for row in tried) else FAILS


def _name(row: Report) -> str:
    return "inner product" if row["temperature"] is None else f"softmax of temperature {row['temperature']:g}"


def _kernel(row: Report) -> str:
    return f"{_name(row)}, {'with' if row['initial'] else 'without'} W_0 and bias"
