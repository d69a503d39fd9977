"""The unembedding: which direction of the stream gives which token, on the sphere of directions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from dualform_studies.memorisation.torus.figures import TOKEN_INK, mark_pairs, token_handles
from dualform_studies.memorisation.torus.point_labels import place_names
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.memorisation.transformer.network import AttentionOnly
from dualform_studies.pages.frame import new_figure

_NAME = (11.0, 8.0)
"""Width and height of a pair's two letters, in points of type."""
_RADIUS = 4.5
"""Of what a name must keep off, in points of type."""


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
        _name_pairs(figure, panel, facts, inside, own)
    return path


def _name_pairs(
    figure: Figure, panel: Axes, facts: Facts, inside: NDArray[np.float64], own: NDArray[np.float64]
) -> None:
    """Letters of each pair beside its point, `inside` [P, 2]; they keep off the points of the rows, `own` [N, 2]."""
    # Only a figure that is laid out knows where points are.
    figure.draw_without_rendering()
    points, taken = (panel.transData.transform(places) * 72 / figure.dpi for places in (inside, own))
    meridians = np.stack([np.radians(np.arange(-120, 121, 60)), np.zeros(5)], axis=1)
    written = panel.transData.transform(meridians) * 72 / figure.dpi + np.array([0, 5])
    moved = place_names(points, _NAME, _RADIUS, np.concatenate([taken, written]))
    for name, at, move in zip(facts.names, inside, moved, strict=True):
        panel.annotate(
            name, at, xytext=tuple(move), textcoords="offset points", ha="center", va="center", fontsize=7, zorder=6,
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
        )  # fmt: skip
