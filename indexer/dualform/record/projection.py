"""Matrices along directions, in float64: by the compiled loops where they are there, else by torch.

Shapes: r rows, c columns, k directions: 1 or DIRECTIONS.

These run on the training's own thread at every step, so they must be cheap; and exact, for their agreement is a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import isfinite
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels
from dualform.kernels import DIRECTIONS

__all__ = ["DIRECTIONS", "Doubles", "fold", "full_precision", "project", "surely_finite"]

Doubles: TypeAlias = NDArray[np.float64]

_AT_ONCE = 1 << 22
"""Numbers of a matrix that torch widens at once: the weights of a large layer would take gigabytes."""


def project(matrix: Tensor, directions: Doubles) -> Doubles:
    """float64[r, k]: a matrix [r, c] times each of contiguous float64[k, c]."""
    if _compiled(matrix):
        return kernels.project(matrix.contiguous().numpy(), directions)
    along = torch.from_numpy(directions).to(matrix.device).T
    rows = max(1, _AT_ONCE // max(1, matrix.shape[1]))
    parts = (matrix[start : start + rows] for start in range(0, max(1, len(matrix)), rows))
    return _numpy(torch.cat([part.double() @ along for part in parts]))


def fold(matrix: Tensor, weights: Doubles) -> tuple[Doubles, Doubles, float]:
    """A matrix [r, c], transposed, times weights float64[r, DIRECTIONS]: float64[c, DIRECTIONS]; its column sums
    float64[c]; its norm.
    """
    if _compiled(matrix):
        weighted, summed, squares = kernels.fold(matrix.contiguous().numpy(), weights)
        return weighted, summed, float(np.sqrt(squares))
    wide = matrix.double()
    weighted = _numpy(wide.T @ torch.from_numpy(weights).to(wide.device))
    return weighted, _numpy(wide.sum(0)), float(torch.linalg.vector_norm(wide))


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
    return kernels.library() is not None and matrix.device.type == "cpu" and matrix.dtype == torch.float32


def _numpy(tensor: Tensor) -> Doubles:
    return tensor.cpu().numpy()
