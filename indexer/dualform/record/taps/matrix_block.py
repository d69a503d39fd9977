"""Which block of a parameter a matrix is, that a product was computed with: the parameter itself, or a view of it.

A parameter [..., R, C] is seen as a matrix whose trailing axes are flattened, and of three or more axes some of the
first ones too, as an expert's matrix in a stack of them is a range of rows of [E R, C].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor

from dualform.store.parameter import Range


@dataclass(frozen=True)
class MatrixBlock:
    """A range of rows and of columns of a parameter."""

    rows: Range
    columns: Range
    transposed: bool
    """Whether the matrix is the block the other way round."""
    leading: int = 1
    """How many of the parameter's axes are flattened into rows."""


def is_of(matrix: Tensor, parameter: Tensor) -> bool:
    """Whether a matrix is a parameter or a view of it, so that its gradient is a part of the parameter's."""
    return matrix is parameter or matrix._base is parameter


def block_of(matrix: Tensor, parameter: Tensor) -> MatrixBlock | None:
    """The block that a matrix [d_out, d_in] is; None where it is none, as steps and copies are none."""
    if not is_of(matrix, parameter) or not parameter.is_contiguous() or not matrix.numel():
        return None
    first = int(matrix.storage_offset() - parameter.storage_offset())
    for transposed, view in ((False, matrix), (True, matrix.mT)):
        for leading in range(parameter.dim() - 1, 0, -1):
            height, width = prod(parameter.shape[:leading]), prod(parameter.shape[leading:])
            row, column = divmod(first, width)
            rows, columns = (row, row + view.shape[0]), (column, column + view.shape[1])
            if _steps(view, width) and rows[1] <= height and columns[1] <= width:
                return MatrixBlock(rows, columns, transposed, leading)
    return None


def _steps(view: Tensor, width: int) -> bool:
    """Whether rows and columns follow one another as those of a matrix of that width do."""
    own = zip(view.shape, view.stride(), (width, 1), strict=True)
    return all(size == 1 or stride == step for size, stride, step in own)
