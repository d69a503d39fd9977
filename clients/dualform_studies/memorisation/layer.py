"""The attention layer's output over the torus, term by term: maps, surfaces and edges.

Shapes: G points a side, H heads, d = 3; a map is float64[..., 3]. With the attention pattern a_hj of head h over the
two tokens, and V_h, O_h its value and output matrices:

    positions_h = sum_j a_hj q_j          words_h = sum_j a_hj p(t_j)         both before the values are taken
    heads_h     = O_h V_h (positions_h + words_h)
    layer       = x_2 + sum_h heads_h     logits = U layer

All maps are linear in the stream, so they add up, and so do their colours: (red, green, blue) = 1/2 + v / (2 R), with R
the greatest numbers of any map in a figure, so that nothing is clipped. Opposite sides are joined, so every difference
and every distance goes around.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.figures import new_figure
from dualform_studies.memorisation.torus import (
    ClassMap,
    exact_copy,
    grid_angles,
    grid_of,
    name_angles,
    paint,
    place_pairs,
)
from dualform_studies.memorisation.transformer import HEAD_WIDTH, WIDTH, AttentionOnly, Facts

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


Shown: TypeAlias = tuple[str, NDArray[np.float64], NDArray[np.float64] | None]
"""A panel: its title, a map of vectors float64[G, G, 3], and the raw pattern float64[G, G] whose level line it has."""


def draw_maps(path: Path, rows: Sequence[Sequence[Shown]], colours: VectorColours) -> Path:
    """Maps of vectors in rows, above the key of their colours."""
    height = 2.45 * len(rows) + 0.35
    with new_figure(path, height + _KEY_HEIGHT, shades=True) as figure:
        (above,), (key,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(height, _KEY_HEIGHT))
        colours.draw_key(key.subplots(1, len(_PARTS)))
        axes = above.subplots(len(rows), len(rows[0]), sharex=True, sharey=True, squeeze=False)
        for at, (panels, row) in enumerate(zip(axes, rows, strict=True)):
            for panel, (title, vectors, raw) in zip(panels, row, strict=True):
                panel.imshow(colours.of(vectors), interpolation="nearest", **_PLACED)
                if raw is not None:
                    _level_line(panel, raw)
                name_angles(panel, up=panel is panels[0], along=at == len(rows) - 1)
                panel.set_title(title)
    return path


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


def _level_line(panel: Axes, raw: NDArray[np.float64], head: int | None = None) -> None:
    """Where the head attends to both tokens alike: in its own style, or thin."""
    if raw.min() < 0 < raw.max():
        places = (np.arange(len(raw)) + 0.5) * (360 / len(raw))
        style: Any = {"colors": "black", "linewidths": 0.6}
        if head is not None:
            style = {"colors": "black", "linewidths": 1.2, "linestyles": _STYLES[head]}
        panel.contour(places, places, raw, [0], **style)


def principal_axes(vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A surface float64[G, G, 3] in its principal axes about its mean, each divided by its reach; and float64[3], how
    far it reaches along them.

    Heads write along one direction almost alone, so that a surface in the stream's own axes is seen as a line.
    """
    centred = vectors - vectors.mean(axis=(0, 1))
    along = centred @ np.linalg.svd(centred.reshape(-1, 3), full_matrices=False)[2].T
    reach = np.abs(along).max(axis=(0, 1))
    reach = np.where(reach > 1e-12 * max(1.0, float(reach.max())), reach, 1.0)
    return along / reach, reach


_STEPS = 8
"""Of colours along each angle; a smooth change would take more colours than a page's PNG has."""


def draw_surfaces(path: Path, maps: LayerMaps) -> Path:
    """The layer's output and each head's as surfaces: red grows with the first angle, blue with the second."""
    surfaces = {"the layer": maps.layer}
    surfaces |= {f"head {head}": vectors for head, vectors in enumerate(maps.heads, start=1)}
    around = np.arange(len(maps.layer) + 1) % len(maps.layer)
    first, second = (np.floor(angle * _STEPS / (2 * np.pi)) / (_STEPS - 1) for angle in grid_angles(len(maps.layer)))
    colours = np.stack([first, np.zeros_like(first), second], axis=-1)
    with new_figure(path, 6.4) as figure:
        axes = figure.subplots(2, 2, subplot_kw={"projection": "3d"})
        for panel, (title, vectors) in zip(axes.flat, surfaces.items(), strict=True):
            points, reach = principal_axes(vectors)
            x, y, z = np.moveaxis(points[np.ix_(around, around)], -1, 0)
            panel.plot_surface(
                x, y, z, facecolors=colours, rstride=1, cstride=1, shade=False, antialiased=False, rasterized=True
            )
            panel.set_title(f"{title}: reach " + ", ".join(f"{along:.2g}" for along in reach))
            panel.view_init(elev=25, azim=-55)
    return path


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
