"""Where some consecutive rows of a layer come from, whatever form they are stored in.

Float32 rows in a file are dense_rows.py, rows that memory holds held_rows.py; every other form is a file of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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

    def matrix(self) -> NDArray[np.float32]:
        """float32[rows, width], aligned and C-contiguous; not to be written to.

        Raises Damaged, naming the file, where it is not what was committed; so do the other methods.
        """
        ...

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width]: a range of the rows, counted from the first one here. Otherwise as `matrix`."""
        ...

    def holding(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[rows, width] in which some rows, counted from the first one here, can be read.

        Nothing is said of the others: they need not have been read from the file.
        """
        ...
