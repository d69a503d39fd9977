"""Parameters and buffers that no slot explains, step by step: norms, running statistics, biases of no layer.

Shapes: R rows that are kept, b bytes of a row.

A row holds every such tensor as it stood once so many steps were taken, in the training's own bits: tensor after
tensor in the order of the manifest, each in C order, little-endian. The rows lie in matrix files of their own beside
the layers' (uint8[rows, b]); the table `other_rows` says which moment each row is of. They are the first shard's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.entries import Integers
from dualform.store.matrix_file import MatrixForm, npy
from dualform.store.rows import Rows

FOLDER = KIND = "others"
OWNER = ("", KIND)
"""Where a snapshot's sources have the rows: they are of no layer."""
STORED: Mapping[str, str] = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "|i1", "uint8": "|u1", "bool": "|b1",
}  # fmt: skip
"""Types by torch's names, as NumPy reads their bits; bfloat16, which it lacks, as the upper half of a float32."""


@dataclass(frozen=True)
class OtherTensor:
    """One of them."""

    name: str
    """In the model's state dict."""
    dtype: str
    """One of STORED."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(STORED[self.dtype]).itemsize

    def value(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        """Its numbers, of its bytes; bfloat16 as float32, as weights are stored."""
        found = np.array(content.view(STORED[self.dtype]))
        if self.dtype == "bfloat16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        return found.reshape(self.shape)


@dataclass(frozen=True)
class Others:
    """How a row is laid out, and how often one is kept."""

    tensors: tuple[OtherTensor, ...]
    every: int = 1
    """A row is kept once so many steps were taken, or a multiple of it."""

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.tensors)

    @cached_property
    def form(self) -> MatrixForm:
        return npy("|u1", sum(tensor.nbytes for tensor in self.tensors))

    def values(self, row: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """By name, of uint8[b]."""
        return {tensor.name: tensor.value(part) for tensor, part in self._parts(row)}

    def _parts(self, row: NDArray[np.uint8]) -> Iterator[tuple[OtherTensor, NDArray[np.uint8]]]:
        start = 0
        for tensor in self.tensors:
            yield tensor, row[start : start + tensor.nbytes].copy()  # aligned, and nobody else's
            start += tensor.nbytes

    def to_json(self) -> dict[str, Any]:
        return {"every": self.every, "tensors": [vars(tensor) for tensor in self.tensors]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Others:
        tensors = [OtherTensor(own["name"], own["dtype"], tuple(own["shape"])) for own in fields["tensors"]]
        return cls(tuple(tensors), fields["every"])


@dataclass(frozen=True, eq=False)
class OtherRow:
    """All of them at one moment, as a batch brings them."""

    at_step: int
    """How many recorded steps were taken by then."""
    content: NDArray[np.uint8]
    """uint8[b]."""


class OtherRows:
    """The rows that a snapshot has."""

    def __init__(self, others: Others, at_steps: Integers, rows: Rows, steps: int) -> None:
        """`at_steps` int64[R]: of each row; of several of one moment the last counts. `steps`: how many there are."""
        self._others, self._rows = others, rows
        self._row_of = {at_step: row for row, at_step in enumerate(at_steps.tolist()) if at_step <= steps}

    def at(self, at_step: int) -> dict[str, NDArray[Any]] | None:
        """By name, once so many steps were taken; None where no row was kept of that moment."""
        row = self._row_of.get(at_step)
        return None if row is None else self._others.values(self._rows.block(row, row + 1)[0].view(np.uint8))

    @property
    def moments(self) -> list[int]:
        """Of all rows, ascending."""
        return sorted(self._row_of)

    @property
    def names(self) -> frozenset[str]:
        return self._others.names
