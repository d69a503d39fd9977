"""The output of the attention layer as a deformed torus, whole and head by head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from dualform_studies.memorisation.layer.maps import LayerMaps
from dualform_studies.memorisation.layer.surfaces import Normalised, View, angle_colours, quads, ribbons
from dualform_studies.memorisation.torus.figures import TOKEN_INK
from dualform_studies.memorisation.torus.maps import grid_angles
from dualform_studies.memorisation.transformer.facts import TOKENS
from dualform_studies.pages.frame import new_figure

_VIEW = View()
_REACH = 1.5
"""How far the unembedding's directions are drawn from the origin; the surface fills the cube from -1 to 1."""
_PIECES = 60
_STEPS = 8
"""Of colours and lines along each angle; a smooth change would take more colours than a page's PNG has."""
_NEARER = 0.02
"""Lines on the surface lie so much before it."""
_CLOSE = 0.25
"""Letters nearer to each other than this are written together."""
_READING = (
    "Red grows with the first token's angle, blue with the second's.\n"
    "Solid lines: the first angle stays the same; dashed: the second; every 45°.\n"
    "Grey: each surface's own principal axes, in units of its reach along them (see titles).\n"
    "Letters: the direction in which that token's logit grows. 0: where the stream is zero, if near."
)


def draw_surfaces(path: Path, maps: LayerMaps) -> Path:
    """The layer's output and each head's as surfaces, with the directions of the unembedding's rows."""
    surfaces = {"the layer": maps.layer}
    surfaces |= {f"head {head}": vectors for head, vectors in enumerate(maps.heads, start=1)}
    with new_figure(path, 7.4) as figure:
        (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(6.4, 1.0))
        for panel, (title, vectors) in zip(above.subplots(2, 2).flat, surfaces.items(), strict=True):
            own = Normalised.of(vectors)
            _draw(panel, own, maps.unembedding)
            panel.set_title(f"{title}: reach " + ", ".join(f"{reach:.2g}" for reach in own.reach))
        left, key, words = below.subplots(1, 3, width_ratios=(0.2, 1, 4.5))
        _draw_key(key)
        words.text(0, 0.5, _READING, va="center", transform=words.transAxes)
        for panel in (left, words):
            panel.set_axis_off()
    return path


def _draw(panel: Axes, own: Normalised, unembedding: NDArray[np.float64]) -> None:
    faces, first_second = quads(own.points), grid_angles(len(own.points))
    pieces = [(_VIEW.of(faces), angle_colours(*first_second, _STEPS).reshape(-1, 3))]
    pieces += [_piece(line, "white", 0.008, dashed) for line, dashed in _lines(own.points)]
    for dimension, axis in enumerate(np.eye(3), start=1):
        pieces.append(_piece(_straight(-1.2 * axis, 1.2 * axis), "0.6", 0.012))
        _name(panel, f"{dimension}", 1.28 * axis, "0.4")
    directions = own.directions(unembedding)
    for direction, ink in zip(directions, TOKEN_INK, strict=True):
        pieces.append(_piece(_straight(0 * direction, _REACH * direction), ink, 0.03))
    _name_tokens(panel, (_REACH + 0.12) * directions)
    zero = own.place(np.zeros(3))
    if np.abs(zero).max() <= 1:
        _name(panel, "0", zero, "black")
    seen, fills = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    order = seen[..., 2].mean(axis=1).argsort()
    # Smooth edges would leave hairlines between quads, and take colours that a page's PNG has not.
    drawn = PolyCollection(seen[order][..., :2], facecolors=fills[order], antialiaseds=False, rasterized=True)
    panel.add_collection(drawn)
    panel.set(xlim=(-1.75, 1.75), ylim=(-1.55, 1.55), aspect="equal")
    panel.set_axis_off()


def _lines(surface: NDArray[np.float64]) -> list[tuple[NDArray[np.float64], bool]]:
    """Lines on the surface: of equal first angle, and, dashed, of equal second."""
    found = []
    for at in range(0, len(surface), max(1, len(surface) // _STEPS)):
        found += [(surface[:, at], False), (surface[at], True)]
    return [(np.concatenate([line, line[:1]]), dashed) for line, dashed in found]


def _straight(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    return start + np.linspace(0, 1, _PIECES + 1)[:, None] * (end - start)


def _piece(
    line: NDArray[np.float64], ink: str, width: float, dashed: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A line in space as flat pieces and their colours."""
    seen = ribbons(_VIEW.of(line) + np.array([0, 0, _NEARER]), width)
    # Two of four pieces are left out.
    seen = seen[np.arange(len(seen)) % 4 < 2] if dashed else seen
    return seen, np.tile(to_rgb(ink), (len(seen), 1))


def _name(panel: Axes, name: str, at: NDArray[np.float64], ink: str) -> None:
    right, up, _ = _VIEW.of(at)
    panel.text(
        right, up, name, color=ink, ha="center", va="center", fontweight="bold",
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )  # fmt: skip


def _name_tokens(panel: Axes, tips: NDArray[np.float64]) -> None:
    """Letters at the tips, float64[N, 3]; those that would cover each other are written in one place."""
    together: list[list[int]] = []
    for token, tip in enumerate(_VIEW.of(tips)):
        near = [group for group in together if np.linalg.norm((_VIEW.of(tips[group[0]]) - tip)[:2]) < _CLOSE]
        if near:
            near[0].append(token)
        else:
            together.append([token])
    for group in together:
        ink = TOKEN_INK[group[0]] if len(group) == 1 else "black"
        _name(panel, " ".join(TOKENS[token] for token in group), tips[group].mean(axis=0), ink)


def _draw_key(panel: Axes) -> None:
    first, second = grid_angles(60)
    panel.imshow(angle_colours(first, second, _STEPS), origin="lower", extent=(0, 360, 0, 360), interpolation="nearest")
    panel.set_xticks([0, 180, 360])
    panel.set_yticks([0, 180, 360])
    panel.set_xlabel("first angle (°)")
    panel.set_ylabel("second angle (°)")
