"""Matrices along directions, in float64: by the compiled loops where they are there, else by torch.

Shapes: r rows, c columns.

These run on the training's own thread at every step, so they must be cheap; and exact, for their agreement is a proof.
That is why each column has a part in one of the directions only: then a matrix takes one product a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels
from dualform.kernels import DIRECTIONS

__all__ = ["DIRECTIONS", "Directions", "Doubles", "Folded", "Parts", "fold", "full_precision", "surely_finite"]

Doubles: TypeAlias = NDArray[np.float64]

_AT_ONCE = 1 << 22
"""Numbers of a matrix that torch widens at once: the weights of a large layer would take gigabytes."""


class Directions:
    """Fixed random R [c, DIRECTIONS], of which column c of a matrix has a part in direction c % DIRECTIONS alone.

    The mean of ||M R||^2 is DIRECTIONS ||M||^2. A part is never near 0, so no single column is overlooked; several are
    seen by the random signs of their parts.
    """

    def __init__(self, parts: Doubles) -> None:
        """`parts` float64[c]."""
        self._parts = torch.from_numpy(np.ascontiguousarray(parts, dtype=np.float64))
        self._address = self._parts.data_ptr()

    @classmethod
    def drawn(cls, columns: int, generator: np.random.Generator) -> Directions:
        squares = generator.uniform(0.5, 1.5, columns)
        return cls(np.where(generator.random(columns) < 0.5, -1.0, 1.0) * np.sqrt(DIRECTIONS * squares))

    @property
    def matrix(self) -> Doubles:
        """R itself, float64[c, DIRECTIONS]."""
        whole = np.zeros((len(self._parts), DIRECTIONS))
        columns = np.arange(len(whole))
        whole[columns, columns % DIRECTIONS] = self._parts.numpy()
        return whole

    def project(self, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """A matrix [r, c] times R: float64[r, DIRECTIONS] in the processor's memory, contiguous.

        `out`: float64[r * DIRECTIONS] that it is to be written to.
        """
        rows, columns = matrix.shape
        if columns != len(self._parts):
            raise TypeError(f"directions of {len(self._parts)} columns cannot take a matrix of {columns}.")
        if out is None:
            out = torch.empty(rows * DIRECTIONS, dtype=torch.float64, device="cpu")
        found = out.view(rows, DIRECTIONS)
        if _compiled(matrix):
            own = matrix if matrix.stride(1) == 1 else matrix.contiguous()
            kernels.project(own.data_ptr(), rows, columns, own.stride(0), self._address, found.data_ptr())
        else:
            self._project_by_torch(matrix, found)
        return found

    def _project_by_torch(self, matrix: Tensor, out: Tensor) -> None:
        along = torch.from_numpy(self.matrix).to(matrix.device)
        rows = max(1, _AT_ONCE // max(1, matrix.shape[1]))
        with full_precision():
            for start in range(0, len(matrix), rows):
                out[start : start + rows] = matrix[start : start + rows].double() @ along


@dataclass(frozen=True, eq=False)
class Folded:
    """A matrix [r, c] and weights [r, DIRECTIONS], summed over the rows."""

    weighted: Doubles
    """float64[c * DIRECTIONS]: the matrix, transposed, times the weights."""
    summed: Doubles
    """float64[c]: the matrix's column sums."""
    square: float
    """Of the matrix: the sum of its squares."""
    weights_square: float


def fold(matrix: Tensor, weights: Tensor) -> Folded:
    """`weights` float64[r, DIRECTIONS], contiguous, on the processor."""
    if not _compiled(matrix):
        return _fold_by_torch(matrix, weights)
    own = matrix.contiguous()
    (rows, columns), size = own.shape, weights.element_size()
    memory = torch.zeros(columns * (2 * DIRECTIONS + 3) + 2, dtype=torch.float64, device="cpu")
    scratch = memory.data_ptr()
    out = scratch + columns * (DIRECTIONS + 2) * size
    kernels.fold(own.data_ptr(), rows, columns, weights.data_ptr(), scratch, out)
    found = memory.numpy()[columns * (DIRECTIONS + 2) :]
    stop = columns * DIRECTIONS
    return Folded(found[:stop], found[stop:-2], float(found[-2]), float(found[-1]))


def _fold_by_torch(matrix: Tensor, weights: Tensor) -> Folded:
    with full_precision():
        wide = matrix.double()
        weighted = (wide.T @ weights.to(wide.device)).cpu().numpy().reshape(-1)
        square, weights_square = (float(part.square().sum()) for part in (wide, weights))
        return Folded(weighted, wide.sum(0).cpu().numpy(), square, weights_square)


class Parts:
    """How vectors are cut into parts, one for each parameter; and what is summed by part."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.starts = np.cumsum([0, *lengths], dtype=np.int64)
        """int64[parts + 1]: where each begins, and the end."""
        self.size = int(self.starts[-1])

    def compare(self, applied: Doubles, recorded: Doubles) -> Doubles:
        """float64[4, parts]: the factor that makes `recorded` most like `applied`, 1 where there is none; the squares of
        `applied`, of `recorded`, and of what is left.
        """
        if kernels.library() is not None:
            return kernels.compare(applied, recorded, self.starts).T
        square, size = self._sum(recorded * recorded), self._sum(applied * applied)
        factors = np.where(square > 0, self._sum(applied * recorded) / square, 1.0)
        off = applied - np.repeat(factors, np.diff(self.starts)) * recorded
        return np.stack([factors, size, square, self._sum(off * off)])

    def distances(self, of: Doubles, expected: Doubles, rebuilt: Doubles, start: Doubles) -> Doubles:
        """float64[5, parts]: squared distances of a vector from three others, its own square, and that of `expected`."""
        if kernels.library() is not None:
            return kernels.distances(of, expected, rebuilt, start, self.starts).T
        vectors = (of - expected, of - rebuilt, of - start, of, expected)
        return np.stack([self._sum(vector * vector) for vector in vectors])

    def _sum(self, products: Doubles) -> Doubles:
        sums: Doubles = np.add.reduceat(products, self.starts[:-1])
        return sums


def surely_finite(tensor: Tensor) -> bool:
    """Whether the sum is finite: NaN and infinity stay in it, and so, wrongly, may an overflow."""
    with torch.no_grad():
        return isfinite(float(tensor.sum()))


@contextmanager
def full_precision() -> Iterator[None]:
    """No autograd, and none of the casts that an autocast around the training would do to these products."""
    with torch.no_grad(), ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _compiled(matrix: Tensor) -> bool:
    """Whether the compiled loops can read it: float32, in the processor's own memory."""
    return matrix.is_cpu and matrix.dtype == torch.float32 and kernels.library() is not None
