"""Harmonics and free parameters of attention patterns, counted on heads drawn at random rather than in the formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform_studies.memorisation.pattern.polynomial import coefficients
from dualform_studies.memorisation.torus.maps import grid_of
from dualform_studies.memorisation.transformer.network import LENGTH, WIDTH

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
