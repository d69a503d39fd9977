"""The network on the torus, every pair of points on the circle of embedded words; and the unembedding's cells.

Shapes: G points a side, H heads, d = 3. An angle of 0 is the direction (1, -1, 0) and one of 90 degrees (1, 1, -2),
which span the plane of mean zero. Maps are indexed [angle of the second token, angle of the first], both ascending, and
computed in float64. With the attention pattern a_hj of head h over the two tokens, and V_h, O_h its value and output
matrices:

    positions_h = sum_j a_hj q_j          words_h = sum_j a_hj p(t_j)         both before the values are taken
    heads_h     = O_h V_h (positions_h + words_h)
    layer       = x_2 + sum_h heads_h     logits = U layer

The unembedding parts the sphere of directions into a weighted Voronoi diagram. Of a stream x of length 1 the logit of a
token is u . x, and `|x - u|^2 - |u|^2 = 1 - 2 u . x`. So the token of the greatest logit is the one whose row u is
nearest when the square of its length is taken off the square of the distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_cdt
from torch import Tensor
from torch.nn.functional import one_hot

from dualform_studies.claims import Claim, judge
from dualform_studies.figures import PALETTE, new_figure
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    HEADS,
    NAMES,
    PAIRS,
    TOKENS,
    WIDTH,
    AttentionOnly,
    Recipe,
    right,
)
from dualform_studies.report import Page, report_folder

AXES = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
AXES /= AXES.norm(dim=1, keepdim=True)
"""float64[2, d]: the directions of 0 and of 90 degrees."""
Pattern: TypeAlias = Literal["softmax", "hardmax", "constant"]
"""The network's own; all attention to the token that gets more; or the same everywhere, the mean over the torus."""


@dataclass(frozen=True, eq=False)
class ClassMap:
    """The most likely next token at each point of the torus, int64[G, G], and how likely it is, float64[G, G]."""

    token: NDArray[np.int64]
    probability: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TorusMaps:
    """What the attention layer computes at each point.

    raw             float64[H, G, G]: the last token's attention logit of the first token over that of the second
    attention       float64[H, G, G]: to the first token, as the network has it
    positions       float64[H, G, G, d]
    words           float64[H, G, G, d]
    heads           float64[H, G, G, d]: after value and output
    own             float64[G, G, d]: the last token's own stream, x_2
    unembedding     float64[N, d]
    """

    raw: NDArray[np.float64]
    attention: NDArray[np.float64]
    positions: NDArray[np.float64]
    words: NDArray[np.float64]
    heads: NDArray[np.float64]
    own: NDArray[np.float64]
    unembedding: NDArray[np.float64]

    @property
    def heads_together(self) -> NDArray[np.float64]:
        """float64[G, G, d]: the sum of the heads."""
        return np.asarray(self.heads.sum(axis=0))

    @property
    def layer(self) -> NDArray[np.float64]:
        """float64[G, G, d]: the stream after the attention layer."""
        return self.own + self.heads_together

    def classes(self, speaking: Sequence[float] = (1,) * HEADS) -> ClassMap:
        """The prediction with each head at a strength, 1 as it was trained and 0 for silence."""
        layer = self.own + (np.reshape(speaking, (-1, 1, 1, 1)) * self.heads).sum(axis=0)
        best = torch.from_numpy(layer @ self.unembedding.T).softmax(dim=-1).max(dim=-1)
        return ClassMap(best.indices.numpy(), best.values.numpy())


@torch.no_grad()
def torus_maps(network: AttentionOnly, points: int, pattern: Pattern = "softmax") -> TorusMaps:
    """The maps on a grid of so many points a side, with the network's own attention or another in its place."""
    exact, circle = exact_copy(network), grid_of(points)
    stream = exact.stream(circle)
    logits, own = exact.attention_logits(stream), exact.pattern(stream)
    weights = {
        "softmax": own,
        "hardmax": one_hot(own.argmax(dim=-1), own.shape[-1]).to(own.dtype),
        "constant": own.mean(dim=0, keepdim=True).expand_as(own),
    }[pattern]
    words = torch.einsum("bhs,bsd->hbd", weights, circle)
    positions = torch.einsum("bhs,ds->hbd", weights, exact.position.weight)
    values = exact.value.weight.view(-1, HEAD_WIDTH, WIDTH)
    outputs = exact.output.weight.view(WIDTH, -1, HEAD_WIDTH)
    heads = torch.einsum("dhe,hec,hbc->hbd", outputs, values, words + positions)
    shape = (points, points, WIDTH)
    return TorusMaps(
        (logits[..., 0] - logits[..., 1]).T.reshape(-1, points, points).numpy(),
        own[..., 0].T.reshape(-1, points, points).numpy(),
        positions.view(-1, *shape).numpy(),
        words.view(-1, *shape).numpy(),
        heads.view(-1, *shape).numpy(),
        stream[:, -1].view(shape).numpy(),
        exact.unembedding.weight.numpy(),
    )


def exact_copy(network: AttentionOnly) -> AttentionOnly:
    """The network in float64."""
    return deepcopy(network).double()


def on_circle(angles: Tensor) -> Tensor:
    """[..., d]: points of the circle, at angles in radians; float64."""
    points: Tensor = WIDTH**0.5 * torch.stack([angles.cos(), angles.sin()], dim=-1) @ AXES
    return points


def grid_angles(points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64[G, G], twice: the first and the second token's angle at the centres of a grid's cells, in radians."""
    second, first = np.meshgrid(*[(np.arange(points) + 0.5) * (2 * np.pi / points)] * 2, indexing="ij")
    return first, second


def grid_of(points: int) -> Tensor:
    """[G * G, S, d]: the two words at the centres of a grid's cells, the first token's angle fastest."""
    return on_circle(torch.from_numpy(np.stack([angles.ravel() for angles in grid_angles(points)], axis=1)))


@torch.no_grad()
def word_angles(network: AttentionOnly) -> NDArray[np.float64]:
    """float64[N]: where each word lies, in radians from 0 up to 2 pi."""
    across, up = AXES @ exact_copy(network).embed(torch.arange(len(TOKENS))[:, None])[:, 0].T
    return np.asarray(torch.atan2(up, across).numpy() % (2 * np.pi))


@torch.no_grad()
def images(network: AttentionOnly) -> NDArray[np.float64]:
    """float64[P, d]: the streams of the pairs after the attention layer."""
    return np.asarray(network.attended(network.embed(PAIRS)).double())


def unembedding_rows(network: AttentionOnly) -> NDArray[np.float64]:
    """float64[N, d]."""
    return np.asarray(network.unembedding.weight.detach().double())


def nearest(streams: NDArray[np.float64], rows: NDArray[np.float64], weighted: bool = True) -> NDArray[np.int64]:
    """int64[n]: the cell in which each of the streams float64[n, d] lies, after it is brought to length 1.

    The sites are the rows float64[N, d]: as they are and weighted by their length, or all brought to length 1.
    """
    points = streams / np.linalg.norm(streams, axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    sites, weights = (rows, lengths**2) if weighted else (rows / lengths[:, None], np.zeros(len(rows)))
    return np.asarray((((points[:, None] - sites) ** 2).sum(axis=2) - weights).argmin(axis=1))


def random_directions(count: int) -> NDArray[np.float64]:
    """float64[count, d]: uniform on the sphere."""
    drawn = np.random.default_rng(0).normal(size=(count, WIDTH))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


_DIRECTIONS = 20_000


def voronoi_claim(networks: Sequence[AttentionOnly], facts: Sequence[Tensor]) -> Claim:
    """That the unembedding's cells, which are weighted Voronoi cells by construction, maximise accuracy."""
    directions = random_directions(_DIRECTIONS)
    shares, plain = [], []
    for network, own in zip(networks, facts, strict=True):
        rows = unembedding_rows(network)
        shares.append(float((nearest(images(network), rows) == own.numpy()).mean()))
        winners = (directions @ rows.T).argmax(axis=1)
        plain.append(float((nearest(directions, rows, weighted=False) == winners).mean()))
    known = float(np.mean(shares))
    return judge(
        "memorisation.voronoi",
        known,
        f"the cells are weighted Voronoi cells by construction, and {100 * known:.1f} % of the pairs "
        f"lie in their own, in {len(networks)} networks; without the weights, {100 * float(np.median(plain)):.0f} % of "
        f"{_DIRECTIONS:,} directions would lie in the same cell (median)",
    )


TOKEN_INK = (*PALETTE[:4], PALETTE[5])
"""One colour a token, wherever it is predicted, or follows; sky blue would be taken for a faint blue."""
TOKEN_MARKS = ("o", "s", "^", "D", "v")
"""And one mark a token, wherever it follows."""
PLACED: Any = {"origin": "lower", "extent": (0, 360, 0, 360), "rasterized": True}
"""How an image lies on the torus's axes."""
_ATTENTION = colormaps["RdBu_r"].resampled(20)  # steps of 5 %; more shades would take from the marks' colours in a PNG
_DOT = 8.0  # degrees on either side of a pair that its dot takes
_ROOM = 0.03  # a name needs so much of the square's side to each side of it
_APART = 0.3  # two names of one class lie so far apart, in sides of the square


def torus_axes(figure: Figure, rows: int = 1, columns: int = 1) -> Any:
    """Axes [rows, columns] of angles in degrees, named at the left and at the bottom."""
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel in axes.flat:
        panel.set(xlim=(0, 360), ylim=(0, 360), aspect="equal", xticks=range(0, 360, 90), yticks=range(0, 360, 90))
    for panel in axes[-1]:
        panel.set_xlabel("first token's angle (°)")
    for panel in axes[:, 0]:
        panel.set_ylabel("second token's angle (°)")
    return axes


def level_line(panel: Axes, heights: NDArray[np.float64], level: float, **style: Any) -> None:
    """Where a map float64[G, G] has that height, if anywhere."""
    if heights.min() < level < heights.max():
        places = (np.arange(len(heights)) + 0.5) * (360 / len(heights))
        panel.contour(places, places, heights, [level], **style)


def paint(panel: Axes, drawn: ClassMap, angles: NDArray[np.float64] | None = None, size: float = 9) -> None:
    """The most likely token's colour, the fainter the less likely it is, and its letter where there is room.

    Letters keep off the pairs of words at these `angles` in radians, where any are given.
    """
    inks = np.array([to_rgb(ink) for ink in TOKEN_INK])[drawn.token]
    strength = np.clip((drawn.probability - 0.2) / 0.8, 0.12, 1)[..., None] * 0.8
    panel.imshow(1 - (1 - inks) * strength, **PLACED)
    cell = 360 / len(drawn.token)
    free = np.ones(drawn.token.shape, np.bool_)
    if angles is not None:
        places = (np.arange(len(free)) + 0.5) * cell
        near = np.abs(places[:, None] - np.degrees(angles)).min(axis=1) < _DOT
        free[np.outer(near, near)] = False
    for token, row, column in name_places(drawn.token, free):
        panel.text(
            (column + 0.5) * cell, (row + 0.5) * cell, TOKENS[token], ha="center", va="center_baseline",
            fontsize=size, fontweight="bold", path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip


def name_places(classes: NDArray[np.int64], free: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Class, row and column of each name: in the widest places of every class's regions that are free, as bool[G, G].

    Regions without room have no name.
    """
    side = len(classes)
    rows, columns = np.indices(classes.shape)
    found = []
    for one in np.unique(classes).tolist():
        room = depth((classes == one) & free)
        while room.max() > max(1, _ROOM * side):
            row, column = (int(at) for at in np.unravel_index(int(room.argmax()), room.shape))
            found.append((one, row, column))
            room[np.maximum(abs(rows - row), abs(columns - column)) < _APART * side] = 0
    return found


def depth(inside: NDArray[np.bool_]) -> NDArray[np.int32]:
    """int32[G, G]: how many points a square around each may reach to every side without leaving `inside`, plus one.

    0 outside; what lies beyond the picture's border is outside, too.
    """
    return np.asarray(distance_transform_cdt(np.pad(inside, 1), metric="chessboard")[1:-1, 1:-1])


def pair_places(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[P, 2]: where pairs of words at these angles lie, in degrees."""
    return np.asarray(np.degrees(angles)[PAIRS.numpy()])


def mark_pairs(panel: Axes, facts: Tensor, places: NDArray[np.float64], size: float) -> None:
    """A dot for each pair at its place, float64[P, 2], in the colour and the shape of its next token."""
    for token, (ink, mark) in enumerate(zip(TOKEN_INK, TOKEN_MARKS, strict=True)):
        x, y = places[facts.numpy() == token].T
        for area, colour in ((1.9, "black"), (1.45, "white"), (0.75, ink)):
            panel.scatter(x, y, s=size * area, c=colour, marker=mark, zorder=3, linewidths=0)


def token_legend(figure: Figure, *more: Line2D, columns: int = len(TOKENS), **style: Any) -> None:
    """The mark of each next token, below the figure."""
    handles = [
        Line2D([], [], marker=mark, linestyle="none", color=ink, label=f"next token {token}")
        for ink, mark, token in zip(TOKEN_INK, TOKEN_MARKS, TOKENS, strict=True)
    ]
    figure.legend(handles=[*handles, *more], loc="outside lower center", ncols=columns, **style)


def draw_class_map(path: Path, drawn: ClassMap, facts: Tensor, angles: NDArray[np.float64]) -> Path:
    """The whole network; letters at the top and right say which words lie there."""
    with new_figure(path, 5.0) as figure:
        panel = torus_axes(figure)[0, 0]
        paint(panel, drawn, angles)
        mark_pairs(panel, facts, pair_places(angles), size=46)
        for axis, direction in ((panel.secondary_xaxis("top"), "x"), (panel.secondary_yaxis("right"), "y")):
            axis.set(**{f"{direction}ticks": np.degrees(angles), f"{direction}ticklabels": TOKENS})
            axis.tick_params(length=2)
            axis.spines[:].set_visible(False)
        token_legend(figure, handletextpad=0.2)
    return path


def draw_attention(path: Path, maps: NDArray[np.float64], facts: Tensor, angles: NDArray[np.float64]) -> Path:
    """The attention pattern of each head: the probability to attend to the first token."""
    with new_figure(path, 2.95, shades=True) as figure:
        axes = torus_axes(figure, columns=len(maps))
        for head, (panel, attention) in enumerate(zip(axes[0], maps, strict=True), start=1):
            image = panel.imshow(attention, cmap=_ATTENTION, vmin=0, vmax=1, **PLACED)
            level_line(panel, attention, 0.5, colors="0.15", linewidths=0.8)
            mark_pairs(panel, facts, pair_places(angles), size=15)
            panel.set_title(f"head {head}")
        figure.colorbar(image, ax=axes, shrink=0.75, pad=0.01).set_label("attention to the first token\n(probability)")
        token_legend(figure, handletextpad=0.2)
    return path


def draw_alone(path: Path, panels: Mapping[str, ClassMap], facts: Tensor, angles: NDArray[np.float64]) -> Path:
    """Class maps in a row, by title."""
    with new_figure(path, 2.835) as figure:
        for panel, (title, drawn) in zip(torus_axes(figure, columns=len(panels))[0], panels.items(), strict=True):
            paint(panel, drawn, angles, size=7.5)
            mark_pairs(panel, facts, pair_places(angles), size=14)
            panel.set_title(title, fontsize=8.5)
        token_legend(figure, handletextpad=0.2)
    return path


def directions(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n, 2]: longitude and latitude of float64[n, 3], in radians."""
    latitude = np.arcsin(vectors[:, 2] / np.linalg.norm(vectors, axis=1))
    return np.stack([np.arctan2(vectors[:, 1], vectors[:, 0]), latitude], axis=1)


def cells(network: AttentionOnly, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.int64]:
    """int64[len(latitude), len(longitude)]: the token whose logit is greatest in each direction.

    The unembedding has no bias, so how long a stream is does not matter: the cells are weighted Voronoi cells.
    """
    across, up = np.meshgrid(longitude, latitude)
    sphere = np.stack([np.cos(up) * np.cos(across), np.cos(up) * np.sin(across), np.sin(up)], axis=-1)
    return np.asarray((sphere @ unembedding_rows(network).T).argmax(axis=-1))


def draw_sphere(path: Path, network: AttentionOnly, facts: Tensor) -> Path:
    """The cells of the unembedding, the images of the pairs in the colours and marks of their next tokens, and the
    directions of its rows in white."""
    edges = np.linspace(-np.pi, np.pi, 721), np.linspace(-np.pi / 2, np.pi / 2, 361)
    middle = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
    with new_figure(path, 3.9) as figure:
        panel = figure.subplots(subplot_kw={"projection": "mollweide"})
        inks = ListedColormap([1 - (1 - np.array(to_rgb(ink))) * 0.65 for ink in TOKEN_INK])
        panel.pcolormesh(*edges, cells(network, *middle), cmap=inks, vmin=-0.5, vmax=4.5, rasterized=True)
        panel.grid(color="white", linewidth=0.4, alpha=0.7)
        inside, own = directions(images(network)), directions(unembedding_rows(network))
        mark_pairs(panel, facts, inside, size=16)
        panel.scatter(own[:, 0], own[:, 1], s=110, c="white", edgecolors="black", linewidths=0.8, zorder=4)
        for token, at in zip(TOKENS, own, strict=True):
            panel.annotate(token, at, ha="center", va="center", fontsize=8, fontweight="bold", zorder=5)
        panel.set(xticks=np.radians(np.arange(-120, 121, 60)), yticks=np.radians(np.arange(-60, 61, 30)))
        panel.tick_params(axis="x", labelsize=7.5)
        panel.set_xlabel("longitude in the plane of stream dimensions 1 and 2 (°)", labelpad=6)
        panel.set_ylabel("latitude towards dimension 3 (°)")
        row = Line2D(
            [], [], marker="o", color="white", markeredgecolor="black", linestyle="none", markersize=9,
            label="row of the unembedding",
        )  # fmt: skip
        token_legend(figure, row, columns=3)
        for name, at in zip(NAMES, inside, strict=True):
            panel.annotate(
                name, at, xytext=(0, 8), textcoords="offset points", ha="center", va="center", fontsize=7, zorder=6,
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )  # fmt: skip
    return path


def torus_section(page: Page, network: AttentionOnly, facts: Tensor, recipe: Recipe) -> None:
    """The torus and the sphere."""
    folder, angles = report_folder(page.run), word_angles(network)
    page.heading("The network on the torus")
    page.paragraph(
        "The layer norm puts every word on one circle, so the network maps two angles to a next token. Opposite sides "
        "of the square are one and the same. The pairs form a grid, since a word has the same angle in either place."
    )
    page.figure(
        draw_class_map(folder / "class-map.png", torus_maps(network, recipe.grid).classes(), facts, angles),
        "The most likely next token at each point of the torus, the fainter the less likely, with its letter; "
        "each mark is a pair in the colour and shape of its true next token, and letters at the top and right say "
        "which words.",
    )
    page.figure(
        draw_sphere(folder / "unembedding.png", network, facts),
        "The unembedding as a map of the sphere: the token that a stream of each direction gives (weighted Voronoi "
        "cells). The named marks are the images of the 25 pairs after the attention layer, in the colour and shape of "
        "their true next token; white dots are the directions of the unembedding's own rows.",
    )


def alone_section(page: Page, network: AttentionOnly, facts: Tensor, recipe: Recipe) -> None:
    """Attention patterns, and heads alone."""
    folder, angles, maps = report_folder(page.run), word_angles(network), torus_maps(network, recipe.grid)
    page.heading("What heads know alone")
    page.figure(
        draw_attention(folder / "attention.png", maps.attention, facts, angles),
        "How much each head attends to the first token; the line is where both get one half.",
    )
    panels = {}
    for name, speaking in zip(
        [*(f"head {head + 1} alone" for head in range(HEADS)), "no head"], torch.eye(HEADS + 1, HEADS), strict=True
    ):
        known = right(network(PAIRS, speaking[None]), facts).sum()
        panels[f"{name}: {known} of {len(PAIRS)}"] = maps.classes(speaking.tolist())
    page.figure(
        draw_alone(folder / "heads-alone.png", panels, facts, angles),
        "The class map when one head speaks alone, at the strength it was trained with, or none does: then only the "
        "second token's own stream is left. In the titles, the pairs that are still known.",
    )
