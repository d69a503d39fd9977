"""Matrices along directions, in float64: by the compiled loops where they are there, else by torch.

Shapes: r rows, c columns, k directions.

These run on the training's own thread at every step, so they must be cheap; and exact, for their agreement is a proof.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform import kernels

Doubles: TypeAlias = NDArray[np.float64]


def project(matrix: Tensor, directions: NDArray[np.float32]) -> Doubles:
    """float64[r, k]: a matrix [r, c] times each of float32[k, c]."""
    if _compiled(matrix):
        return kernels.project(matrix.contiguous().numpy(), directions)
    along = torch.from_numpy(directions).to(matrix.device)
    return _numpy(matrix.double() @ along.double().T)


def fold(matrix: Tensor, weights: Doubles) -> tuple[Doubles, Doubles, float]:
    """A matrix [r, c], transposed, times weights float64[r, k]: float64[c, k]; its column sums float64[c]; its norm."""
    if _compiled(matrix):
        weighted, summed, squares = kernels.fold(matrix.contiguous().numpy(), weights)
        return weighted, summed, float(np.sqrt(squares))
    wide = matrix.double()
    weighted = _numpy(wide.T @ torch.from_numpy(weights).to(wide.device))
    return weighted, _numpy(wide.sum(0)), float(torch.linalg.vector_norm(wide))


def _compiled(matrix: Tensor) -> bool:
    """Whether the compiled loops can read it: float32, in the processor's own memory."""
    return kernels.library() is not None and matrix.device.type == "cpu" and matrix.dtype == torch.float32


def _numpy(tensor: Tensor) -> Doubles:
    return tensor.cpu().numpy()
