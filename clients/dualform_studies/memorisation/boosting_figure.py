"""Boosted training beside free training: accuracy over the updates, and what each seed ends with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dualform_studies.memorisation.boosting import WAYS, boundaries
from dualform_studies.memorisation.ensemble import Curve
from dualform_studies.memorisation.training import Recipe
from dualform_studies.pages.frame import INK, new_figure


def draw_ways(path: Path, curves: Mapping[str, Curve], recipe: Recipe) -> Path:
    """Left the mean over seeds, right every seed at its end and their mean."""
    with new_figure(path, 3.4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
        for at, ((way, curve), ink) in enumerate(zip(curves.items(), INK, strict=True)):
            mean = 100 * np.stack(curve.accuracy).mean(axis=1)
            # Until head 1 is done the two boosted trainings are one: broken lines let both be seen.
            style = (0, (3, 2)) if way == "frozen" else "-"
            left.plot(curve.steps, mean, linestyle=style, color=ink, linewidth=1.6, label=WAYS[way])
            ends, counts = np.unique(np.round(100 * curve.accuracy[-1]), return_counts=True)
            for end, count in zip(ends, counts, strict=True):
                places = at + 0.06 * (np.arange(count) - (count - 1) / 2)
                right.scatter(places, np.full(count, end), s=16, color=ink, alpha=0.75, linewidths=0)
            right.hlines(mean[-1], at - 0.42, at + 0.42, color=ink, linewidth=1)
        for head, step in enumerate([0, *boundaries(recipe)], start=1):
            left.axvline(step, color="0.6", linewidth=0.7, linestyle=":")
            left.text(step, 1.01, f"head {head}", transform=left.get_xaxis_transform(), fontsize=7.5)
        left.set_xlabel("updates (above: the head that boosted training is at)")
        left.set_ylabel("mean accuracy over the 25 pairs (%)")
        right.set_ylabel("accuracy of each seed at the end (%)")
        right.set_xticks(range(len(curves)), ["free", "free,\nAdam", "boosted", "boosted,\nfrozen"])
        right.tick_params(axis="x", length=0)
        left.set_ylim(0, 104)
        right.set_ylim(0, 104)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return path
