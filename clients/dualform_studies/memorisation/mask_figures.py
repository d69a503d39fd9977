"""What if pairs were left out: accuracy and cancellation by pair, and over how much of the training is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from dualform_studies.memorisation.facts import TOKENS, Facts
from dualform_studies.memorisation.masks import Omission, Sweep
from dualform_studies.pages.frame import INK, new_figure

_SHOWN = {
    "value": "value masked",
    "query and key": "query and key masked",
    "projections": "all three masked",
    "retrained": "retrained without it",
}


def draw_pairs(path: Path, found: Sequence[Omission], facts: Facts) -> Path:
    """For each pair left out: how many of the other 24 are still known; framed where the pair itself is."""
    singles = [one for one in found if one.pairs.sum() == 1][: len(facts)]
    right = [one.right(facts) for one in singles]
    with new_figure(path, 2.35) as figure:
        axes = figure.subplots(1, len(_SHOWN), sharey=True)
        for panel, (name, title) in zip(axes, _SHOWN.items(), strict=True):
            others = [int(known[name][~one.pairs].sum()) for one, known in zip(singles, right, strict=True)]
            itself = [bool(known[name][one.pairs].all()) for one, known in zip(singles, right, strict=True)]
            drawn = _grid(panel, others, itself)
            panel.set_title(title)
            panel.set_xlabel("second token of the pair")
        axes[0].set_ylabel("first token of the pair")
        figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.01).set_label("other pairs still known\n(of 24)")
    return path


def draw_sweep(path: Path, sweep: Sweep) -> Path:
    with new_figure(path, 2.9) as figure:
        panel = figure.subplots()
        others = 100 * sweep.others
        panel.plot(sweep.last, others.mean(axis=1), "o-", color=INK[0], markersize=4, label="the other 24 pairs, mean")
        panel.fill_between(
            sweep.last, others.min(axis=1), others.max(axis=1), color=INK[0], alpha=0.15, linewidth=0,
            label="from the worst pair left out to the best",
        )  # fmt: skip
        panel.plot(
            sweep.last, 100 * sweep.itself.mean(axis=1), "s--", color=INK[1], markersize=4, label="the pair left out"
        )
        panel.set_xlabel("last steps whose slots of one pair are left out of query, key and value")
        panel.set_ylabel("still known (%)")
        panel.set_ylim(-3, 104)
        panel.legend(loc="lower left")
    return path


def _grid(panel: Axes, others: Sequence[int], itself: Sequence[bool]) -> AxesImage:
    side = len(TOKENS)
    drawn = panel.imshow(np.reshape(others, (side, side)), cmap="viridis", vmin=0, vmax=24)
    for at, (number, known) in enumerate(zip(others, itself, strict=True)):
        x, y = at % side, at // side
        panel.text(x, y, str(number), ha="center", va="center", fontsize=8, color="white" if number < 15 else "black")
        if known:
            panel.add_patch(Rectangle((x - 0.44, y - 0.44), 0.88, 0.88, fill=False, color="#e0882e", linewidth=1.6))
    panel.set_xticks(range(side), TOKENS)
    panel.set_yticks(range(side), TOKENS)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return drawn
