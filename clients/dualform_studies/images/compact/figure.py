"""How much of a layer's update, and of the accuracy, a few directions hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from dualform_studies.images.compact.ranks import ALL_LAYERS
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure


def draw_ranks(path: Path, report: Report) -> Path:
    """A panel a layer: its update's energy and the test accuracy by the number of directions; the last is of all."""
    names = list(report["accuracy"])
    with new_figure(path, 4.6) as figure:
        panels = figure.subplots(2, (len(names) + 1) // 2, sharex=True, sharey=True, squeeze=False).ravel()
        for panel, name in zip(panels, names, strict=False):
            _draw(panel, name, report["accuracy"][name], report["energy"].get(name))
        for panel in panels[len(names) :]:
            panel.set_axis_off()
        panels[0].set_xscale("log")
        panels[0].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        figure.supxlabel("directions of the update that are kept", fontsize=8.5)
        figure.supylabel("per cent", fontsize=8.5)
        lines, words = panels[0].get_legend_handles_labels()
        figure.legend(lines, words, loc="outside upper center", ncols=len(words))
    return path


def _draw(panel: Axes, name: str, accuracy: Mapping[str, float], energy: Sequence[float] | None) -> None:
    alone = "every layer cut, each to so many" if name == ALL_LAYERS else f"{name} cut, the others whole"
    panel.set_title(alone, loc="left", pad=3)
    ranks = sorted(map(int, accuracy))
    reached = [100 * accuracy[str(rank)] for rank in ranks]
    # Rank 0 has no place on a logarithmic axis: a line of its own.
    panel.axhline(reached[0], color="0.45", linewidth=0.8, linestyle=":", label="test accuracy with none kept")
    panel.plot(
        ranks[1:], reached[1:], color=INK[0], marker=MARKS[0], markersize=2.5, linewidth=1, label="test accuracy"
    )
    if energy is not None:
        held = [100 * energy[rank] for rank in ranks[1:]]
        panel.plot(
            ranks[1:],
            held,
            color=INK[1],
            marker=MARKS[1],
            markersize=2.5,
            linewidth=1,
            linestyle="--",
            label="share of the update's squared norm",
        )
    panel.set_ylim(0, 103)
    panel.grid(axis="y", color="0.9", linewidth=0.5)
