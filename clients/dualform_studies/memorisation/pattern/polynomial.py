"""The raw attention pattern of a head, as the trigonometric polynomial of two angles that it is.

Raw is the difference of the last token's two attention logits, so the attention to the first token is its sigmoid.
With the two words at the angles t1 and t2 of their circle, r(t) = (cos t, sin t), W = sqrt(d) [u v] with the circle's
axes u, v in its columns, q_1 and q_2 the positions' vectors and s = q_1 - q_2 (shapes: e the head's dimension, d = 3):

    x_j = W r(t_j) + q_j                                        the stream
    raw = x_2 . M (x_1 - x_2)                                   M = Q^T K / sqrt(e), of rank e at most
        = r_2 . A r_1  -  r_2 . A r_2  +  (b - c) . r_2  +  c . r_1  +  q_2 . M s

    A = W^T M W        b = W^T M s        c = W^T M^T q_2

Multiplied out, with A = [[A11, A12], [A21, A22]]:

    1              q_2 . M s - (A11 + A22) / 2
    cos t1         c_1                              sin t1         c_2
    cos t2         b_1 - c_1                        sin t2         b_2 - c_2
    cos(t1 - t2)   (A11 + A22) / 2                  sin(t1 - t2)   (A12 - A21) / 2
    cos(t1 + t2)   (A11 - A22) / 2                  sin(t1 + t2)   (A12 + A21) / 2
    cos 2 t2      -(A11 - A22) / 2                  sin 2 t2      -(A12 + A21) / 2

The harmonics are eleven, and the last two are tied to those of t1 + t2, which leaves nine numbers. A head of dimension
3 can have any nine: [W q_2]^T M [W s] is any 3 x 3 matrix, unless q_2 or s lies in the circle's plane. One
of dimension 2 has a matrix of rank 2 there, eight numbers, and one of dimension 1, of rank 1, five: `OneDimensional`.

This is the polynomial of which "Visualizing small Attention-only Transformers" speaks; the derivation is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.memorisation.torus.maps import AXES
from dualform_studies.memorisation.transformer.network import HEAD_WIDTH, WIDTH, AttentionOnly


@dataclass(frozen=True)
class Harmonic:
    """cos or sin of `first * t1 + second * t2`."""

    name: str
    first: int
    second: int
    sine: bool = False

    def __call__(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        angle = self.first * first + self.second * second
        return np.sin(angle) if self.sine else np.cos(angle)


HARMONICS = (
    Harmonic("1", 0, 0),
    Harmonic("cos t₁", 1, 0),
    Harmonic("sin t₁", 1, 0, sine=True),
    Harmonic("cos t₂", 0, 1),
    Harmonic("sin t₂", 0, 1, sine=True),
    Harmonic("cos(t₁ - t₂)", 1, -1),
    Harmonic("sin(t₁ - t₂)", 1, -1, sine=True),
    Harmonic("cos(t₁ + t₂)", 1, 1),
    Harmonic("sin(t₁ + t₂)", 1, 1, sine=True),
    Harmonic("cos 2t₂", 0, 2),
    Harmonic("sin 2t₂", 0, 2, sine=True),
)
TIED = {"cos 2t₂": "cos(t₁ + t₂)", "sin 2t₂": "sin(t₁ + t₂)"}
"""Harmonics whose coefficient is that of another with its sign changed."""


def coefficients(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    """[11]: by harmonic, for a head of any dimension e: `query` and `key` [e, d], `positions` [d, 2] in columns.

    Of float64, and differentiable.
    """
    form = query.T @ key / len(query) ** 0.5
    circle = WIDTH**0.5 * AXES.T
    last, shift = positions[:, 1], positions[:, 0] - positions[:, 1]
    both = circle.T @ form @ circle
    to_last = circle.T @ form @ shift - circle.T @ form.T @ last
    to_first = circle.T @ form.T @ last
    even, odd = (both[0, 0] - both[1, 1]) / 2, (both[0, 1] + both[1, 0]) / 2
    half_trace = (both[0, 0] + both[1, 1]) / 2
    constant = last @ form @ shift - half_trace
    turned = (both[0, 1] - both[1, 0]) / 2
    return torch.stack([constant, *to_first, *to_last, half_trace, turned, even, odd, -even, -odd])


def head_coefficients(network: AttentionOnly) -> NDArray[np.float64]:
    """float64[H, 11]: of each head of the network."""
    weights = {name: weight.detach().double() for name, weight in network.state_dict().items()}
    heads = zip(weights["query.weight"].split(HEAD_WIDTH), weights["key.weight"].split(HEAD_WIDTH), strict=True)
    found = [coefficients(query, key, weights["position.weight"]) for query, key in heads]
    return torch.stack(found).numpy()


def evaluate(of: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The polynomials with coefficients float64[..., 11] at angles [...] in radians: float64[..., *angles.shape]."""
    return np.tensordot(of, np.stack([harmonic(first, second) for harmonic in HARMONICS]), axes=1)


@dataclass(frozen=True)
class OneDimensional:
    """A head of dimension 1, whose pattern is a product.

        raw = scale (cos(t2 - phase) + offset) (cos(t1 - key_phase) - cos(t2 - key_phase) + key_offset)

    Its five parameters are free. The first factor is the query, the second the difference of the keys. Its level
    lines are therefore those of the factors: t2 held at two values, and a curve.
    """

    scale: float
    phase: float
    offset: float
    key_phase: float
    key_offset: float

    @classmethod
    def of(cls, query: Tensor, key: Tensor, positions: Tensor) -> OneDimensional:
        """Of `query` and `key` [1, d] and `positions` [d, 2]; neither may be orthogonal to the circle's plane."""
        circle = WIDTH**0.5 * AXES
        asks, keys = circle @ query[0], circle @ key[0]
        length, key_length = float(asks.norm()), float(keys.norm())
        return cls(
            length * key_length,
            float(torch.atan2(asks[1], asks[0])),
            float(query[0] @ positions[:, 1]) / length,
            float(torch.atan2(keys[1], keys[0])),
            float(key[0] @ (positions[:, 0] - positions[:, 1])) / key_length,
        )

    def __call__(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        keys = np.cos(first - self.key_phase) - np.cos(second - self.key_phase) + self.key_offset
        return np.asarray(self.scale * (np.cos(second - self.phase) + self.offset) * keys)

    def terms(self) -> list[tuple[float, int, int, float]]:
        """The product multiplied out: amplitude a, whole numbers m and n, and phase p of each a cos(m t1 + n t2 - p).

        The last is the constant. Two have the same m and n, since no two terms are taken together here.
        """
        scale, half, both = self.scale, self.scale / 2, self.phase + self.key_phase
        return [
            (half, 1, 1, both),
            (half, 1, -1, self.key_phase - self.phase),
            (-half, 0, 2, both),
            (scale * self.offset, 1, 0, self.key_phase),
            (-scale * self.offset, 0, 1, self.key_phase),
            (scale * self.key_offset, 0, 1, self.phase),
            (scale * self.offset * self.key_offset - half * float(np.cos(self.phase - self.key_phase)), 0, 0, 0.0),
        ]
