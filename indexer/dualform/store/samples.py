"""What is said of datapoints, once each: a datapoint is a row of the batch of a step. Shapes: D datapoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.store.entries import Integers
from dualform.store.shard_tables import Tables

TABLE = "samples"
_FEW = 256
"""Datapoints that are looked up one by one."""


class Samples:
    """The table `samples`; a column is read when it is first used."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.types = dict(tables.types[TABLE])
        self.count = tables.rows(TABLE)
        """D."""
        self._asked = False

    def column(self, name: str) -> pa.ChunkedArray:
        """[D]. Raises Damaged, naming the file, where it is not what was committed."""
        return self._tables.columns(TABLE, [name])[0]

    def at(self, names: Sequence[str], datapoints: pa.Array) -> dict[str, pa.ChunkedArray | pa.Array]:
        """Entries of some columns at some datapoints, in any order; NULL where the datapoint is. Raises as `column`.

        The first time, little more is read than those: a process that asks once need not read whole columns.
        """
        if self._asked or not names or len(datapoints) > _FEW:
            return {name: self.column(name).take(datapoints) for name in names}
        self._asked = True
        distinct = np.unique(np.asarray(datapoints.drop_null(), dtype=np.int64))
        places = pc.index_in(datapoints, pa.array(distinct))
        with self._tables.reading():
            return {name: self._tables.some(TABLE, name, distinct).take(places) for name in names}

    def unknown(self) -> tuple[Integers, Integers]:
        """Steps and numbers of the datapoints, ascending, that stand for slots whose row is not known."""
        return self._unknown

    @cached_property
    def _unknown(self) -> tuple[Integers, Integers]:
        datapoints = np.flatnonzero(np.asarray(self.column("row").is_null()))
        return np.asarray(self.column("step"), dtype=np.int64)[datapoints], datapoints


def as_numpy(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """An Arrow column as an array, masked where numbers are NULL; texts as objects, NULL as None."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
    if not column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    mask = np.asarray(column.is_null())
    zero = False if pa.types.is_boolean(column.type) else 0
    return np.ma.MaskedArray(column.fill_null(zero).to_numpy(zero_copy_only=False), mask=mask)
