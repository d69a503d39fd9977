"""The attention layer's output over the torus: maps, surfaces and edges.

What the attention layer adds up, term by term, at each point of the torus. Shapes: G points a side, H heads, d = 3.

With the attention pattern a_hj of head h over the two tokens, and V_h, O_h its value and output matrices:

    positions_h = sum_j a_hj q_j          words_h = sum_j a_hj p(t_j)         both before the values are taken
    heads_h     = O_h V_h (positions_h + words_h)
    layer       = x_2 + sum_h heads_h     logits = U layer

All maps are linear in the stream, so they add up; a pattern may be put in another's place.

Colours of 3-D vectors that add as the vectors do. Shapes: a map is float64[..., 3].

    (red, green, blue) = 1/2 + v / (2 R)                        R one number for each dimension

Zero is a middle grey, and what a colour is apart from that grey is linear in the vector: the colours of two maps, each
less the grey, are those of the maps' sum. R holds the greatest numbers of any map in a figure: nothing is clipped.

Where maps of the torus have their edges, and whether those of two maps lie together. Shapes: G points a side.

All opposite sides are joined, so every difference and every distance goes around.

The torus as the surface that a map of it into three dimensions makes, and a parallel projection to draw it with.

Shapes: G points a side. Quads and lines are cut small, to be drawn from the farthest to the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.figures import new_figure
from dualform_studies.memorisation.torus import (
    TOKEN_INK,
    ClassMap,
    exact_copy,
    grid_angles,
    grid_of,
    name_angles,
    paint,
    place_pairs,
)
from dualform_studies.memorisation.transformer import HEAD_WIDTH, TOKENS, WIDTH, AttentionOnly, Facts

Pattern: TypeAlias = Literal["softmax", "hardmax", "constant"]
"""The network's own; all attention to the token that gets more; or the same everywhere, the mean over the torus."""


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """Vectors of the stream at each point; indexed [..., angle of the second token, angle of the first, dimension]."""

    positions: NDArray[np.float64]
    """float64[H, G, G, d]."""
    words: NDArray[np.float64]
    """float64[H, G, G, d]."""
    heads: NDArray[np.float64]
    """float64[H, G, G, d]: after value and output."""
    own: NDArray[np.float64]
    """float64[G, G, d]: the last token's own stream, x_2."""
    unembedding: NDArray[np.float64]
    """float64[N, d]."""

    @property
    def heads_together(self) -> NDArray[np.float64]:
        """float64[G, G, d]: the sum of the heads."""
        return np.asarray(self.heads.sum(axis=0))

    @property
    def layer(self) -> NDArray[np.float64]:
        """float64[G, G, d]: the stream after the attention layer."""
        return self.own + self.heads_together

    def classes(self) -> ClassMap:
        """The layer's maps composed with the unembedding."""
        best = torch.from_numpy(self.layer @ self.unembedding.T).softmax(dim=-1).max(dim=-1)
        return ClassMap(best.indices.numpy(), best.values.numpy())


@torch.no_grad()
def layer_maps(network: AttentionOnly, points: int, pattern: Pattern = "softmax") -> LayerMaps:
    """The maps on a grid of so many points a side, in float64."""
    exact, circle = exact_copy(network), grid_of(points)
    stream = exact.stream(circle)
    weights = _replaced(exact.pattern(stream), pattern)
    words = torch.einsum("bhs,bsd->hbd", weights, circle)
    positions = torch.einsum("bhs,ds->hbd", weights, exact.position.weight)
    values = exact.value.weight.view(-1, HEAD_WIDTH, WIDTH)
    outputs = exact.output.weight.view(WIDTH, -1, HEAD_WIDTH)
    heads = torch.einsum("dhe,hec,hbc->hbd", outputs, values, words + positions)
    shape = (points, points, WIDTH)
    return LayerMaps(
        positions.view(-1, *shape).numpy(),
        words.view(-1, *shape).numpy(),
        heads.view(-1, *shape).numpy(),
        stream[:, -1].view(shape).numpy(),
        exact.unembedding.weight.numpy(),
    )


@torch.no_grad()
def raw_patterns(network: AttentionOnly, points: int) -> NDArray[np.float64]:
    """float64[H, G, G]: the difference of the last token's two attention logits, positive where the first leads."""
    exact = exact_copy(network)
    logits = exact.attention_logits(exact.stream(grid_of(points)))
    raw: NDArray[np.float64] = (logits[..., 0] - logits[..., 1]).T.reshape(-1, points, points).numpy()
    return raw


def _replaced(weights: Tensor, pattern: Pattern) -> Tensor:
    """[B, H, S]: the pattern that stands in the place of the network's."""
    match pattern:
        case "softmax":
            return weights
        case "hardmax":
            return torch.nn.functional.one_hot(weights.argmax(dim=-1), weights.shape[-1]).to(weights.dtype)
        case "constant":
            return weights.mean(dim=0, keepdim=True).expand_as(weights)


_GREY = 0.5
_PARTS = ("red", "green", "blue")


@dataclass(frozen=True, eq=False)
class VectorColours:
    """One scale for all maps of a figure."""

    reach: NDArray[np.float64]
    """float64[3]: R, the numbers at which red, green and blue are full."""

    @classmethod
    def over(cls, *maps: NDArray[np.float64]) -> VectorColours:
        """The scale that shows all of these maps without clipping."""
        greatest = np.max([np.abs(one).reshape(-1, len(_PARTS)).max(axis=0) for one in maps], axis=0)
        return cls(np.where(greatest > 0, greatest, 1.0))

    def of(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[..., 3] from 0 to 1: red, green and blue."""
        return np.asarray(_GREY + vectors / (2 * self.reach))

    def draw_key(self, panels: Sequence[Axes]) -> None:
        """In three axes: what each dimension of the stream does to the colour, the others being zero."""
        for dimension, (panel, part, reach) in enumerate(zip(panels, _PARTS, self.reach.tolist(), strict=True)):
            ramp = np.linspace(-reach, reach, 33)[None, :, None] * np.eye(len(_PARTS))[dimension]
            panel.imshow(self.of(ramp), aspect="auto", extent=(-reach, reach, 0, 1), interpolation="nearest")
            panel.set_yticks([])
            panel.set_xticks([-reach, 0, reach], [f"{-reach:.1f}", "0", f"{reach:.1f}"])
            panel.set_xlabel(f"stream dimension {dimension + 1}: {part}")


STRONGEST = 0.1
"""The share of a map's points that are its steepest: those at which it changes fastest."""
REACH = 10.0
"""Degrees within which an edge lies at another."""
_ACROSS = ((1, 0), (1, 1), (0, 1), (1, -1))
"""Steps up and to the right, in directions of 0, 45, 90 and 135 degrees from upwards."""


def borders(regions: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[G, G]: points with another region to the right or above."""
    return np.asarray((regions != np.roll(regions, -1, axis=0)) | (regions != np.roll(regions, -1, axis=1)))


def border_length(regions: NDArray[np.int64] | NDArray[np.bool_]) -> int:
    """Sides between points of different regions, in sides of a point."""
    return sum(int((regions != np.roll(regions, -1, axis=axis)).sum()) for axis in (0, 1))


def steepness(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[G, G]: how fast a map of vectors, float64[G, G, d], changes at each point, per point of the grid."""
    return np.asarray(np.sqrt(sum((change**2).sum(axis=-1) for change in _changes(vectors))))


def ridges(vectors: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool[G, G]: the edges of a map, float64[G, G, d]: where it is steeper than on either side, in the direction in
    which it changes fastest, and however steep it is elsewhere.

    So a faint edge counts as a strong one does. Source: Canny 1986, "A computational approach to edge detection"
    (suppression of what is no maximum), without his thresholds.
    """
    up, right = _changes(vectors)
    # The direction of fastest change is the first eigenvector of the sum over dimensions of gradient times gradient.
    angle = np.arctan2(2 * (up * right).sum(axis=-1), (up**2).sum(axis=-1) - (right**2).sum(axis=-1)) / 2
    steep, direction = steepness(vectors), np.rint(angle / (np.pi / 4)).astype(np.int64) % len(_ACROSS)
    found = np.zeros(steep.shape, dtype=np.bool_)
    for at, (above, beside) in enumerate(_ACROSS):
        ahead, behind = (np.roll(steep, (sign * above, sign * beside), axis=(0, 1)) for sign in (-1, 1))
        found |= (direction == at) & (steep >= ahead) & (steep > behind)
    return found


def _changes(vectors: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """float64[G, G, d], twice: how fast a map changes upwards and to the right, per point of the grid."""
    return [(np.roll(vectors, -1, axis=axis) - np.roll(vectors, 1, axis=axis)) / 2 for axis in (0, 1)]


def strongest(heights: NDArray[np.float64], share: float = STRONGEST) -> NDArray[np.bool_]:
    """bool[G, G]: the greatest of the map, so large a share of its points."""
    return np.asarray(heights > np.quantile(heights, 1 - share))


def within(points: NDArray[np.bool_], degrees: float = REACH) -> NDArray[np.bool_]:
    """bool[G, G]: what lies no farther than so many degrees from some of the points, straight across the square."""
    side = len(points)
    reach = degrees * side / 360
    steps = range(-int(reach), int(reach) + 1)
    near = np.zeros_like(points)
    for up in steps:
        for across in steps:
            if up**2 + across**2 <= reach**2:
                near |= np.roll(points, (up, across), axis=(0, 1))
    return near


def beyond_chance(edges: NDArray[np.bool_], near: NDArray[np.bool_]) -> float | None:
    """How much more often edges lie in `near` than points drawn at random: 0 for as often, 1 for all of them.

    None where there are no edges, or `near` is nothing or everything.
    """
    chance = float(near.mean())
    return (float(near[edges].mean()) - chance) / (1 - chance) if edges.any() and 0 < chance < 1 else None


def shifted_as_near(edges: NDArray[np.bool_], near: NDArray[np.bool_]) -> float | None:
    """The share of all shifts of `near` around the torus after which as many of the edges lie in it, or more.

    None where there are no edges, or `near` is nothing or everything.
    """
    if not edges.any() or not near.any() or near.all():
        return None
    overlaps = np.fft.irfft2(np.fft.rfft2(edges) * np.fft.rfft2(near).conj(), s=edges.shape)
    # Counts of points, but for rounding.
    return float((overlaps > (edges & near).sum() - 0.5).mean())


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


@dataclass(frozen=True, eq=False)
class Normalised:
    """A surface in axes of its own: its principal axes, each divided by its greatest number.

    Heads write along one direction almost alone, so that a surface in the stream's own axes is seen as a line.
    """

    points: NDArray[np.float64]
    """float64[G, G, 3], from -1 to 1 and about the surface's mean."""
    axes: NDArray[np.float64]
    """float64[3, 3]: in the rows the principal axes, of length 1 in the stream, the widest first."""
    reach: NDArray[np.float64]
    """float64[3]: the greatest number along each axis, to either side of the mean."""
    mean: NDArray[np.float64]
    """float64[3]: the surface's mean in the stream."""

    @classmethod
    def of(cls, vectors: NDArray[np.float64]) -> Normalised:
        """Of a map float64[G, G, 3]."""
        mean = vectors.mean(axis=(0, 1))
        axes = np.linalg.svd((vectors - mean).reshape(-1, 3), full_matrices=False)[2]
        along = (vectors - mean) @ axes.T
        reach = np.abs(along).max(axis=(0, 1))
        reach = np.where(reach > 1e-12 * max(1.0, float(reach.max())), reach, 1.0)
        return cls(along / reach, axes, reach, mean)

    def place(self, streams: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[..., 3]: where streams lie in these axes."""
        return np.asarray((streams - self.mean) @ self.axes.T / self.reach)

    def directions(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[N, 3], of length 1: where the logits u . x of rows u, float64[N, 3], grow fastest in these axes."""
        grown = rows @ self.axes.T * self.reach
        return np.asarray(grown / np.linalg.norm(grown, axis=1, keepdims=True))


@dataclass(frozen=True)
class View:
    """From where a figure is looked at: turned about the third axis, then tilted towards it, in degrees."""

    turn: float = -55.0
    tilt: float = 25.0

    def of(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[..., 3]: to the right, up, and towards the eye."""
        turn, tilt = np.radians(self.turn), np.radians(self.tilt)
        right = np.array([-np.sin(turn), np.cos(turn), 0])
        eye = np.array([np.cos(tilt) * np.cos(turn), np.cos(tilt) * np.sin(turn), np.sin(tilt)])
        return np.asarray(points @ np.stack([right, np.cross(eye, right), eye], axis=1))


def quads(surface: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[G * G, 4, 3]: between each point and its neighbours to the right and above, around the torus."""
    right, above = np.roll(surface, -1, axis=1), np.roll(surface, -1, axis=0)
    corners = np.stack([surface, right, np.roll(right, -1, axis=0), above], axis=2)
    return corners.reshape(-1, 4, 3)


def ribbons(seen: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """float64[n, 4, 3]: a line through n + 1 points as `View.of` has them, in flat pieces so wide that face the eye."""
    along = np.diff(seen[:, :2], axis=0)
    lengths = np.linalg.norm(along, axis=1, keepdims=True)
    across = np.stack([-along[:, 1], along[:, 0], np.zeros(len(along))], axis=1) / np.where(lengths > 0, lengths, 1)
    half = across * width / 2
    return np.stack([seen[:-1] - half, seen[1:] - half, seen[1:] + half, seen[:-1] + half], axis=1)


def angle_colours(first: NDArray[np.float64], second: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """float64[..., 3]: red grows with the first angle, blue with the second, in so many steps each.

    Angles are in radians, from 0 up to 2 pi.
    """
    red, blue = (np.floor(angle * steps / (2 * np.pi)) / (steps - 1) for angle in (first, second))
    return np.stack([red, np.zeros_like(red), blue], axis=-1)


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


@dataclass(frozen=True)
class EdgeMeasures:
    """Of one trained network. A level line is where a head's two logits are equal, and hardmax has its edge.

    None stands for what cannot be measured in it: where there are no level lines, no frontiers, or no edges.
    """

    explained: float | None
    """How far the steepest points of the sum of the heads lie at the heads' level lines, beyond chance."""
    covered: float | None
    """How far the heads' level lines lie at edges of the sum, over how far they lie at edges of their own head's map:
    1 where the sum has every edge that its heads have. Means over the heads, both beyond chance."""
    covered_hardmax: float | None
    """The same with all attention to the token that gets more, where every level line is an edge by construction."""
    frontiers: float | None
    """How far the frontiers between classes lie at the heads' level lines, beyond chance."""
    frontiers_shifted: float | None
    """The share of all shifts of the level lines around the torus that bring as much of the frontiers to them."""
    shortened: float | None
    """Share of the frontiers' length that is gone when every head attends the same everywhere."""


def level_lines(network: AttentionOnly, points: int) -> NDArray[np.bool_]:
    """bool[H, G, G]: where the token to which a head attends most changes."""
    return np.stack([borders(raw > 0) for raw in raw_patterns(network, points)])


def measure_edges(network: AttentionOnly, points: int) -> EdgeMeasures:
    """On a grid of so many points a side."""
    maps, by_head = layer_maps(network, points), level_lines(network, points)
    near = within(np.asarray(by_head.any(axis=0)))
    classes = maps.classes().token
    frontiers, length = borders(classes), border_length(classes)
    plain = border_length(layer_maps(network, points, "constant").classes().token)
    return EdgeMeasures(
        beyond_chance(strongest(steepness(maps.heads_together)), near),
        _covered(by_head, maps),
        _covered(by_head, layer_maps(network, points, "hardmax")),
        beyond_chance(frontiers, near),
        shifted_as_near(frontiers, near),
        1 - plain / length if length else None,
    )


def _covered(lines: NDArray[np.bool_], maps: LayerMaps) -> float | None:
    """Of the level lines bool[H, G, G] of the heads of these maps."""
    together = within(ridges(maps.heads_together))
    found = [
        (in_sum, in_own)
        for line, own in zip(lines, maps.heads, strict=True)
        for in_sum, in_own in ((beyond_chance(line, together), beyond_chance(line, within(ridges(own)))),)
        if in_sum is not None and in_own is not None
    ]
    in_sum, in_own = (sum(values) for values in zip(*found, strict=True)) if found else (0.0, 0.0)
    return in_sum / in_own if in_own > 0 else None
