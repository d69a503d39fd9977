"""What masks leave of the accuracy, beside what training without the same part gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dualform_studies.images.training.succession import Pair
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure

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
