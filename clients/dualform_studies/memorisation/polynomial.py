"""A head's raw attention pattern as a trigonometric polynomial of two angles, and its level lines.

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

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dualform_studies.figures import PALETTE, new_figure, save_animation
from dualform_studies.memorisation.torus import AXES, grid_of, name_angles
from dualform_studies.memorisation.transformer import HEAD_WIDTH, LENGTH, WIDTH, AttentionOnly


@dataclass(frozen=True)
class Harmonic:
    """cos or sin of `first * t1 + second * t2`."""

    first: int
    second: int
    sine: bool = False

    def __call__(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        angle = self.first * first + self.second * second
        return np.sin(angle) if self.sine else np.cos(angle)


HARMONICS = (
    Harmonic(0, 0),
    Harmonic(1, 0),
    Harmonic(1, 0, sine=True),
    Harmonic(0, 1),
    Harmonic(0, 1, sine=True),
    Harmonic(1, -1),
    Harmonic(1, -1, sine=True),
    Harmonic(1, 1),
    Harmonic(1, 1, sine=True),
    Harmonic(0, 2),
    Harmonic(0, 2, sine=True),
)
"""The coefficients of the last two are those of t₁ + t₂ with their sign changed."""


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


@dataclass(frozen=True, eq=False)
class Circle:
    """A circle in a space of n dimensions."""

    centre: NDArray[np.float64]
    """float64[n]."""
    targets: NDArray[np.float64]
    """float64[2, n]: from the centre to the points at 0 and at 90 degrees."""

    @classmethod
    def through(cls, points: NDArray[np.float64]) -> Circle:
        """The circle through three points, float64[3, n], not on one line; it begins at the first."""
        start, *others = points
        sides = np.stack([other - start for other in others])
        # The centre lies in the plane of the points, as far from the first as from each of the others.
        shares = np.linalg.solve(2 * sides @ sides.T, (sides**2).sum(axis=1))
        centre = start + shares @ sides
        begins = start - centre
        across = sides[0] - begins * (sides[0] @ begins) / (begins @ begins)
        return cls(centre, np.stack([begins, across * np.linalg.norm(begins) / np.linalg.norm(across)]))

    def at(self, angle: float) -> NDArray[np.float64]:
        """float64[n]: the point at an angle in radians."""
        return np.asarray(self.centre + np.array([np.cos(angle), np.sin(angle)]) @ self.targets)


def through_heads(coefficients: NDArray[np.float64]) -> Circle:
    """The circle through the patterns of three heads, float64[3, 11], each brought to length 1.

    A length moves no level line. Ties between coefficients are linear, so they hold all the way round.
    """
    return Circle.through(coefficients / np.linalg.norm(coefficients, axis=1, keepdims=True))


def one_dimensional(angle: float) -> OneDimensional:
    """A head of dimension 1 on its way round: its query's phase turns once, and both offsets swing."""
    swing = float(np.sin(angle))
    return OneDimensional(1.0, angle, 0.7 * float(np.cos(angle)), 0.0, 0.6 + 0.9 * swing)


_FRAMES = 24
_MILLISECONDS = 180
_POINTS = 181
_PIXELS_AN_INCH = 100
_SIDES = {"second": PALETTE[0], "first": PALETTE[6]}
"""By the token that gets more attention: dark and light, so that they stay apart without their colours."""


def draw_level_lines(path: Path, coefficients: NDArray[np.float64], frames: int = _FRAMES) -> Path:
    """Left a head of dimension 3 on the circle through the network's heads, float64[3, 11]; right one of dimension 1.

    The PNG moves; the SVG is the first frame.
    """
    circle = through_heads(coefficients)
    along = np.linspace(0, 2 * np.pi, _POINTS)
    first, second = np.meshgrid(along, along)
    taken: list[Image.Image] = []
    with new_figure(path, 4.0) as figure:
        left, right = figure.subplots(1, 2)
        left.set_title("a head of dimension 3: all nine parameters")
        right.set_title("a head of dimension 1: three of five")
        for panel in (left, right):
            name_angles(panel, up=panel is left)
        right.set_yticklabels([])
        handles = [
            Patch(facecolor=ink, edgecolor="black", label=f"more attention to the {token} token")
            for token, ink in _SIDES.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        # The last is the first again: what the SVG will show.
        for frame in [*range(frames), 0]:
            turn = 2 * np.pi * frame / frames
            drawn = [
                *_draw(left, along, evaluate(circle.at(turn), first, second)),
                *_draw(right, along, one_dimensional(turn)(first, second)),
            ]
            if len(taken) < frames:
                taken.append(_pixels(figure))
                # The first frame has laid out the figure for all of them.
                figure.set_layout_engine("none")
                for artist in drawn:
                    artist.remove()
    return save_animation(path, taken, _MILLISECONDS)


def _draw(panel: Axes, along: NDArray[np.float64], raw: NDArray[np.float64]) -> list[Any]:
    degrees = np.degrees(along)
    most = float(np.abs(raw).max())
    # Colours between the two would make frames several times as large.
    style: Any = {"antialiased": False}
    filled = panel.contourf(degrees, degrees, raw, [-2 * most, 0, 2 * most], colors=list(_SIDES.values()), **style)
    return [filled, panel.contour(degrees, degrees, raw, [0], colors="black", linewidths=1.4, **style)]


def _pixels(figure: Figure) -> Image.Image:
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_PIXELS_AN_INCH)
    return Image.open(drawn).convert("RGB")


_SIDE = 16
"""Points along each side of the grid whose Fourier transform is taken: more than twice the highest frequency."""
_NOTHING = 1e-9
"""Beside the greatest of them, a number this small is a rounding error."""

Head: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Query and key [e, d] and the positions [d, S] in columns, of float64."""


def random_heads(dimension: int, draws: int, seed: int = 0) -> Iterator[Head]:
    """So many heads of dimension e with positions of their own, all from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(draws):
        sizes = ((dimension, WIDTH), (dimension, WIDTH), (WIDTH, LENGTH))
        query, key, positions = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
        yield query, key, positions


def raw_pattern(head: Head, points: Tensor) -> Tensor:
    """[B]: the difference of the last token's two attention logits, for words at `points` [B, S, d] of the circle."""
    query, key, positions = head
    stream = points + positions.T
    asked, keys = stream[:, 1] @ query.T, stream @ key.T
    raw: Tensor = (asked * (keys[:, 0] - keys[:, 1])).sum(dim=-1) / len(query) ** 0.5
    return raw


def count_harmonics(head: Head) -> int:
    """Sines and cosines that the head's pattern is made of, and the constant as one, by its Fourier transform."""
    raw = raw_pattern(head, grid_of(_SIDE)).view(_SIDE, _SIDE).numpy()
    # On a grid that begins at 0, cosines are real parts and sines imaginary ones; ours begins half a cell later.
    frequencies = np.fft.fftfreq(_SIDE, 1 / _SIDE)
    shift = np.exp(-1j * np.pi / _SIDE * (frequencies[:, None] + frequencies))
    spectrum = np.fft.fft2(raw) * shift
    parts = np.abs(np.stack([spectrum.real, spectrum.imag]))
    # The transform of real numbers holds every frequency twice, but for the constant.
    return 1 + int((parts > _NOTHING * parts.max()).sum() - 1) // 2


def count_parameters(head: Head) -> int:
    """Directions in which the pattern's coefficients move with the head's numbers: the rank of their Jacobian."""
    blocks = torch.func.jacrev(coefficients, argnums=(0, 1, 2))(*head)
    jacobian: NDArray[np.float64] = torch.cat([block.flatten(1) for block in blocks], dim=1).numpy()
    return int(np.linalg.matrix_rank(jacobian, tol=_NOTHING * np.abs(jacobian).max()))
