"""Gathers the extents of one space, call by call, into rows of the table `extents_<space>`.

Shapes: n slots of an extent; E extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.batch import Extent
from dualform.store.tables import EXTENTS, arrow_column, arrow_table, arrow_type, extents_types
from dualform.store.user_columns import check_names, check_same_types, column_types, joined, stored

_TAKEN = dict(EXTENTS) | {"slot": "BIGINT", "datapoint": "BIGINT"}


class ExtentsWriter:
    """Numbers the slots of a space from 0, in the order of steps and calls."""

    def __init__(self, space: str) -> None:
        self.space = space
        self.types: dict[str, str] = {}
        """What is said of single slots, under the type of one slot; known from the first time on."""
        self.count = 0
        """Slots seen so far."""
        self._extents: list[tuple[Any, ...]] = []
        self._lists: dict[str, list[NDArray[Any] | None]] = {}

    def append(self, step: int, first_datapoint: int, extent: Extent) -> int:
        """Add an extent; returns its first slot. Raises BadInput for a column of another type than the first time."""
        slots = extent.slots
        self._check(extent)
        lists: dict[str, NDArray[Any]] = {}
        if extent.row is not None:
            known = extent.row >= 0
            lists["row"] = extent.row if known.all() else np.ma.MaskedArray(extent.row, mask=~known)
        if extent.position is not None:
            lists["position"] = extent.position
        lists |= {name: stored(column, self.types[name]) for name, column in extent.columns.items()}
        for name, column in lists.items():
            if len(column) != slots:
                raise BadInput(
                    f"column {name!r} has {len(column)} entries for {slots} slots of space {self.space!r}.", field=name
                )
            # Extents before the first that says something of single slots say nothing of them.
            self._lists.setdefault(name, [None] * len(self._extents)).append(column)
        first, self.count = self.count, self.count + slots
        self._extents.append((step, extent.call, first, slots, extent.rows, extent.length, first_datapoint))
        for parts in self._lists.values():
            if len(parts) < len(self._extents):
                parts.append(None)
        return first

    def _check(self, extent: Extent) -> None:
        if not extent.columns:
            return
        types = column_types(extent.columns)
        new = {name: kind for name, kind in types.items() if name not in self.types}
        if new:
            check_names(self.types | new, _TAKEN)
            self.types |= new
        check_same_types(types, {name: self.types[name] for name in types}, when="when it was first said")

    def nbytes(self, extent: Extent) -> int:
        """About what an extent's lists hold on to until a commit."""
        lists = (extent.row, extent.position, *extent.columns.values())
        return sum(column.nbytes for column in lists if column is not None)

    def take(self) -> pa.Table | None:
        """The rows since the last call; None where there are none."""
        if not self._extents:
            return None
        types = extents_types(self.types)
        plain = [name for name in EXTENTS if name not in ("row", "position")]
        columns: dict[str, Any] = dict(zip(plain, zip(*self._extents, strict=True), strict=True))
        for name in types:
            if name not in columns:
                columns[name] = _lists(self._lists.get(name), len(self._extents), types[name])
        self._extents, self._lists = [], {}
        return arrow_table(columns, types)


def _lists(parts: Sequence[NDArray[Any] | None] | None, extents: int, kind: str) -> pa.Array:
    """[E] lists of a DuckDB list type, NULL where an extent has none."""
    if parts is None:
        return pa.nulls(extents, type=arrow_type(kind))
    lengths = np.array([0 if part is None else len(part) for part in parts], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]).astype(np.int32)
    values = arrow_column(joined([part for part in parts if part is not None]), kind[:-2])
    missing = pa.array([part is None for part in parts])
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=arrow_type(kind), mask=missing)
