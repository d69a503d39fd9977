"""Test accuracy with a class removed from the sum, and of networks retrained without it.

Parts of a succession's second training, masked one at a time: what the network is worth without each.

    W_masked = W_T - (W_part - W_0)

where W_part is the sum of the part's slots alone: adding up a tenth of the slots costs a tenth of adding up the rest.

The second part of a succession trained again, without what a mask leaves out.

Every retraining goes on from what the first part left, network and momentum alike, so that only the second is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import nn

from dualform.query.engine import Engine
from dualform_studies.assignment import Progress
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.training import (
    Pair,
    Recipe,
    TrainedNetwork,
    Weights,
    accuracy,
    batch_rows,
    batches,
    copied,
    layer_names,
    train,
    with_weights,
    without,
)
from dualform_studies.recorded_memory import reconstruction_errors
from dualform_studies.report import Report

_LAST_OF_3000 = (30, 100, 300, 600, 1000, 2000, 2900)
"""Last steps to leave out, of 3,000; of another number of steps, as large a share."""


@dataclass(frozen=True)
class Part:
    """Some of the training on the second dataset."""

    words: str
    slots: str
    """The SQL condition that is true of its slots alone."""
    mask: str
    """The SQL condition that is true of all others."""
    label: int | None = None
    """The class of its images, None where it holds all classes."""
    last: int = 0
    """Of a part with all classes: how many steps, counted from the end of training."""


def parts(pair: Pair, recipe: Recipe) -> list[Part]:
    """The whole second dataset, each of its classes, and its last steps, more and more of them."""
    second = pair[1]
    own, end = f"dataset = '{second.name}'", 2 * recipe.steps
    whole = Part(f"all of {second.name}", own, without(second), last=recipe.steps)
    classes = [
        Part(f"its class {label}, {name}", f"{own} AND label = {label}", f"NOT ({own} AND label = {label})", label)
        for label, name in enumerate(second.label_names)
    ]
    last = [Part(f"its last {n:,} steps", f"step >= {end - n}", f"step < {end - n}", last=n) for n in _last(recipe)]
    return [whole, *classes, *last]


def _last(recipe: Recipe) -> list[int]:
    scaled = {max(1, round(n * recipe.steps / 3000)) for n in _LAST_OF_3000}
    return sorted(n for n in scaled if n < recipe.steps)


def masked_weights(memory: Engine, part: Part) -> Weights:
    """What `memory.weights(where=part.mask)` gives, but for float32's rounding; for training without weight decay."""
    whole, alone, initial = memory.weights(), memory.weights(where=part.slots), memory.weights(at_step=0)
    return {name: (whole[name].double() - (alone[name].double() - initial[name].double())).float() for name in whole}


def sweep(
    memory: Engine,
    chosen: Sequence[Part],
    retrained: Sequence[Weights],
    trained: TrainedNetwork,
    pair: Pair,
    recipe: Recipe,
    progress: Progress | None = None,
) -> list[Report]:
    """For each part the test accuracies of the masked network and of the one retrained without it, by dataset.

    Beside them how many datapoints the mask leaves out, and by layer how much these cancel each other and how far they
    moved the weights together, as a multiple of how far all of training did. The first row is of the network as it was
    trained, with nothing left out.
    """
    widths = recipe.widths(pair[0])
    whole, initial = memory.weights(), memory.weights(at_step=0)

    def judged(weights: Weights) -> dict[str, float]:
        network = with_weights(widths, weights)
        return {dataset.name: accuracy(network, dataset) for dataset in pair}

    final = judged(trained.final)
    rows: list[Report] = [
        {"part": "nothing", "label": None, "last": 0, "datapoints": 0, "masked": final, "retrained": final}
    ]
    counts = _counts(memory, chosen)
    for done, (part, other, count) in enumerate(zip(chosen, retrained, counts, strict=True)):
        if progress is not None:
            progress("masking parts", done, len(chosen))
        masked = masked_weights(memory, part)
        rows.append(
            {
                "part": part.words,
                "mask": part.mask,
                "label": part.label,
                "last": part.last,
                "datapoints": count,
                "masked": judged(masked),
                "retrained": judged(other),
                "cancellation": dict(memory.cancellation(where=part.mask)),
                "moved": reconstruction_errors(whole, masked, initial, layer_names(widths)),
            }
        )
    return rows


def _counts(memory: Engine, chosen: Sequence[Part]) -> list[int]:
    """Slots of each part."""
    columns = (f"count(*) FILTER (WHERE {part.slots}) AS part_{at}" for at, part in enumerate(chosen))
    answer = memory.sql(f"SELECT {', '.join(columns)} FROM slots")
    return [int(answer[f"part_{at}"][0]) for at in range(len(chosen))]


_SECOND = 1


def retrain(
    trained: TrainedNetwork,
    chosen: Sequence[Part],
    pair: Pair,
    recipe: Recipe,
    seed: int,
    progress: Progress | None = None,
) -> list[Weights]:
    """The network that training without each part gives.

    Without its last steps, training ends so many steps earlier. Without a class, it takes as many steps on the images
    of the other classes, which come in the same order as before.
    """
    stops = sorted({recipe.steps - part.last for part in chosen if part.label is None})
    stopped = dict(zip(stops, stop_at(trained, stops, pair, recipe, seed), strict=True))
    found = []
    for done, part in enumerate(chosen):
        if progress is not None:
            progress("retraining", done, len(chosen))
        if part.label is None:
            found.append(stopped[recipe.steps - part.last])
        else:
            found.append(leave_out(trained, part.label, pair, recipe, seed))
    return found


def stop_at(trained: TrainedNetwork, stops: Sequence[int], pair: Pair, recipe: Recipe, seed: int) -> list[Weights]:
    """The weights after so many updates on the second dataset; `stops` ascend, from 0 to recipe.steps at most."""
    network, optimizer = _after_first(trained, pair, recipe)
    second = pair[1]
    stream = batches(second, batch_rows(second.split.trained, recipe, seed, _SECOND))
    found = []
    for done, stop in pairwise((0, *stops)):
        train(network, optimizer, islice(stream, stop - done), recipe.clip)
        found.append(copied(network))
    return found


def leave_out(trained: TrainedNetwork, label: int, pair: Pair, recipe: Recipe, seed: int) -> Weights:
    """The weights after recipe.steps updates on the second dataset without the images of one class."""
    network, optimizer = _after_first(trained, pair, recipe)
    second = pair[1]
    train(network, optimizer, batches(second, _rows_without(label, second, recipe, seed)), recipe.clip)
    return copied(network)


def _rows_without(label: int, dataset: Dataset, recipe: Recipe, seed: int) -> Iterator[NDArray[np.int64]]:
    """The rows of the order that the whole dataset was trained in, without one class, in full batches."""
    endless = batch_rows(dataset.split.trained, replace(recipe, steps=sys.maxsize), seed, _SECOND)
    waiting = np.empty(0, dtype=np.int64)
    for _ in range(recipe.steps):
        while len(waiting) < recipe.batch:
            rows = next(endless)
            waiting = np.concatenate([waiting, rows[dataset.train.labels[rows] != label]])
        yield waiting[: recipe.batch]
        waiting = waiting[recipe.batch :]


def _after_first(trained: TrainedNetwork, pair: Pair, recipe: Recipe) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network and an optimizer of their own, as they were when the first dataset was done."""
    network = with_weights(recipe.widths(pair[0]), trained.after_first)
    optimizer = recipe.optimizer(network)
    # A copy: loading shares the tensors, and the updates to come change them in place.
    optimizer.load_state_dict(deepcopy(trained.optimizer_after_first))
    return network, optimizer


_ROW = 0.36
"""Inches: the height of one part's row."""
_ROOM = 1.9
"""Factor by which the dots' axis goes beyond the greatest, for its figure stands to the right of it."""
_DOTS = {
    "cancellation": ("cancellation", "sum of norms /\nnorm of sum"),
    "moved": ("weights moved", "by the part /\nby training"),
}
"""What stands beside the accuracies: the panel's title and its axis."""


def draw_masks(path: Path, swept: Sequence[Report], pair: Pair) -> Path:
    """A row each for nothing left out, the whole second dataset, and each of its classes; `swept` as `sweep` gives it.

    Beside the accuracies stand the greatest cancellation of a layer, and the greatest multiple of what training moved.
    """
    nothing, whole, *others = swept
    rows = [nothing, whole, *(row for row in others if row["label"] is not None)]
    title = f"Test accuracy without a part of {pair[1].name}"
    with new_figure(path, 1.2 + _ROW * len(rows), title) as figure:
        panels = list(figure.subplots(1, len(pair) + len(_DOTS), sharey=True, width_ratios=(1.5, 1.5, 1, 1)))
        for panel, dataset, ink in zip(panels, pair, INK, strict=False):
            _draw_bars(panel, rows, dataset.name, ink)
        for panel, figure_of, (name, label) in zip(panels[len(pair) :], _DOTS, _DOTS.values(), strict=True):
            _draw_dots(panel, rows, figure_of)
            panel.set_title(name, loc="left", pad=3)
            panel.set_xlabel(f"{label}\n(greatest layer)")
        panels[0].set_yticks(range(len(rows)), [str(row["part"]).removeprefix("its ") for row in rows])
        panels[0].set_ylim(len(rows) - 0.4, -0.6)
        panels[0].set_ylabel("part left out")
        for panel in panels:
            panel.tick_params(axis="y", length=0)
        signs = [Patch(label="terms removed", **_bar("0.3", True)), Patch(label="retrained", **_bar("0.3", False))]
        figure.legend(handles=signs, loc="outside upper right", ncols=2)
    return path


def _bar(ink: str, full: bool) -> dict[str, Any]:
    """A full bar is of a masked network, a hatched one of a network that was trained again."""
    fill = {"facecolor": ink} if full else {"facecolor": "white", "hatch": "/////"}
    return {**fill, "edgecolor": ink, "linewidth": 0.8}


def _draw_bars(panel: Axes, rows: Sequence[Report], dataset: str, ink: str) -> None:
    for side, kind in enumerate(("masked", "retrained")):
        places = np.arange(len(rows)) + (side - 0.5) * 0.4
        bars = panel.barh(places, [100 * row[kind][dataset] for row in rows], 0.34, **_bar(ink, kind == "masked"))
        panel.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    panel.set_title(f"{dataset} test images", loc="left", pad=3)
    panel.set_xlabel("test accuracy (%)")
    panel.set_xlim(0, 112)
    panel.set_xticks((0, 50, 100))


def _draw_dots(panel: Axes, rows: Sequence[Report], figure_of: str) -> None:
    """The greatest figure of a layer, on a logarithmic scale; where nothing is left out there is none."""
    known = {at: max(row[figure_of].values()) for at, row in enumerate(rows) if figure_of in row}
    panel.plot(list(known.values()), list(known), linestyle="none", marker=MARKS[0], markersize=3.5, color="0.25")
    for at, value in known.items():
        panel.annotate(f"{value:.3g}", (value, at), (5, 0), textcoords="offset points", va="center", fontsize=7)
    panel.set_xscale("log")
    panel.set_xlim(min(known.values()) / _ROOM, max(known.values()) * _ROOM**2)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()


def draw_last_steps(path: Path, swept: Sequence[Report], pair: Pair) -> Path:
    """Lines over the number of last steps left out, from none to all, and the cancellation of each layer.

    The numbers stand evenly, for their first and their last ones are close to each other.
    """
    rows = sorted((row for row in swept if row["label"] is None), key=lambda row: int(row["last"]))
    title = f"Test accuracy when the last steps on {pair[1].name} are left out"
    with new_figure(path, 4.6, title) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
        for dataset, ink, mark in zip(pair, INK, MARKS, strict=False):
            for kind, words, style, fill in (
                ("masked", "terms removed", "-", ink),
                ("retrained", "training stopped earlier", "--", "white"),
            ):
                heights = [100 * row[kind][dataset.name] for row in rows]
                upper.plot(
                    heights,
                    style,
                    marker=mark,
                    markersize=4.5,
                    markerfacecolor=fill,
                    linewidth=1.2,
                    color=ink,
                    label=f"{dataset.name}, {words}",
                )
        upper.set_ylabel("test accuracy (%)")
        upper.set_ylim(0, 104)
        upper.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        _draw_cancellation(lower, rows)
    return path


def _draw_cancellation(panel: Axes, rows: Sequence[Report]) -> None:
    places = [at for at, row in enumerate(rows) if "cancellation" in row]
    styles = zip(("-", "--", ":", "-."), MARKS, strict=True)
    for layer, (style, mark) in zip(rows[places[0]]["cancellation"], styles, strict=False):
        figures = [rows[at]["cancellation"][layer] for at in places]
        panel.plot(places, figures, style, marker=mark, markersize=4, linewidth=1.2, color="0.25", label=layer)
    panel.set_ylabel("cancellation:\nsum of norms /\nnorm of sum")
    panel.set_ylim(bottom=0)
    panel.set_xticks(range(len(rows)), [f"{row['last']:,}" for row in rows])
    panel.set_xlabel("last steps of training left out (updates; evenly spaced, not to scale)")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
