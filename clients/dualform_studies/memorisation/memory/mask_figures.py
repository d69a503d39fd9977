"""What if pairs were left out: accuracy and cancellation by pair, and over how much of the training is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from dualform_studies.memorisation.memory.masks import Omission, Sweep
from dualform_studies.memorisation.torus.figures import name_angles, paint, place_pairs, token_handles
from dualform_studies.memorisation.torus.maps import ClassMap
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
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
            drawn = grid_of_pairs(panel, others, itself)
            panel.set_title(title)
            panel.set_xlabel("second token of the pair")
        axes[0].set_ylabel("first token of the pair")
        figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.01).set_label("other pairs still known\n(of 24)")
    return path


def draw_masked_maps(
    path: Path,
    maps: Mapping[str, Mapping[str, tuple[ClassMap, NDArray[np.float64], int]]],
    facts: Facts,
) -> Path:
    """Class maps: a row for what is left out, a column for where, and by both the map, the words' angles, and how many
    pairs are known."""
    rows = len(maps)
    with new_figure(path, 2.05 * rows + 0.75) as figure:
        columns = len(next(iter(maps.values())))
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for row, (left_out, by_scope) in enumerate(maps.items()):
            for at, (scope, (drawn, angles, known)) in enumerate(by_scope.items()):
                panel = axes[row, at]
                paint(panel, drawn, angles, size=7.5)
                place_pairs(panel, facts, angles, size=14)
                name_angles(panel, up=False, along=row == rows - 1)
                panel.set_title(
                    f"{scope}\n{known} of {len(facts)} known" if row == 0 else f"{known} of {len(facts)} known"
                )
            axes[row, 0].set_ylabel(f"without {left_out}\n\nsecond token's angle (°)")
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def draw_sweep(path: Path, sweep: Sweep) -> Path:
    with new_figure(path, 2.9) as figure:
        panel = figure.subplots()
        others = 100 * sweep.others
        low, middle, high = np.percentile(others, (25, 50, 75), axis=1)
        for last, each in zip(sweep.last, others, strict=True):
            panel.plot(np.full(len(each), last), each, "_", color=INK[0], alpha=0.5, markersize=5)
        panel.fill_between(sweep.last, low, high, color=INK[0], alpha=0.15, linewidth=0)
        panel.plot(
            sweep.last, middle, "o-", color=INK[0], markersize=4,
            label="the other 24 pairs: median over the pairs left out, quartiles, and each (dashes)",
        )  # fmt: skip
        panel.plot(
            sweep.last,
            100 * sweep.itself.mean(axis=1),
            "s--",
            color=INK[1],
            markersize=4,
            label="the pair left out, mean",
        )
        panel.set_xlabel("last steps whose slots of one pair are left out of query, key and value")
        panel.set_ylabel("still known (%)")
        panel.set_ylim(-3, 104)
        panel.legend(loc="lower left")
    return path


def grid_of_pairs(panel: Axes, others: Sequence[int], itself: Sequence[bool]) -> AxesImage:
    """By pair left out, how many of the other 24 are known; framed where the pair itself is."""
    side = len(TOKENS)
    drawn = panel.imshow(np.reshape(others, (side, side)), cmap="viridis", vmin=0, vmax=24)
    for at, (number, known) in enumerate(zip(others, itself, strict=True)):
        x, y = at % side, at // side
        panel.text(x, y, str(number), ha="center", va="center", fontsize=8, color="white" if number < 15 else "black")
        if known:
            # White within black: seen on every colour of the map.
            for ink, width in (("black", 2.4), ("white", 1.0)):
                panel.add_patch(Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, fill=False, color=ink, linewidth=width))
    panel.set_xticks(range(side), TOKENS)
    panel.set_yticks(range(side), TOKENS)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return drawn
