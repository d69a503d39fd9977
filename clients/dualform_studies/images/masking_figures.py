"""What masks leave of the accuracy, beside what training without the same part gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dualform_studies.images.succession import Pair
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, new_figure

_MASKED, _RETRAINED = "memory masked", "retrained without it"
_PALE = 0.4
"""Opacity of what is retrained, beside what is masked in full colour."""


def draw_masks(path: Path, swept: Sequence[Report], pair: Pair) -> Path:
    """Bars for nothing masked, the whole second dataset, and each of its classes; `swept` as `sweep` gives it.

    Under each mask stand the greatest cancellation of a layer, and the greatest multiple of what training moved.
    """
    nothing, whole, *others = swept
    rows = [nothing, whole, *(row for row in others if row["label"] is not None)]
    with new_figure(path, 4.5) as figure:
        panels = list(figure.subplots(len(pair), 1, sharex=True))
        for panel, dataset, ink in zip(panels, pair, INK, strict=False):
            for side, (kind, alpha) in enumerate((("masked", 1.0), ("retrained", _PALE))):
                places = np.arange(len(rows)) + (side - 0.5) * 0.42
                heights = [100 * row[kind][dataset.name] for row in rows]
                bars = panel.bar(places, heights, 0.4, color=ink, alpha=alpha)
                panel.bar_label(bars, fmt="%.0f", fontsize=6.5, padding=1)
            panel.set_title(f"test images of {dataset.name}", loc="left", pad=3)
            panel.set_ylabel("test accuracy (%)")
            panel.set_ylim(0, 112)
            panel.tick_params(axis="x", length=0)
        panels[-1].set_xticks(range(len(rows)), [_under(row) for row in rows], fontsize=6.5)
        panels[-1].set_xlabel(
            "part left out\nits cancellation; how far it moved the weights, as a multiple of how far training did\n"
            "(no unit; of the layers the greatest)"
        )
        greys = [Patch(color="0.3", label=_MASKED), Patch(color="0.3", alpha=_PALE, label=_RETRAINED)]
        figure.legend(handles=greys, loc="outside upper right", ncols=2)
    return path


def _under(row: Report) -> str:
    words = str(row["part"]).replace("its class ", "").replace(", ", "\n").replace("all of ", "all of\n")
    if "cancellation" not in row:
        return words
    return f"{words}\n{max(row['cancellation'].values()):.3g}; {max(row['moved'].values()):.2g}"


def draw_last_steps(path: Path, swept: Sequence[Report], pair: Pair) -> Path:
    """Lines over the number of last steps left out, from none to all, and the cancellation of each layer."""
    rows = sorted((row for row in swept if row["label"] is None), key=lambda row: int(row["last"]))
    with new_figure(path, 4.4) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
        last = [row["last"] for row in rows]
        for dataset, ink in zip(pair, INK, strict=False):
            for kind, words, style in (("masked", _MASKED, "-"), ("retrained", "training stopped earlier", "--")):
                heights = [100 * row[kind][dataset.name] for row in rows]
                upper.plot(last, heights, style, marker="o", markersize=3, color=ink, label=f"{dataset.name}, {words}")
        upper.set_ylabel("test accuracy (%)")
        upper.set_ylim(0, 104)
        upper.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        _draw_cancellation(lower, rows)
    return path


def _draw_cancellation(panel: Axes, rows: Sequence[Report]) -> None:
    masked = [row for row in rows if "cancellation" in row]
    for layer, style in zip(masked[0]["cancellation"], ("-", "--", ":", "-."), strict=False):
        figures = [row["cancellation"][layer] for row in masked]
        panel.plot([row["last"] for row in masked], figures, style, marker="o", markersize=3, color="0.25", label=layer)
    panel.set_ylabel("cancellation\n(no unit)")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("last steps of training left out (updates)")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
