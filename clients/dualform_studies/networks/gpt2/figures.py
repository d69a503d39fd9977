"""The figures of the study, drawn from its report."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from dualform_studies.networks.layer_kinds import by_kind
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure

_TITLES = {
    "token": "is the token of the query",
    "position": "has its place in the passage",
    "said": "has the predicted one after it",
}


def draw_likeness(path: Path, told: Report) -> Path:
    """By depth, how often the training token that a layer attends to most is like the query; each panel has a scale of
    its own."""
    kinds = by_kind(told["layers"])
    with new_figure(path, 2.9, "By depth, for how many predictions the training token attended to most …") as figure:
        panels = figure.subplots(1, len(_TITLES))
        for panel, (name, title) in zip(panels, _TITLES.items(), strict=True):
            for (kind, layers), ink, mark in zip(kinds.items(), INK, MARKS, strict=False):
                shares = [100 * told["layers"][layer][name] for layer in layers.values()]
                panel.plot(list(layers), shares, f"{mark}-", color=ink, markersize=3, linewidth=1, label=kind)
            panel.axhline(100 * told["chance"][name], color="0.4", linestyle=":", linewidth=1, label="chance")
            panel.set_title(f"… {title}")
            panel.set_xlabel("block")
            panel.set_ylabel("predictions (%)")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.set_ylim(bottom=0)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return path


def draw_agreement(path: Path, told: Report) -> Path:
    """How often two layers attend most to the same passage; layers of one kind side by side."""
    layers, same = told["layers"], np.array(told["same"])
    kinds = by_kind(layers)
    ordered = [layer for own in kinds.values() for layer in own.values()]
    ordered += [layer for layer in layers if layer not in ordered]
    places = [layers.index(layer) for layer in ordered]
    shown = 100 * same[np.ix_(places, places)]
    np.fill_diagonal(shown, np.nan)
    with new_figure(path, 5.2, "How often two layers attend most to the same passage", shades=True) as figure:
        panel = figure.subplots()
        image = panel.imshow(shown, cmap="viridis", vmin=0, interpolation="nearest")
        figure.colorbar(image, ax=panel, label="predictions (%)", shrink=0.8)
        starts = np.cumsum([0, *(len(own) for own in kinds.values())])
        for start in starts[1:]:
            panel.axhline(start - 0.5, color="white", linewidth=1)
            panel.axvline(start - 0.5, color="white", linewidth=1)
        middles = [(a + b - 1) / 2 for a, b in pairwise(starts)]
        panel.set_xticks(middles, [f"{kind}\nby depth" for kind in kinds])
        rest = range(int(starts[-1]), len(ordered))
        panel.set_yticks([*middles, *rest], [*kinds, *(ordered[at] for at in rest)])
        panel.tick_params(length=0)
    return path
