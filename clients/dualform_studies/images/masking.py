"""What is left of the first of two datasets learned in succession, and what masking parts of the second gives back.

    W_masked = W_T - (W_part - W_0)

where W_part is the sum of the part's slots alone: adding up a tenth of the slots costs a tenth of adding up the rest.
Beside each masked network stands one that was retrained without the part. Every retraining goes on from what the first
dataset left, network and momentum alike, so that only the second is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.training import (
    Pair,
    Recipe,
    Trained,
    Weights,
    accuracy,
    batch_rows,
    batches,
    layer_names,
    predictions,
    train,
    with_weights,
)
from dualform_studies.report import Report


def without(dataset: Dataset) -> str:
    """The mask that leaves a dataset out."""
    return f"dataset <> '{dataset.name}'"


def moments(pair: Pair) -> dict[str, str]:
    """The networks that a succession is judged by, in words."""
    first, second = (dataset.name for dataset in pair)
    return {
        "after_first": f"after {first}",
        "final": "at the end",
        "masked": f"at the end, {second} removed",
        "as_of_first": f"rebuilt as of the end of {first}",
    }


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the networks of each moment make of the test images."""

    pair: Pair
    classes: Mapping[str, Mapping[str, NDArray[np.int64]]]
    """By moment and dataset: int64[n], the class that the network gives each test image."""

    def accuracy(self) -> dict[str, dict[str, float]]:
        """By dataset and moment: the fraction of test images classified as labelled."""
        return {
            dataset.name: {moment: float(right.mean()) for moment, right in self.recognised(dataset).items()}
            for dataset in self.pair
        }

    def recognised(self, dataset: Dataset) -> dict[str, NDArray[np.bool_]]:
        """By moment: bool[n], the test images of a dataset that are classified as labelled."""
        return {moment: classes[dataset.name] == dataset.test.labels for moment, classes in self.classes.items()}

    def interfered(self) -> NDArray[np.bool_]:
        """bool[n], of the first dataset: right after it was learned, wrong at the end, right again with the mask."""
        right = self.recognised(self.pair[0])
        return np.asarray(right["after_first"] & ~right["final"] & right["masked"])


def judge_moments(memory: Engine, trained: Trained, pair: Pair, recipe: Recipe) -> Verdict:
    """Classify all test images of both datasets with the network of each moment.

    `after_first` and `final` are training's own; `masked` is the final sum without the second dataset, `as_of_first`
    the whole sum as it stood when the first one ended. These two differ by the momentum that was then still to come.
    """
    after_first, final = trained.weights
    masked, as_of_first = memory.weights(where=without(pair[1])), memory.weights(at_step=recipe.steps)
    found = {}
    for moment, weights in zip(moments(pair), (after_first, final, masked, as_of_first), strict=True):
        network = with_weights(recipe.widths(pair[0]), weights)
        found[moment] = {dataset.name: predictions(network, dataset, dataset.test) for dataset in pair}
    return Verdict(pair, found)


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


def parts(second: Dataset) -> list[Part]:
    """The whole second dataset, and each of its classes."""
    own = f"dataset = '{second.name}'"
    classes = [
        Part(f"its class {label}, {name}", f"{own} AND label = {label}", f"NOT ({own} AND label = {label})", label)
        for label, name in enumerate(second.label_names)
    ]
    return [Part(f"all of {second.name}", own, without(second)), *classes]


def masked_weights(memory: Engine, part: Part) -> Weights:
    """What `memory.weights(where=part.mask)` gives, but for float32's rounding; for training without weight decay."""
    whole, alone, initial = memory.weights(), memory.weights(where=part.slots), memory.weights(at_step=0)
    return {name: (whole[name].double() - (alone[name].double() - initial[name].double())).float() for name in whole}


def sweep(
    memory: Engine, trained: Trained, pair: Pair, recipe: Recipe, seed: int, progress: Progress | None = None
) -> list[Report]:
    """For each part the test accuracies of the masked network and of the one retrained without it, by dataset.

    Beside them how many datapoints the mask leaves out, and by layer how much these cancel each other and how far they
    moved the weights together, as a multiple of how far all of training did. The first row is of the network as it was
    trained, with nothing left out. Trained without the whole second dataset, a network is that of the first part;
    without a class, it takes as many steps on the images of the other classes, in the same order as before.
    """
    whole, initial, chosen = memory.weights(), memory.weights(at_step=0), parts(pair[1])

    def judged(weights: Weights) -> dict[str, float]:
        network = with_weights(recipe.widths(pair[0]), weights)
        return {dataset.name: accuracy(network, dataset) for dataset in pair}

    final = judged(trained.weights[-1])
    rows: list[Report] = [{"part": "nothing", "masked": final, "retrained": final}]
    for done, part in enumerate(chosen):
        or_silent(progress)("masking parts, and training without them", done, len(chosen))
        masked = masked_weights(memory, part)
        after_first = trained.weights[0]
        other = after_first if part.label is None else leave_out(trained, part.label, pair, recipe, seed)
        rows.append(
            {
                "part": part.words,
                "mask": part.mask,
                "masked": judged(masked),
                "retrained": judged(other),
                "cancellation": dict(memory.cancellation(where=part.mask)),
                "moved": {
                    layer: _distance(layer, whole, masked) / _distance(layer, whole, initial)
                    for layer in layer_names(recipe.widths(pair[0]))
                },
            }
        )
    return rows


def _distance(layer: str, one: Weights, other: Weights) -> float:
    """The length of the difference of a layer's weights and biases, in float64."""
    names = [name for name in one if name.startswith(f"{layer}.")]
    return float(torch.cat([(one[name].double() - other[name].double()).ravel() for name in names]).norm())


def leave_out(trained: Trained, label: int, pair: Pair, recipe: Recipe, seed: int) -> Weights:
    """The weights after recipe.steps updates on the second dataset without the images of one class."""
    network = with_weights(recipe.widths(pair[0]), trained.weights[0])
    optimizer = recipe.optimizer(network)
    # A copy: loading shares the tensors, and the updates to come change them in place.
    optimizer.load_state_dict(deepcopy(trained.optimizers[0]))
    second = pair[1]
    order = batch_rows(second.split.trained, recipe, seed, part=1, kept=second.train.labels != label)
    train(network, optimizer, batches(second, order), recipe.clip)
    return network.state_dict()


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
    """A row for each of `swept`, as `sweep` gives it.

    Beside the accuracies stand the greatest cancellation of a layer, and the greatest multiple of what training moved.
    """
    title = f"Test accuracy without a part of {pair[1].name}"
    with new_figure(path, 1.2 + _ROW * len(swept), title) as figure:
        panels = list(figure.subplots(1, len(pair) + len(_DOTS), sharey=True, width_ratios=(1.5, 1.5, 1, 1)))
        for panel, dataset, ink in zip(panels, pair, INK, strict=False):
            _draw_bars(panel, swept, dataset.name, ink)
        for panel, figure_of, (name, label) in zip(panels[len(pair) :], _DOTS, _DOTS.values(), strict=True):
            _draw_dots(panel, swept, figure_of)
            panel.set_title(name, loc="left", pad=3)
            panel.set_xlabel(f"{label}\n(greatest layer)")
        panels[0].set_yticks(range(len(swept)), [str(row["part"]).removeprefix("its ") for row in swept])
        panels[0].set_ylim(len(swept) - 0.4, -0.6)
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
