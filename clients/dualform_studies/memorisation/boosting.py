"""Boosted training: head one alone and longer, frozen, then head two, and so on; beside free training.

The text leaves open what happens to the embeddings while later heads learn. Both readings are run: "frozen" freezes
them with head one, so that each later head corrects a fixed prediction, as boosting proper does; "shared" lets them
go on, and freezes the earlier heads alone. Shapes: M networks, K moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import StrMethodFormatter
from torch import Tensor

from dualform_studies.assignment import Progress, counting
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    HEADS,
    PROJECTIONS,
    Ensemble,
    Recipe,
    ensemble_of,
)

WAYS = {
    "free": "free, all heads at once",
    "shared": "boosted, embeddings go on learning",
    "frozen": "boosted, embeddings frozen with head 1",
}
_LINES: Any = ("-", (0, (5, 1.5)), (0, (1, 1)))


def train_ways(
    recipe: Recipe, seeds: Sequence[int], free: Ensemble, progress: Progress | None = None
) -> dict[str, Ensemble]:
    """The networks of each way to train, over the same seeds: one gives both facts and initial network.

    `free` are those that were trained freely.
    """
    return {"free": free} | {way: boost(recipe, seeds, HEADS, way, progress) for way in ("shared", "frozen")}


def boost(recipe: Recipe, seeds: Sequence[int], heads: int, way: str, progress: Progress | None) -> Ensemble:
    """Networks of so many heads, trained head after head, each with the earlier ones speaking and frozen."""
    ensemble = ensemble_of(seeds, heads)
    for head in range(heads):
        steps = recipe.later_steps if head else recipe.steps
        ensemble.train(
            steps,
            recipe.sgd,
            heads=(torch.arange(heads) <= head).float()[None],
            learns=learning(head, way == "shared" or head == 0, heads),
            say=counting(progress, f"{WAYS[way]}: head {head + 1}", steps),
        )
    return ensemble


def learning(head: int, embeddings: bool, heads: int = HEADS) -> dict[str, Tensor]:
    """Masks of the numbers that learn while one head does, and the embeddings where `embeddings`."""
    rows = (torch.arange(heads * HEAD_WIDTH) // HEAD_WIDTH == head).float()
    masks = {f"{name}.weight": rows[:, None] for name in PROJECTIONS} | {"output.weight": rows[None, :]}
    outside = torch.tensor(float(embeddings))
    return masks | {f"{name}.weight": outside for name in ("word", "position", "unembedding")}


def boundaries(recipe: Recipe, heads: int = HEADS) -> list[int]:
    """The steps at which boosted training turns to the next head, or is at its end."""
    return [recipe.steps + head * recipe.later_steps for head in range(heads)]


def draw_ways(path: Path, trained: Mapping[str, Ensemble], recipe: Recipe) -> Path:
    """The median over the seeds with its quartiles."""
    with new_figure(path, 3.2) as figure:
        panel = figure.subplots()
        for at, (way, words) in enumerate(WAYS.items()):
            curve = trained[way].curve
            low, middle, high = 100 * np.percentile(np.stack(curve.accuracy), (25, 50, 75), axis=1)
            panel.fill_between(curve.steps, low, high, color=INK[at], alpha=0.16, linewidth=0)
            panel.plot(
                curve.steps, middle, color=INK[at], linestyle=_LINES[at], linewidth=1.5, marker=MARKS[at],
                markevery=(8 * at, 40), markersize=4, label=words,
            )  # fmt: skip
        for head, step in enumerate([0, *boundaries(recipe)[:-1]], start=1):
            panel.axvline(step, color="0.6", linewidth=0.7, linestyle=":")
            panel.text(step, 1.01, f"head {head}", transform=panel.get_xaxis_transform(), fontsize=7)
        panel.set_xlabel("updates (above: the head that boosted training is at)")
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panel.set_ylabel("accuracy over the 25 pairs (%)")
        panel.set_ylim(0, 104)
        panel.legend(loc="lower right")
    return path
