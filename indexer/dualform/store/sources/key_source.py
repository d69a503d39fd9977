"""Where some consecutive keys of a layer come from, whatever form they are stored in. Shapes: n rows asked for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.store.segment import Segment


class KeySource(Protocol):
    """Rows of float32[rows, width]. They never change, so what is derived from them is kept under `identity`."""

    @property
    def identity(self) -> Hashable: ...

    @property
    def first_row(self) -> int:
        """The number of the first row among the layer's."""
        ...

    @property
    def rows(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def made(self) -> bool:
        """Whether rows are made anew each time they are read, so that the cache does not hold them."""
        ...

    @property
    def segment(self) -> Segment | None:
        """The file that the rows come from; None for rows that memory holds."""
        ...

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width], C-contiguous, not to be written to: rows counted from the first one here.

        Raises Damaged, naming the file, where it is not what was committed; so do the other methods.
        """
        ...

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """A matrix float32[…, width] that holds some rows, counted from the first one here, and int64[n]: where.

        Nothing is said of other rows of that matrix: they need not have been read from the file.
        """
        ...

    def shifted(self, rows: int) -> KeySource:
        """The same rows, with so many more of the layer before them."""
        ...

    def passing(self, *, first: bool = False) -> KeySource:
        """The same rows, read to be gone through once: what of their file no cache holds whole is not kept there.

        With `first`, that is so the first time that this is asked, and from then on they are kept. Under a budget of
        memory they always are, for it counts what is kept.
        """
        ...

    def verify(self) -> None:
        """Hold all of the file against its checksums, and keep nothing of it."""
        ...


class StoredRows(KeySource, Protocol):
    """Rows as they are stored: any type, [rows, *shape]. Float32 rows are a key source as they are."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """As `KeySource.read`, [stop - start, *shape]."""
        ...

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """As `KeySource.holding`, of rows [*shape]."""
        ...

    def passing(self, *, first: bool = False) -> StoredRows: ...
