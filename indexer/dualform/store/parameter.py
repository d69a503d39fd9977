"""Parameter blocks: which rows and columns of which parameter of the model a layer stands for.

A parameter is seen as a matrix [rows, columns], its trailing axes flattened into one, or as a vector [rows]; of a stack
of matrices [E, R, C], as of experts, the leading axes may be flattened instead, [E R, C]. A block is a range of its
rows and a range of its columns; the layer may use it transposed. Shapes: d_in and d_out of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Range: TypeAlias = tuple[int, int]
"""From the first one to the last one, which is excluded."""
Matrix = TypeVar("Matrix")
"""A NumPy array or a torch tensor."""


@dataclass(frozen=True)
class Parameter:
    """One parameter block: the columns of a layer's [W | b], [d_out, d_in + 1], that a parameter of the model brings.

    Blocks of one layer that bring the same columns are added up, as the two biases of an LSTM are; layers that hold
    the same block of one parameter are tied, and their terms add up.
    """

    name: str
    """In the model's state dict."""
    start: int
    stop: int
    """One past the last column; the bias is column d_in."""
    rows: Range | None = None
    """Rows of the named parameter that the block stands for, the last one excluded; None for all."""
    transposed: bool = False
    """Whether the block is stored as [columns of W, d_out]."""
    columns: Range | None = None
    """Columns of the named parameter, its trailing axes flattened, as `rows`."""
    leading: int = 1
    """How many axes of the named parameter are flattened into its rows."""

    @property
    def block_name(self) -> str:
        """What logs and coefficients call it: the parameter's name, and its ranges where it is not all of it."""
        if self.columns is not None:
            return f"{self.name}[{_said(self.rows)}, {_said(self.columns)}]"
        return self.name if self.rows is None else f"{self.name}[{_said(self.rows)}]"

    def block_of(self, parameter: Matrix) -> Matrix:
        """[d_out, columns of W], or [d_out] of a bias: the block of a parameter, as the layer uses it.

        A view, but of a tensor whose trailing axes do not lie in their order.
        """
        stored: Any = self.stored_block_of(parameter)
        found: Matrix = stored.T if self.transposed else stored
        return found

    def stored_block_of(self, parameter: Matrix) -> Matrix:
        """As `block_of`, the way round that it is stored: all layers that hold the block see the same."""
        found: Any = parameter
        if found.ndim > 2:
            found = found.reshape(as_matrix(found.shape, self.leading))
        if self.rows is not None:
            found = found[self.rows[0] : self.rows[1]]
        if self.columns is not None:
            found = found[:, self.columns[0] : self.columns[1]]
        block: Matrix = found
        return block

    def shape_within(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Of `block_of` a parameter of that shape; None where its ranges leave it."""
        height, width = as_matrix(shape, self.leading)
        fits = (self.rows or (0, height))[1] <= height and (self.columns is None or self.columns[1] <= (width or 0))
        return tuple(self.block_of(np.broadcast_to(np.zeros(()), tuple(shape))).shape) if fits else None

    def put(self, into: NDArray[Any], block: Any) -> None:
        """Write a block, as the layer uses it, to its place in a parameter, which is a contiguous array."""
        assert into.flags.c_contiguous, "its block would be a copy"
        self.block_of(into)[...] = block

    def within(self, shape: Sequence[int]) -> Parameter:
        """The same block of a parameter of that shape, without ranges that are all of it."""
        height, width = as_matrix(shape, self.leading)
        rows = None if self.rows == (0, height) else self.rows
        return replace(self, rows=rows, columns=None if self.columns == (0, width) else self.columns)

    def overlaps(self, other: Parameter) -> bool:
        """Whether two blocks of one parameter have a number in common, or may have as far as their ranges tell."""
        meet = _meet(self.rows, other.rows) and _meet(self.columns, other.columns)
        return meet or self.leading != other.leading

    def to_json(self) -> dict[str, Any]:
        """What the manifest says; of leading axes only where there are several, as versions before there were do."""
        said = {own.name: getattr(self, own.name) for own in fields(self)}
        return said if self.leading > 1 else {name: own for name, own in said.items() if name != "leading"}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Parameter:
        ranges = {name: fields.get(name) for name in ("rows", "columns")}
        return cls(**{**fields, **{name: None if own is None else (own[0], own[1]) for name, own in ranges.items()}})


def as_matrix(shape: Sequence[int], leading: int = 1) -> tuple[int, int | None]:
    """Rows and columns of a parameter: so many of its axes are flattened into rows, the others into columns; no columns
    of a vector or a number.
    """
    if len(shape) < 2:
        return prod(shape), None
    return prod(shape[:leading]), prod(shape[leading:])


def of_shape(kept: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """What an optimizer keeps of a parameter: of the parameter's shape, or one number for all of it, float64[]."""
    if kept.shape == tuple(shape):
        return kept
    return kept.reshape(()) if kept.size == 1 else np.broadcast_to(kept, tuple(shape))


def whole(blocks: Sequence[Parameter], shape: Sequence[int]) -> bool:
    """Whether blocks are together all of their parameter, which has that shape."""
    if any(block.rows is None and block.columns is None for block in blocks):
        return True
    covered = np.zeros(tuple(shape), dtype=np.bool_)
    for block in blocks:
        block.put(covered, True)
    return bool(covered.all())


def _said(numbers: Range | None) -> str:
    return ":" if numbers is None else f"{numbers[0]}:{numbers[1]}"


def _meet(one: Range | None, other: Range | None) -> bool:
    return one is None or other is None or (one[0] < other[1] and other[0] < one[1])
