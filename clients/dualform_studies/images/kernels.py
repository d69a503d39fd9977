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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.store.reading.snapshot import Snapshot
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.claims import CHANCE, FAILS, HOLDS, IN_PART, Claim, Verdict, is_gain, judged, mcnemar
from dualform_studies.images.datasets import Dataset
from dualform_studies.recorded_memory import key_blocks, layer_info, open_recorded
from dualform_studies.report import Report, percent

_BLOCK = 2048
"""Slots whose scores are held at once."""
_MEMORY = "1.5 GB"
"""Distinct images that come again and again fit, and nothing else is read twice in a pass."""


def attend(path: Path, layer: str, asked: Sequence[tuple[NDArray[np.float32], float]]) -> list[NDArray[np.float32]]:
    """float32[m, d_out] for each pair of queries float32[m, d_in] and temperature: sum_t p_t e_t at the end of the
    training. Pairs may share their queries, whose scores are then computed once.
    """
    each = {id(queries): queries for queries, _ in asked}
    ends = dict(zip(each, np.cumsum([len(queries) for queries in each.values()]).tolist(), strict=True))
    together = np.concatenate(list(each.values()))
    with open_recorded(path, "numpy", _MEMORY) as memory:
        info = layer_info(memory, layer)
        slots = np.arange(info.slots)
        coefficients = memory.coefficients(layer, slots).astype(np.float32)
        running = {
            (id(queries), temperature): _Running(len(queries), temperature, info.d_out)
            for queries, temperature in asked
        }
        for block, keys in key_blocks(memory, layer, slots, _BLOCK):
            scores, values = together @ keys.T, memory.values(layer, slots[block]) * coefficients[block, None]
            for (own, _), sums in running.items():
                sums.add(scores[ends[own] - len(each[own]) : ends[own]], values)
    return [running[id(queries), temperature].mean() for queries, temperature in asked]


class _Running:
    """The sums over the slots that have come so far, relative to each query's greatest score."""

    def __init__(self, queries: int, temperature: float, d_out: int) -> None:
        self._temperature = np.float32(temperature)
        self._greatest = np.full(queries, -np.inf, dtype=np.float32)
        self._totals = np.zeros(queries)
        self._sums = np.zeros((queries, d_out))

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


class Weights(NamedTuple):
    """One layer's."""

    name: str
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
    memory = Snapshot.open(out)
    initial, final = memory.initial(), memory.final()
    assert initial is not None, "the recorder stores it first"
    assert final is not None, "the training came to its end"
    *before, last = weights = [
        Weights(layer, initial[f"{layer}.weight"], final[f"{layer}.weight"], final[f"{layer}.bias"]) for layer in layers
    ]
    kernels = [
        Kernel(temperature, initial) for initial in (True, False) for temperature in (None, *recipe.temperatures)
    ]
    say("asking with other kernels", 0, 2)
    images = _examine(dataset, recipe.last, recipe.last)
    # The last layer alone, over the network's own queries.
    queries = images.inputs
    for own in before:
        queries = np.maximum(own.linear(queries, initial=True), 0)
    answers = _ask(out, [last], queries, kernels)
    baseline, beside = answers[kernels[0]], last.beside(queries)
    scaled = []
    for temperature in recipe.temperatures:
        mean = answers[Kernel(temperature, initial=False)]
        each = [{"scale": s, **images.report(beside + np.float32(s) * mean, baseline)} for s in recipe.scales]
        scaled.append({"temperature": temperature, **max(each, key=lambda row: row["held_out"])})
    report = {"temperatures": list(recipe.temperatures), "last": _compare(images, answers) | {"scaled": scaled}}
    say("asking with other kernels", 1, 2)
    images = _examine(dataset, recipe.every, recipe.every // 2)
    report["every"] = _compare(images, _ask(out, weights, images.inputs, kernels))
    say("asking with other kernels", 2, 2)
    return report


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


def _ask(
    out: Path, layers: Sequence[Weights], inputs: NDArray[np.float32], kernels: Sequence[Kernel]
) -> dict[Kernel, NDArray[np.float32]]:
    """The answers of the last of the layers to inputs of the first, if each answers with a kernel, then the relu."""
    queries = dict.fromkeys(kernels, inputs)
    for layer in layers:
        asked = [(queries[kernel], kernel.temperature) for kernel in kernels if kernel.temperature is not None]
        means = iter(attend(out, layer.name, asked))
        for kernel in kernels:
            if kernel.temperature is None:
                answer = layer.linear(queries[kernel], initial=kernel.initial)
            else:
                answer = next(means) + (layer.beside(queries[kernel]) if kernel.initial else np.float32(0))
            queries[kernel] = answer if layer is layers[-1] else np.maximum(answer, 0)
    return queries


def _compare(images: Examined, answers: Mapping[Kernel, NDArray[np.float32]]) -> Report:
    """With the softmax that is best on the held-out images: of several the one with W_0, then the first."""
    baseline = answers[Kernel(None, initial=True)]
    rows = [kernel._asdict() | images.report(answer, baseline) for kernel, answer in answers.items()]
    chosen = max((row for row in rows if row["temperature"] is not None), key=lambda row: row["held_out"])
    counts = {"tested": int(images.tested.sum()), "held_out": int((~images.tested).sum())}
    return {"images": counts, "kernels": rows, "chosen": chosen}


def kernel_claims(report: Report) -> Iterator[Claim]:
    """Remark 3.2, at the last layer and at every layer."""
    for place, words in {"last": "the last layer", "every": "every layer"}.items():
        chosen, linear = report[place]["chosen"], report[place]["kernels"][0]
        beside = "with" if chosen["initial"] else "without"
        yield judged(
            "single.kernels",
            kernel_verdict(report[place]),
            f"softmax of temperature {chosen['temperature']:g}, {beside} W_0 and bias: {percent(chosen['tested'])}; "
            f"inner product: {percent(linear['tested'])}; of {report[place]['images']['tested']:,} test images "
            f"({chosen['gained']} gained, {chosen['lost']} lost, p = {chosen['p']:.2g})",
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
