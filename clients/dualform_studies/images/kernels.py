"""The trained network with softmax attention in place of the inner product (paper, remarks 2.3 and 3.2).

Softmax attention over all slots of a layer, for many queries and several temperatures in one pass over its memory.

    sum_t p_t e_t        p_t  =  exp(x_t . q / temperature)  /  sum_s exp(x_s . q / temperature)

Scores and products are float32: fast, good enough to count which class is the greatest, and held against the exact
answer of `memory.output(…, kernel="softmax")` where they are used. Shapes: m queries, T slots, b slots of a block,
d_in, d_out.

The trained network with softmax attention in place of the inner product (paper, remarks 2.3 and 3.2).

    y  =  W_0 q  +  b  +  sum_t p_t e_t,    with and without the first two terms

at its last layer alone, whose queries are then the network's own, or at every layer, where what one layer answers is,
after the relu, the next one's query. The training stays what it was: with the inner product. Temperatures are compared
on images of the file that are neither trained nor tested on. Shapes: n images, d_in and d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from dualform.answers import Outputs
from dualform.query.engine import Engine
from dualform.store.snapshot import Snapshot
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.claims import CHANCE, FAILS, HOLDS, IN_PART, Claim, Verdict, is_gain, judged, mcnemar
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.images.datasets import Dataset
from dualform_studies.recorded_memory import layer_info, open_recorded
from dualform_studies.report import Cell, Page, Report, Table, percent, report_folder

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


@dataclass(frozen=True, eq=False)
class Attended:
    sums: NDArray[np.float32]
    """float32[m, d_out]: sum_t p_t e_t."""
    effective_slots: NDArray[np.float64]
    """float64[m]: 1 / sum_t p_t^2."""


def attend(memory: Engine, layer: str, queries: NDArray[np.float32], shares: Sequence[Share]) -> list[Attended]:
    """What each share of float32[m, d_in] attends to at the end of the training; shares may have queries in common."""
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
    return [own.attended() for own in running]


class _Running:
    """The sums over the slots that have come so far, relative to each query's greatest score."""

    def __init__(self, queries: NDArray[np.float32], temperature: float, d_out: int) -> None:
        self._temperature = np.float32(temperature)
        self._greatest = np.full(len(queries), -np.inf, dtype=np.float32)
        self._totals, self._squares = np.zeros((2, len(queries)))
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
        self._squares = self._squares * fade**2 + np.einsum("mb,mb->m", weights, weights)
        self._sums *= fade[:, None]
        self._sums += weights @ values

    def attended(self) -> Attended:
        return Attended((self._sums / self._totals[:, None]).astype(np.float32), self._totals**2 / self._squares)


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


HEADING = "Softmax in place of the inner product"
ALONE = "without the sum: W_0 q + trained bias"
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


def show_kernels(page: Page, report: Report) -> None:
    page.heading(HEADING)
    last, every = report["last"], report["every"]
    page.paragraph(
        "The network was trained with the inner product, and is asked with a softmax over the same slots (remarks 2.3 "
        "and 3.2 of the paper): W_0 q + b + sum of p_t e_t, where the bias b is the trained one, or that sum alone. At "
        f"the last layer the queries are the network's own, of {last['images']['tested']:,} test images; where every "
        f"layer has the kernel, of {every['images']['tested']:,}, and each layer's answer after relu is the next one's "
        "query. (The first test images of each class, as many of each; more would take more than minutes.) All was "
        "computed in float32. At the last layer, for some test images and each temperature, it was held against the "
        'exact answers of output(kernel="softmax"): sums lay within '
        f"{last['off']:.0e} of the greatest, effective slots within the same share of their number. The other layers "
        "were not."
    )
    page.paragraph(
        "Training made a sum of the values, and a softmax makes a mean of them. "
        + " ".join(
            f"At {words}, W_0 q + b alone recognises {percent(report[place]['alone']['tested'])} of the test images, "
            f"and with such a mean beside it, {_span(_softmax(report[place], initial=True))}, by temperature."
            for place, words in _PLACES.items()
        )
        + f" {_chosen(report)} {_scaled(last)}"
    )
    page.show(_last_table(last), _every_table(every))
    page.figure(
        report_folder(page.run) / "kernels.png",
        "Test errors and effective number of slots by the temperature of the softmax (no figure of the paper; its "
        f"remark 3.2). Lines of the last layer are of {last['images']['tested']:,} test images, those of every layer "
        f"of {every['images']['tested']:,}; the lines without marks are the inner product's errors on the same images. "
        "No error at all is drawn as half an image.",
    )


def _span(rows: Sequence[Report]) -> str:
    low, high = (percent(extreme(row["tested"] for row in rows)) for extreme in (min, max))
    return low if low == high else f"{low} to {high}"


def _chosen(report: Report) -> str:
    """Which kernel the held-out images choose, in a sentence."""
    told = " and ".join(
        f"a {_kernel(report[place]['chosen'])} at {words} ({report[place]['images']['held_out']:,} images)"
        for place, words in _PLACES.items()
    )
    return f"Images that were neither trained nor tested on choose {told}."


def _scaled(last: Report) -> str:
    """What a factor makes of it, in a sentence or two."""
    best = max(last["scaled"], key=lambda row: row["held_out"])
    return (
        "As a variant, the sum of the last layer is multiplied by a power of ten that the held-out images choose: "
        f"they choose temperature {best['temperature']:g} and the factor {best['scale']:,.0f}, and of the test images "
        f"{percent(best['tested'])} are recognised ({best['gained']} gained, {best['lost']} lost against the inner "
        f"product, p = {best['p']:.2g})."
    )


def draw_kernels(path: Path, report: Report) -> Path:
    """Test errors above, effective slots below, both by temperature; all scales are logarithmic."""
    with new_figure(path, 4.8) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.8, 1))
        for number, (place, words) in enumerate(_PLACES.items()):
            tested = report[place]["images"]["tested"]
            for initial in (True, False):
                beside = "with W₀ and bias" if initial else "the sum alone"
                _line(above, _softmax(report[place], initial), tested, number, initial, f"{words}, {beside}")
            linear = error(report[place]["kernels"][0], tested)
            above.axhline(
                linear, color=INK[number], linestyle=(":", "-.")[number], linewidth=1.2, label=f"{words}, inner product"
            )
        factor, tested = report["last"]["scaled"], report["last"]["images"]["tested"]
        _line(above, factor, tested, len(_PLACES), False, "the last layer, with W₀, bias, and a factor")
        above.set_yscale("log")
        above.set_ylim(top=130)
        above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        above.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        above.yaxis.set_minor_locator(NullLocator())
        above.set_ylabel("test images mistaken (%)")
        figure.legend(loc="outside upper center", ncols=2)
        rows = _softmax(report["last"], initial=True)
        slots = [row["effective_slots"][0] for row in rows]
        below.plot([row["temperature"] for row in rows], slots, color=INK[0], marker=MARKS[0])
        below.set_yscale("log")
        below.set_xscale("log")
        below.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        below.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        below.set_ylabel("effective slots,\nlast layer (median)")
        below.set_xlabel("temperature of the softmax (in units of the scores)")
        figure.align_ylabels([above, below])
    return path


def _line(panel: Axes, rows: Sequence[Report], tested: int, number: int, filled: bool, label: str) -> None:
    panel.plot(
        [row["temperature"] for row in rows],
        [error(row, tested) for row in rows],
        color=INK[number],
        marker=MARKS[number],
        linestyle="-" if filled else "--",
        markersize=5 if filled else 9,
        markerfacecolor=INK[number] if filled else "none",  # lines may lie on one another
        label=label,
    )


def error(row: Report, tested: int) -> float:
    """In per cent of so many test images; half an image where there is none, for 0 has no logarithm."""
    return 100 * max(1 - float(row["tested"]), 0.5 / tested)


def _softmax(comparison: Report, initial: bool) -> list[Report]:
    rows: list[Report] = comparison["kernels"]
    return [row for row in rows if row["temperature"] is not None and row["initial"] is initial]


def _last_table(comparison: Report) -> Table:
    rows: list[list[Cell]] = []
    with_initial, without = ([row for row in comparison["kernels"] if row["initial"] is one] for one in (True, False))
    scaled = {row["temperature"]: row for row in comparison["scaled"]}
    for one, other in zip(with_initial, without, strict=True):
        effective = f"{one['effective_slots'][0]:,.3g}" if one["effective_slots"] else "-"
        factor = scaled.get(one["temperature"])
        of_factor = ("-", "-") if factor is None else (f"{factor['scale']:,.0f}", percent(factor["tested"]))
        rows.append([_name(one), effective, *map(percent, (one["tested"], other["tested"])), *of_factor])
    rows.append([ALONE, "-", percent(comparison["alone"]["tested"]), "-", "-", "-"])
    caption = (
        f"The last layer by kernel: accuracy on {comparison['images']['tested']:,} test images with W_0 and bias, with "
        "the sum over the slots alone, and with W_0, bias and the sum times a factor that held-out images choose; "
        "effective slots are the median of 1 / sum of p² over the test images."
    )
    columns = ["kernel", "effective slots", "with W_0 and bias", "the sum alone", "factor", "with the factor"]
    return Table("kernels-last", caption, columns, rows)


def _every_table(comparison: Report) -> Table:
    rows: list[list[Cell]] = []
    layers = range(len(comparison["chosen"]["effective_slots"]))
    for row in comparison["kernels"]:
        effective = [f"{slots:,.3g}" for slots in row["effective_slots"]] or ["-" for _ in layers]
        rows.append([_name(row), "yes" if row["initial"] else "no", *effective, *_accuracies(row)])
    rows.append([ALONE, "yes", *("-" for _ in layers), *_accuracies(comparison["alone"])])
    caption = (
        f"Every layer by kernel: accuracy on {comparison['images']['tested']:,} test images and on "
        f"{comparison['images']['held_out']:,} held-out ones; effective slots as in the table above, layer by layer."
    )
    of_layers = [f"effective slots, layer-{number}" for number in layers]
    return Table("kernels-every", caption, ["kernel", "W_0 and bias", *of_layers, "test", "held out"], rows)


def _accuracies(row: Report) -> tuple[str, str]:
    return percent(row["tested"]), percent(row["held_out"])


def _name(row: Report) -> str:
    return "inner product" if row["temperature"] is None else f"softmax of temperature {row['temperature']:g}"


def _kernel(row: Report) -> str:
    return f"{_name(row)}, {'with' if row['initial'] else 'without'} W_0 and bias"
