"""Matrices along fixed random directions, in float64: the sketch that every comparison is made with.

What the watch sees of the parameters: numbers of which the update rule makes the same as of the whole.

Shapes: P numbers over all parameters.

Matrices along directions, in float64: by the compiled loops where they are there, else by torch.

Shapes: r rows, c columns.

These run on the training's own thread at every step, so they must be cheap; and exact, for their agreement is a proof.
That is why each column has a part in one of the directions only: then a matrix takes one product a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels
from dualform.kernels import DIRECTIONS
from dualform.kernels.arguments import Cuts
from dualform.rules.update_rule import Doubles

__all__ = ["DIRECTIONS", "Directions", "Doubles", "Parts", "full_precision", "readable", "surely_finite"]

_AT_ONCE = 1 << 22
"""Numbers of a matrix that torch widens at once: the weights of a large layer would take gigabytes."""


class Directions:
    """Fixed random R [c, DIRECTIONS], of which column c of a matrix has a part in direction c % DIRECTIONS alone.

    The mean of ||M R||^2 is DIRECTIONS ||M||^2. A part is never near 0, so no single column is overlooked; several are
    seen by the random signs of their parts.
    """

    def __init__(self, parts: Doubles) -> None:
        """`parts` float64[c]."""
        self.parts = np.ascontiguousarray(parts, dtype=np.float64)
        """float64[c]: that of each column."""

    @classmethod
    def drawn(cls, columns: int, generator: np.random.Generator) -> Directions:
        squares = generator.uniform(0.5, 1.5, columns)
        return cls(np.where(generator.random(columns) < 0.5, -1.0, 1.0) * np.sqrt(DIRECTIONS * squares))

    @property
    def matrix(self) -> Doubles:
        """R itself, float64[c, DIRECTIONS]."""
        whole = np.zeros((len(self.parts), DIRECTIONS))
        columns = np.arange(len(whole))
        whole[columns, columns % DIRECTIONS] = self.parts
        return whole

    def project(self, matrix: Tensor) -> Doubles:
        """A matrix [r, c] times R: float64[r, DIRECTIONS]."""
        self._check(matrix)
        if not readable(matrix):
            return self._project_by_torch(matrix)
        return kernels.project(matrix if matrix.stride(1) == 1 else matrix.contiguous(), self.parts)

    def add_outer(self, keys: Tensor, errors: Tensor, to: Doubles) -> OuterSum:
        """Add the sum over slots of error (key R) to contiguous float64[d_out * DIRECTIONS].

        Keys [n, c] and errors [n, d_out].
        """
        self._check(keys)
        if not (readable(keys) and readable(errors)):
            return self._add_outer_by_torch(keys, errors, to)
        keys = keys if keys.stride(1) == 1 else keys.contiguous()
        found = kernels.outer(keys, self.parts, errors.contiguous(), to)
        return OuterSum(found[:-2], *found[-2:].tolist())

    def _check(self, matrix: Tensor) -> None:
        if matrix.shape[1] != len(self.parts):
            raise TypeError(f"directions of {len(self.parts)} columns cannot take a matrix of {matrix.shape[1]}.")

    def _project_by_torch(self, matrix: Tensor) -> Doubles:
        along = torch.from_numpy(self.matrix).to(matrix.device)
        rows = max(1, _AT_ONCE // max(1, matrix.shape[1]))
        with full_precision():
            parts = (matrix[start : start + rows] for start in range(0, max(1, len(matrix)), rows))
            return _numpy(torch.cat([part.double() @ along for part in parts]))

    def _add_outer_by_torch(self, keys: Tensor, errors: Tensor, to: Doubles) -> OuterSum:
        with full_precision():
            wide, along = errors.double(), self._project_by_torch(keys)
            to += _numpy(wide.T @ torch.from_numpy(along).to(wide.device)).reshape(-1)
            return OuterSum(_numpy(wide.sum(0)), float(wide.square().sum()), float(np.square(along).sum()))


@dataclass(frozen=True, eq=False)
class OuterSum:
    """What a sum of outer products was made of."""

    summed: Doubles
    """float64[d_out]: the sum of the errors."""
    errors_square: float
    """The sum of the errors' squares."""
    keys_square: float
    """That of the projected keys."""

    @staticmethod
    def added(parts: Sequence[OuterSum]) -> OuterSum:
        """Of all the slots of several sums."""
        errors_square, keys_square = sum(p.errors_square for p in parts), sum(p.keys_square for p in parts)
        return OuterSum(np.add.reduce([part.summed for part in parts]), errors_square, keys_square)


class Parts:
    """How vectors are cut into parts, one for each parameter; and what is summed by part."""

    def __init__(self, lengths: Sequence[int], turned: Sequence[bool]) -> None:
        """`turned`: which parts are [rows, DIRECTIONS], compared by their products with one more direction."""
        self._cuts = Cuts(lengths, turned)
        self.starts = self._cuts.starts
        """int64[parts + 1]: where each begins, and the end."""

    def compare(self, applied: Doubles, recorded: Doubles, along: Doubles) -> list[list[float]]:
        """Of each part of vectors: the factor that makes `recorded` most like `applied`, 1 where there is none; the
        squares of `applied` and of what is left. `along` float64[DIRECTIONS].
        """
        if kernels.library() is None:
            return [self._compared(part, applied, recorded, along) for part in range(len(self._cuts))]
        found: list[list[float]] = kernels.compare(applied, recorded, self._cuts, along).tolist()
        return found

    @np.errstate(all="ignore")
    def _compared(self, part: int, applied: Doubles, recorded: Doubles, along: Doubles) -> list[float]:
        x, y = (vector[self.starts[part] : self.starts[part + 1]] for vector in (applied, recorded))
        if self._cuts.turned[part]:
            x, y = x.reshape(-1, DIRECTIONS) @ along, y.reshape(-1, DIRECTIONS) @ along
        square = y @ y
        factor = x @ y / square if square > 0 else 1.0
        left = x - factor * y
        return [float(factor), float(x @ x), float(left @ left)]

    def distances(self, of: Doubles, states: Doubles, start: Doubles) -> Doubles:
        """float64[5, parts], of contiguous vectors: of each part its squared distances from states[1], states[0] and
        `start`; its own square, and that of states[1]. Then states[1] becomes `of`.
        """
        rebuilt, expected = states
        if kernels.library() is not None:
            return kernels.distances(of, expected, rebuilt, start, self._cuts).T
        with np.errstate(all="ignore"):
            vectors = [of - expected, of - rebuilt, of - start, of, expected]
            found = np.stack([np.add.reduceat(vector * vector, self.starts[:-1]) for vector in vectors])
        expected[:] = of
        return found


def readable(matrix: Tensor) -> bool:
    """Whether the compiled loops can read it: float32, in the processor's own memory."""
    return matrix.is_cpu and matrix.dtype == torch.float32 and kernels.library() is not None


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


def _numpy(tensor: Tensor) -> Doubles:
    return tensor.cpu().numpy()


class Image(Protocol):
    """A linear map of every parameter, the same for weights, gradients and buffers."""

    @property
    def spans(self) -> Sequence[slice]:
        """Where each parameter's numbers stand among the P."""

    @property
    def norm_factors(self) -> Sequence[float]:
        """By parameter, what makes norms of its numbers estimates of Frobenius norms."""

    def weights(self, chosen: NDArray[np.bool_] | None = None) -> Doubles:
        """float64[P]: the live parameters; 0.0 where not `chosen`, NaN for those that are lost."""

    def project_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> Doubles:
        """float64[P]: of arrays under the parameters' names; 0.0 for those that are missing."""
