"""The unembedding: which direction of the stream gives which token, on the sphere of directions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dualform_studies.memorisation.facts import TOKENS, Facts
from dualform_studies.memorisation.network import AttentionOnly
from dualform_studies.memorisation.torus_figures import TOKEN_INK, token_handles
from dualform_studies.pages.frame import new_figure


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
    """The cells of the unembedding, the images of the pairs in black, and the unembedding's own directions in white."""
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
        across, up = directions(images)
        panel.scatter(across, up, s=30, c="black", zorder=3, linewidths=0)
        panel.scatter(across, up, s=9, c=[TOKEN_INK[t] for t in facts.next_tokens.tolist()], zorder=3, linewidths=0)
        across, up = directions(columns)
        panel.scatter(across, up, s=110, c="white", edgecolors="black", linewidths=0.8, zorder=4)
        for token, x, y in zip(TOKENS, across, up, strict=True):
            panel.annotate(token, (x, y), ha="center", va="center", fontsize=8, zorder=5)
        panel.set_xticks(np.radians(np.arange(-120, 121, 60)))
        panel.set_yticks(np.radians(np.arange(-60, 61, 30)))
        panel.tick_params(axis="x", labelsize=7.5)
        panel.set_xlabel("longitude in the plane of stream dimensions 1 and 2 (°)", labelpad=6)
        panel.set_ylabel("latitude towards dimension 3 (°)")
        pair = Line2D([], [], marker="o", color="black", linestyle="none", markersize=5, label="image of a pair")
        own = Line2D(
            [], [], marker="o", color="white", markeredgecolor="black", linestyle="none", markersize=9,
            label="row of the unembedding",
        )  # fmt: skip
        figure.legend(handles=[*token_handles(), pair, own], loc="outside lower center", ncols=4)
    return path
