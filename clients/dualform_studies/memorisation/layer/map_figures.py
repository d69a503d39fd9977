"""What the attention layer adds up, in colours that add; and where the edges of its maps come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dualform_studies.memorisation.layer.edges import steepness, strongest
from dualform_studies.memorisation.layer.maps import LayerMaps, layer_maps, raw_patterns
from dualform_studies.memorisation.layer.vector_colours import VectorColours
from dualform_studies.memorisation.torus.figures import name_angles, paint, place_pairs
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import AttentionOnly
from dualform_studies.pages.frame import new_figure

_KEY_HEIGHT = 0.55
_STYLES: Any = ("-", "--", ":")
"""Of the level lines of heads 1, 2 and 3: black, since every colour is a class somewhere."""
_PLACED: Any = {"origin": "lower", "extent": (0, 360, 0, 360), "rasterized": True}


def draw_head_maps(path: Path, maps: dict[str, LayerMaps], raw: NDArray[np.float64], head: int) -> Path:
    """Positions, words and their sum for one head, in a row for each kind of pattern; `raw` [G, G] is its own."""
    parts = [(one.positions[head], one.words[head]) for one in maps.values()]
    colours = VectorColours.over(*[part for pair in parts for part in (*pair, sum(pair))])
    with new_figure(path, 2.45 * len(maps) + 0.35 + _KEY_HEIGHT, shades=True) as figure:
        above = _above_key(figure, 2.45 * len(maps) + 0.35, colours)
        axes = above.subplots(len(maps), 3, sharex=True, sharey=True)
        for row, (pattern, (positions, words)) in enumerate(zip(maps, parts, strict=True)):
            titles = (f"positions, {pattern}", f"words, {pattern}", "positions + words")
            for panel, title, vectors in zip(axes[row], titles, (positions, words, positions + words), strict=True):
                _show(panel, colours, vectors)
                _level_line(panel, raw)
                name_angles(panel, up=panel is axes[row, 0], along=row == len(maps) - 1)
                panel.set_title(title)
    return path


def draw_value_maps(path: Path, maps: dict[str, LayerMaps], raw: NDArray[np.float64], colours: VectorColours) -> Path:
    """Each head after value and output, in a row for each kind of pattern; `raw` float64[H, G, G] are its own."""
    with new_figure(path, 2.45 * len(maps) + 0.35 + _KEY_HEIGHT, shades=True) as figure:
        axes = _above_key(figure, 2.45 * len(maps) + 0.35, colours).subplots(
            len(maps), len(raw), sharex=True, sharey=True, squeeze=False
        )
        for at, (row, (pattern, one)) in enumerate(zip(axes, maps.items(), strict=True)):
            for head, panel in enumerate(row):
                _show(panel, colours, one.heads[head])
                _level_line(panel, raw[head])
                name_angles(panel, up=head == 0, along=at == len(maps) - 1)
                panel.set_title(f"head {head + 1}, {pattern}")
    return path


def draw_layer_maps(path: Path, hard: LayerMaps, soft: LayerMaps, colours: VectorColours) -> Path:
    """The sum of the heads, with hardmax and with softmax, and the layer."""
    shown = {
        "sum of the heads, hardmax": hard.heads_together,
        "sum of the heads, softmax": soft.heads_together,
        "and the second token's own stream": soft.layer,
    }
    with new_figure(path, 2.85 + _KEY_HEIGHT, shades=True) as figure:
        axes = _above_key(figure, 2.85, colours).subplots(1, len(shown), sharey=True)
        for panel, (title, vectors) in zip(axes, shown.items(), strict=True):
            _show(panel, colours, vectors)
            name_angles(panel, up=panel is axes[0])
            panel.set_title(title)
    return path


def value_colours(hard: LayerMaps, soft: LayerMaps) -> VectorColours:
    """One scale for the heads after value and output, with either pattern, and for all that they are added up to."""
    return VectorColours.over(hard.heads, soft.heads, hard.heads_together, soft.heads_together, soft.layer)


def draw_edges(path: Path, network: AttentionOnly, facts: Facts, angles: NDArray[np.float64], points: int) -> Path:
    """The steepest points of the sum and the classes, both under the heads' level lines; and without patterns.

    The last are the classes when every head attends the same everywhere.
    """
    soft, plain = layer_maps(network, points), layer_maps(network, points, "constant")
    raw = raw_patterns(network, points)
    with new_figure(path, 3.25) as figure:
        axes = figure.subplots(1, 3, sharey=True)
        steepest = strongest(steepness(soft.heads_together))
        axes[0].imshow(1 - 0.35 * steepest, cmap="gray", vmin=0, vmax=1, **_PLACED)
        axes[0].set_title("where the sum of heads is steepest")
        paint(axes[1], soft.classes(), size=8)
        axes[1].set_title("classes")
        for panel in axes[:2]:
            for head, one in enumerate(raw):
                _level_line(panel, one, head)
        paint(axes[2], plain.classes(), angles, size=8)
        place_pairs(axes[2], facts, angles, size=14)
        axes[2].set_title("classes, attention held at its mean")
        for panel in axes:
            name_angles(panel, up=panel is axes[0])
        lines = [
            Line2D([], [], color="black", linestyle=style, label=f"head {head} attends to both tokens alike")
            for head, style in enumerate(_STYLES, start=1)
        ]
        figure.legend(handles=lines, loc="outside lower center", ncols=3)
    return path


def _above_key(figure: Figure, height: float, colours: VectorColours) -> SubFigure:
    """The part of the figure, so many inches high, that is left above the key of its colours."""
    (part,), (key,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(height, _KEY_HEIGHT))
    above: SubFigure = part
    colours.draw_key(key.subplots(1, 3))
    return above


def _show(panel: Axes, colours: VectorColours, vectors: NDArray[np.float64]) -> None:
    panel.imshow(colours.of(vectors), interpolation="nearest", **_PLACED)


def _level_line(panel: Axes, raw: NDArray[np.float64], head: int | None = None) -> None:
    """Where the head attends to both tokens alike: in its own style, or thin."""
    if raw.min() < 0 < raw.max():
        places = (np.arange(len(raw)) + 0.5) * (360 / len(raw))
        style: Any = {"colors": "black", "linewidths": 0.6}
        if head is not None:
            style = {"colors": "black", "linewidths": 1.2, "linestyles": _STYLES[head]}
        panel.contour(places, places, raw, [0], **style)
