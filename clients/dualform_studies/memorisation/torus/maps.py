"""The network on the torus: every pair of points on the circle of embedded words. Shapes: G points a side.

An angle of 0 is the direction (1, -1, 0) and one of 90 degrees (1, 1, -2), which span the plane of mean zero. Maps are
indexed [angle of the second token, angle of the first], both ascending, and computed in float64.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.memorisation.transformer.facts import TOKENS
from dualform_studies.memorisation.transformer.network import WIDTH, AttentionOnly

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
