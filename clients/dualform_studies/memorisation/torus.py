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

from dualform_studies.memorisation.facts import TOKENS
from dualform_studies.memorisation.network import WIDTH, AttentionOnly

_AXES = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
_AXES /= _AXES.norm(dim=1, keepdim=True)


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
    points: Tensor = WIDTH**0.5 * unit @ _AXES
    return points


@torch.no_grad()
def word_angles(network: AttentionOnly) -> NDArray[np.float64]:
    """float64[N]: where each word lies, in radians from 0 up to 2 pi."""
    across, up = _AXES @ _exact(network).embed(torch.arange(len(TOKENS))[:, None])[:, 0].T
    angles: NDArray[np.float64] = torch.atan2(up, across).numpy() % (2 * np.pi)
    return angles


@torch.no_grad()
def class_map(network: AttentionOnly, points: int, heads: Tensor | None = None) -> ClassMap:
    """The prediction on a grid of so many points a side; `heads` [1, H] weighs the heads."""
    given = None if heads is None else heads.double()
    best = _exact(network).answer(_grid(points), given).softmax(dim=-1).max(dim=-1)
    return ClassMap(best.indices.view(points, points).numpy(), best.values.view(points, points).numpy())


@torch.no_grad()
def attention_maps(network: AttentionOnly, points: int) -> NDArray[np.float64]:
    """float64[H, G, G]: how much each head attends to the first of two tokens."""
    exact = _exact(network)
    maps: NDArray[np.float64] = (
        exact.pattern(exact.stream(_grid(points)))[:, :, 0].T.reshape(-1, points, points).numpy()
    )
    return maps


def _grid(points: int) -> Tensor:
    """[G * G, S, d]: centres of the cells of a grid, the first token's angle fastest."""
    circle = on_circle((torch.arange(points, dtype=torch.float64) + 0.5) * (2 * torch.pi / points))
    second, first = torch.meshgrid(torch.arange(points), torch.arange(points), indexing="ij")
    return torch.stack([circle[first.ravel()], circle[second.ravel()]], dim=1)


def _exact(network: AttentionOnly) -> AttentionOnly:
    return deepcopy(network).double()
