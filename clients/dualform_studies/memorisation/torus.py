"""The network on the torus, every pair of points on the circle of embedded words; and the unembedding's cells.

Shapes: G points a side. An angle of 0 is the direction (1, -1, 0) and one of 90 degrees (1, 1, -2), which span the
plane of mean zero. Maps are indexed [angle of the second token, angle of the first], both ascending, and computed in
float64.

The unembedding parts the sphere of directions into a weighted Voronoi diagram. Of a stream x of length 1 the logit of a
token is u . x, and `|x - u|^2 - |u|^2 = 1 - 2 u . x`. So the token of the greatest logit is the one whose row u is
nearest when the square of its length is taken off the square of the distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.figures import PALETTE, new_figure
from dualform_studies.memorisation.transformer import HEADS, TOKENS, WIDTH, AttentionOnly, Facts, Recipe
from dualform_studies.report import Page, report_folder

ALONE = "What heads know alone"
"""A heading of the page."""
AXES = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
AXES /= AXES.norm(dim=1, keepdim=True)
"""float64[2, d]: the directions of 0 and of 90 degrees."""


@dataclass(frozen=True, eq=False)
class ClassMap:
    """What is predicted at each point of the torus."""

    token: NDArray[np.int64]
    """int64[G, G]: the most likely next token."""
    probability: NDArray[np.float64]
    """float64[G, G]: how likely it is."""


def on_circle(angles: Tensor) -> Tensor:
    """[..., d]: points of the circle, at angles in radians; float64."""
    unit = torch.stack([angles.cos(), angles.sin()], dim=-1)
    points: Tensor = WIDTH**0.5 * unit @ AXES
    return points


@torch.no_grad()
def word_angles(network: AttentionOnly) -> NDArray[np.float64]:
    """float64[N]: where each word lies, in radians from 0 up to 2 pi."""
    across, up = AXES @ exact_copy(network).embed(torch.arange(len(TOKENS))[:, None])[:, 0].T
    angles: NDArray[np.float64] = torch.atan2(up, across).numpy() % (2 * np.pi)
    return angles


@torch.no_grad()
def class_map(network: AttentionOnly, points: int, heads: Tensor | None = None) -> ClassMap:
    """The prediction on a grid of so many points a side; `heads` [1, H] weighs the heads."""
    given = None if heads is None else heads.double()
    best = exact_copy(network).answer(grid_of(points), given).softmax(dim=-1).max(dim=-1)
    return ClassMap(best.indices.view(points, points).numpy(), best.values.view(points, points).numpy())


@torch.no_grad()
def attention_maps(network: AttentionOnly, points: int) -> NDArray[np.float64]:
    """float64[H, G, G]: how much each head attends to the first of two tokens."""
    exact = exact_copy(network)
    maps: NDArray[np.float64] = (
        exact.pattern(exact.stream(grid_of(points)))[:, :, 0].T.reshape(-1, points, points).numpy()
    )
    return maps


def grid_angles(points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64[G, G], twice: the first and the second token's angle at the centres of a grid's cells, in radians."""
    second, first = np.meshgrid(*[(np.arange(points) + 0.5) * (2 * np.pi / points)] * 2, indexing="ij")
    return first, second


def grid_of(points: int) -> Tensor:
    """[G * G, S, d]: the two words at the centres of a grid's cells, the first token's angle fastest."""
    return on_circle(torch.from_numpy(np.stack([angles.ravel() for angles in grid_angles(points)], axis=1)))


def exact_copy(network: AttentionOnly) -> AttentionOnly:
    """The network in float64."""
    return deepcopy(network).double()


def nearest(streams: NDArray[np.float64], rows: NDArray[np.float64], weighted: bool = True) -> NDArray[np.int64]:
    """int64[n]: the cell in which each of the streams float64[n, d] lies, after it is brought to length 1.

    The sites are the rows float64[N, d]: as they are and weighted by their length, or all brought to length 1.
    """
    points = streams / np.linalg.norm(streams, axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    sites, weights = (rows, lengths**2) if weighted else (rows / lengths[:, None], np.zeros(len(rows)))
    distances = ((points[:, None] - sites) ** 2).sum(axis=2) - weights
    found: NDArray[np.int64] = distances.argmin(axis=1)
    return found


def images_right(network: AttentionOnly, facts: Facts) -> NDArray[np.bool_]:
    """bool[P]: whether the image of each pair after the attention layer lies in the cell of its next token."""
    with torch.no_grad():
        images = network.attended(network.embed(facts.pairs)).double().numpy()
    rows = network.unembedding.weight.detach().double().numpy()
    return np.asarray(nearest(images, rows) == facts.next_tokens.numpy())


def random_directions(count: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    """float64[count, width]: uniform on the sphere."""
    drawn = np.random.default_rng(seed).normal(size=(count, width))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


_ROOM = 0.03
"""A name needs so much of the square's side to each side of it."""
_APART = 0.3
"""Two names of one class lie so far apart, in sides of the square."""


def depth(inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64[G, G]: how many points a square around each may reach to every side without leaving `inside`, plus one.

    0 outside; what lies beyond the picture's border is outside, too.
    """
    found = np.zeros(inside.shape, np.int64)
    while inside.any():
        found += inside
        for axis in (0, 1):
            padded = np.pad(inside, [(1, 1) if axis == at else (0, 0) for at in (0, 1)])
            inside = inside & np.delete(padded, [-2, -1], axis=axis) & np.delete(padded, [0, 1], axis=axis)
    return found


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


TOKEN_INK = (*PALETTE[:4], PALETTE[5])
"""One colour a token, wherever it is predicted, or follows; sky blue would be taken for a faint blue."""
TOKEN_MARKS = ("o", "s", "^", "D", "v")
"""And one mark a token, wherever it follows."""
_ATTENTION = colormaps["RdBu_r"].resampled(20)
"""In steps of 5 %; every shade more would take from the marks' colours in a page's PNG."""
_DOT = 8.0
"""Degrees on either side of a pair that its dot takes."""


def draw_class_map(path: Path, drawn: ClassMap, facts: Facts, angles: NDArray[np.float64]) -> Path:
    """The whole network; letters at the top and right say which words lie there."""
    with new_figure(path, 5.0) as figure:
        panel = figure.subplots()
        paint(panel, drawn, angles)
        place_pairs(panel, facts, angles, size=46)
        name_angles(panel)
        beside = panel.secondary_xaxis("top"), panel.secondary_yaxis("right")
        for axis, direction in zip(beside, "xy", strict=True):
            axis.set(**{f"{direction}ticks": np.degrees(angles), f"{direction}ticklabels": TOKENS})
            axis.tick_params(length=2)
            axis.spines[:].set_visible(False)
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def draw_attention(path: Path, maps: NDArray[np.float64], facts: Facts, angles: NDArray[np.float64]) -> Path:
    """The attention pattern of each head: the probability to attend to the first token."""
    with new_figure(path, 2.95, shades=True) as figure:
        axes = figure.subplots(1, len(maps), sharey=True)
        for head, (panel, attention) in enumerate(zip(axes, maps, strict=True), start=1):
            image = panel.imshow(
                attention, origin="lower", extent=(0, 360, 0, 360), cmap=_ATTENTION, vmin=0, vmax=1, rasterized=True
            )
            places = (np.arange(len(attention)) + 0.5) * (360 / len(attention))
            if attention.min() < 0.5 < attention.max():
                panel.contour(places, places, attention, [0.5], colors="0.15", linewidths=0.8)
            place_pairs(panel, facts, angles, size=15)
            name_angles(panel, up=head == 1)
            panel.set_title(f"head {head}")
        bar = figure.colorbar(image, ax=axes, shrink=0.75, pad=0.01)
        bar.set_label("attention to the first token\n(probability)")
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def draw_panels(
    path: Path, panels: Mapping[str, ClassMap], facts: Facts, angles: Mapping[str, NDArray[np.float64]], across: int
) -> Path:
    """Class maps by title, so many in a row. `angles` gives, by title, where the words of that network lie."""
    rows = -(-len(panels) // across)
    lines = 1 + max(title.count("\n") for title in panels)
    with new_figure(path, (7.5 / across + 0.16 * lines) * rows + 0.85 - 0.05 * rows) as figure:
        axes = figure.subplots(rows, across, squeeze=False, sharex=True, sharey=True)
        for at, (title, drawn) in enumerate(panels.items()):
            panel = axes.flat[at]
            paint(panel, drawn, angles[title], size=7.5)
            place_pairs(panel, facts, angles[title], size=14)
            name_angles(panel, up=at % across == 0, along=at // across == rows - 1)
            panel.set_title(title, fontsize=8.5)
        for panel in axes.flat[len(panels) :]:
            panel.set_axis_off()
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def paint(panel: Axes, drawn: ClassMap, angles: NDArray[np.float64] | None = None, size: float = 9) -> None:
    """The most likely token's colour, the fainter the less likely it is, and its letter where there is room.

    Letters keep off the pairs of words at these `angles` in radians, where any are given.
    """
    inks = np.array([to_rgb(ink) for ink in TOKEN_INK])[drawn.token]
    strength = np.clip((drawn.probability - 0.2) / 0.8, 0.12, 1)[..., None] * 0.8
    panel.imshow(1 - (1 - inks) * strength, origin="lower", extent=(0, 360, 0, 360), rasterized=True)
    cell = 360 / len(drawn.token)
    for token, row, column in name_places(drawn.token, _free(len(drawn.token), angles)):
        panel.text(
            (column + 0.5) * cell, (row + 0.5) * cell, TOKENS[token], ha="center", va="center_baseline",
            fontsize=size, fontweight="bold", path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip


def _free(points: int, angles: NDArray[np.float64] | None) -> NDArray[np.bool_]:
    """bool[G, G]: where no pair of words lies."""
    if angles is None:
        return np.ones((points, points), np.bool_)
    places = (np.arange(points) + 0.5) * (360 / points)
    near = np.abs(places[:, None] - np.degrees(angles)).min(axis=1) < _DOT
    return np.asarray(~(near[:, None] & near))


def place_pairs(panel: Axes, facts: Facts, angles: NDArray[np.float64], size: float) -> None:
    """A dot for each pair, in the colour and the shape of its next token."""
    mark_pairs(panel, facts, np.degrees(angles)[facts.pairs.numpy()], size)


def mark_pairs(panel: Axes, facts: Facts, places: NDArray[np.float64], size: float) -> None:
    """The same for pairs that lie elsewhere: `places` float64[P, 2]."""
    for token, (ink, mark) in enumerate(zip(TOKEN_INK, TOKEN_MARKS, strict=True)):
        own = places[facts.next_tokens.numpy() == token]
        for area, colour in ((1.9, "black"), (1.45, "white"), (0.75, ink)):
            panel.scatter(own[:, 0], own[:, 1], s=size * area, c=colour, marker=mark, zorder=3, linewidths=0)


def name_angles(panel: Axes, up: bool = True, along: bool = True) -> None:
    panel.set(xlim=(0, 360), ylim=(0, 360), aspect="equal")
    panel.set_xticks(range(0, 360, 90))
    panel.set_yticks(range(0, 360, 90))
    if along:
        panel.set_xlabel("first token's angle (°)")
    if up:
        panel.set_ylabel("second token's angle (°)")


def token_handles() -> list[Line2D]:
    return [
        Line2D([], [], marker=mark, linestyle="none", color=ink, label=f"next token {token}")
        for ink, mark, token in zip(TOKEN_INK, TOKEN_MARKS, TOKENS, strict=True)
    ]


def directions(vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Longitude and latitude, in radians, of float64[n, 3]."""
    return np.arctan2(vectors[:, 1], vectors[:, 0]), np.arcsin(vectors[:, 2] / np.linalg.norm(vectors, axis=1))


def cells(network: AttentionOnly, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.int64]:
    """int64[len(latitude), len(longitude)]: the token whose logit is greatest in each direction.

    The unembedding has no bias, so how long a stream is does not matter: the cells are weighted Voronoi cells.
    """
    across, up = np.meshgrid(longitude, latitude)
    sphere = np.stack([np.cos(up) * np.cos(across), np.cos(up) * np.sin(across), np.sin(up)], axis=-1)
    columns = network.unembedding.weight.detach().double().numpy()
    winners: NDArray[np.int64] = (sphere @ columns.T).argmax(axis=-1)
    return winners


def draw_sphere(path: Path, network: AttentionOnly, facts: Facts) -> Path:
    """The cells of the unembedding, the images of the pairs in the colours and marks of their next tokens, and the
    directions of its rows in white."""
    edges = np.linspace(-np.pi, np.pi, 721), np.linspace(-np.pi / 2, np.pi / 2, 361)
    middle = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
    with torch.no_grad():
        images = network.attended(network.embed(facts.pairs)).double().numpy()
    columns = network.unembedding.weight.detach().double().numpy()
    with new_figure(path, 3.9) as figure:
        panel = figure.subplots(subplot_kw={"projection": "mollweide"})
        inks = ListedColormap([1 - (1 - np.array(to_rgb(ink))) * 0.65 for ink in TOKEN_INK])
        won = cells(network, *middle)
        panel.pcolormesh(*edges, won, cmap=inks, vmin=-0.5, vmax=4.5, rasterized=True)
        panel.grid(color="white", linewidth=0.4, alpha=0.7)
        inside, own = np.stack(directions(images), axis=1), np.stack(directions(columns), axis=1)
        mark_pairs(panel, facts, inside, size=16)
        panel.scatter(own[:, 0], own[:, 1], s=110, c="white", edgecolors="black", linewidths=0.8, zorder=4)
        for token, at in zip(TOKENS, own, strict=True):
            panel.annotate(token, at, ha="center", va="center", fontsize=8, fontweight="bold", zorder=5)
        panel.set_xticks(np.radians(np.arange(-120, 121, 60)))
        panel.set_yticks(np.radians(np.arange(-60, 61, 30)))
        panel.tick_params(axis="x", labelsize=7.5)
        panel.set_xlabel("longitude in the plane of stream dimensions 1 and 2 (°)", labelpad=6)
        panel.set_ylabel("latitude towards dimension 3 (°)")
        row = Line2D(
            [], [], marker="o", color="white", markeredgecolor="black", linestyle="none", markersize=9,
            label="row of the unembedding",
        )  # fmt: skip
        figure.legend(handles=[*token_handles(), row], loc="outside lower center", ncols=3)
        for name, at in zip(facts.names, inside, strict=True):
            panel.annotate(
                name, at, xytext=(0, 8), textcoords="offset points", ha="center", va="center", fontsize=7, zorder=6,
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )  # fmt: skip
    return path


def maps_chapter(page: Page, network: AttentionOnly, facts: Facts, recipe: Recipe) -> None:
    """The torus and the sphere."""
    folder, angles = report_folder(page.run), word_angles(network)
    page.heading("The network on the torus")
    page.paragraph(
        "The layer norm puts every word on one circle, so the network maps two angles to a next token. Opposite sides "
        "of the square are one and the same. The pairs form a grid, since a word has the same angle in either place."
    )
    drawn = draw_class_map(folder / "class-map.png", class_map(network, recipe.grid), facts, angles)
    page.figure(
        drawn,
        "The most likely next token at each point of the torus, the fainter the less likely, with its letter; "
        "each mark is a pair in the colour and shape of its true next token, and letters at the top and right say "
        "which words.",
    )
    drawn = draw_sphere(folder / "unembedding.png", network, facts)
    page.figure(
        drawn,
        "The unembedding as a map of the sphere: the token that a stream of each direction gives (weighted Voronoi "
        "cells). The named marks are the images of the 25 pairs after the attention layer, in the colour and shape of "
        "their true next token; white dots are the directions of the unembedding's own rows.",
    )


def heads_chapter(page: Page, network: AttentionOnly, facts: Facts, recipe: Recipe) -> None:
    """Attention patterns, and heads alone."""
    folder, angles = report_folder(page.run), word_angles(network)
    page.heading(ALONE)
    drawn = draw_attention(folder / "attention.png", attention_maps(network, recipe.grid), facts, angles)
    page.figure(drawn, "How much each head attends to the first token; the line is where both get one half.")
    speaking = {f"head {head + 1} alone": torch.eye(HEADS)[head : head + 1] for head in range(HEADS)}
    speaking["no head"] = torch.zeros(1, HEADS)
    with torch.no_grad():
        alone = {name: facts.right(network(facts.pairs, heads)) for name, heads in speaking.items()}
    panels = {
        f"{name}: {alone[name].sum()} of {len(facts)}": class_map(network, recipe.grid, heads)
        for name, heads in speaking.items()
    }
    drawn = draw_panels(folder / "heads-alone.png", panels, facts, dict.fromkeys(panels, angles), across=4)
    page.figure(
        drawn,
        "The class map when one head speaks alone, at the strength it was trained with, or none does: then only the "
        "second token's own stream is left. In the titles, the pairs that are still known.",
    )
