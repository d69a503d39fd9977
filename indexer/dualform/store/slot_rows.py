"""Gathers what batches bring of datapoints and slots, until the tables `samples` and `extents_<space>` take it.

Shapes: B rows of a step; n slots of an extent; E extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.batch import Batch, Extent
from dualform.store.tables import (
    EXTENTS,
    SAID,
    SAMPLES,
    SLOTS,
    arrow_column,
    arrow_table,
    arrow_type,
    extents_table,
    extents_types,
)
from dualform.store.user_columns import check_names, check_same_types, column_types, joined, single, stored

_TAKEN_OF_SAMPLES = dict(SLOTS) | dict(SAMPLES)
_TAKEN_OF_EXTENTS = dict(EXTENTS) | {"slot": "BIGINT", "datapoint": "BIGINT"}


class SlotRows:
    """The datapoints and slots of a shard, as batches bring them."""

    def __init__(self, spaces: Iterable[str]) -> None:
        self.spaces = {name: ExtentRows(name) for name in dict.fromkeys(spaces)}
        """By name, in the order in which they came."""
        self._samples = SampleRows()

    def add_space(self, name: str) -> None:
        """Make room for a space, where there is none yet."""
        self.spaces.setdefault(name, ExtentRows(name))

    def append(self, batch: Batch) -> dict[tuple[str, int], tuple[int, int]]:
        """Add one step; returns where each extent came to lie: (space, call) -> first slot and number of slots.

        Raises BadInput, naming the column that does not fit what came before.
        """
        first_datapoint = self._samples.append(batch.step, batch.samples, batch.unknown)
        placed = {}
        for extent in batch.extents:
            self.add_space(extent.space)
            first_slot = self.spaces[extent.space].append(batch.step, first_datapoint, extent)
            placed[extent.space, extent.call] = first_slot, extent.slots
        return placed

    @property
    def width(self) -> int:
        """How many spaces and columns there are."""
        return sum(1 + len(rows.types) for rows in self.spaces.values()) + len(self._samples.types)

    def columns(self) -> dict[str, dict[str, str]]:
        """DuckDB types of the columns of samples, and by space of what is said of its single slots."""
        return {"samples": dict(self._samples.types), **{name: dict(rows.types) for name, rows in self.spaces.items()}}

    def take(self) -> dict[str, pa.Table]:
        """The rows by table since the last call; a table without new rows is absent."""
        tables = {"samples": self._samples.take()}
        tables |= {extents_table(name): rows.take() for name, rows in self.spaces.items()}
        return {name: rows for name, rows in tables.items() if rows is not None}


class SampleRows:
    """Numbers the datapoints of a shard from 0, in the order of steps and rows."""

    def __init__(self) -> None:
        self.types: dict[str, str] = dict(SAMPLES)
        """Columns of the table; the user's are known from the first step on."""
        self._count = 0
        """Datapoints seen so far."""
        self._user: dict[str, str] | None = None
        self._taken = 0
        self._steps: list[tuple[int, int, bool]] = []
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def append(self, step: int, columns: Mapping[str, NDArray[Any]], unknown: Mapping[str, Any] | None) -> int:
        """Add a step's rows, and one more for slots whose row is not known; returns its first datapoint.

        Raises BadInput for a user column that is new, missing or of another type than at the first step.
        """
        self._check(columns)
        rows = len(next(iter(columns.values()))) if columns else 0
        for name in (*SAID, *(self._user or {})):
            column = stored(columns[name], self.types[name])
            if len(column) != rows:
                raise BadInput(
                    f"column {name!r} has {len(column)} entries for {rows} rows.",
                    hint="Pass one value for each row.",
                    field=name,
                )
            parts = self._parts.setdefault(name, [])
            parts.append(column)
            if unknown is not None:
                parts.append(single(unknown.get(name), self.types[name]))
        self._steps.append((step, rows, unknown is not None))
        first, self._count = self._count, self._count + rows + (unknown is not None)
        return first

    def _check(self, columns: Mapping[str, NDArray[Any]]) -> None:
        types = column_types({name: column for name, column in columns.items() if name not in SAID})
        if self._user is None:
            check_names(types, _TAKEN_OF_SAMPLES)
            self._user = types
            self.types |= types
        elif types != self._user:
            check_same_types(types, self._user, when="at the first step")

    def take(self) -> pa.Table | None:
        """The rows since the last call; None where there are none."""
        if self._taken == self._count:
            self._steps, self._parts = [], {}
            return None
        steps = np.array([step for step, _, _ in self._steps], dtype=np.int64)
        extra = np.array([unknown for _, _, unknown in self._steps], dtype=bool)
        counts = np.array([rows for _, rows, _ in self._steps], dtype=np.int64) + extra
        columns = {name: joined(parts) for name, parts in self._parts.items()}
        columns["datapoint"] = np.arange(self._taken, self._count, dtype=np.int64)
        columns["step"] = np.repeat(steps, counts)
        columns["row"] = _rows(counts, extra)
        self._taken, self._steps, self._parts = self._count, [], {}
        return arrow_table(columns, self.types)


def _rows(counts: NDArray[np.int64], extra: NDArray[np.bool_]) -> NDArray[Any]:
    """0, 1, … within each step; masked in the last place of steps that end with an unknown row."""
    ends = np.cumsum(counts)
    rows = (np.arange(ends[-1]) - np.repeat(ends - counts, counts)).astype(np.int32)
    if not extra.any():
        return rows
    mask = np.zeros(len(rows), dtype=bool)
    mask[ends[extra] - 1] = True
    return np.ma.MaskedArray(rows, mask=mask)


class ExtentRows:
    """Numbers the slots of a space from 0, in the order of steps and calls."""

    def __init__(self, space: str) -> None:
        self.types: dict[str, str] = {}
        """What is said of single slots, under the type of one slot; known from the first time on."""
        self._space = space
        self._count = 0
        """Slots seen so far."""
        self._extents: list[tuple[Any, ...]] = []
        self._lists: dict[str, list[NDArray[Any] | None]] = {}

    def append(self, step: int, first_datapoint: int, extent: Extent) -> int:
        """Add an extent; returns its first slot. Raises BadInput for a column of another type than the first time."""
        slots = extent.slots
        self._check(extent)
        for name, column in self._lists_of(extent).items():
            if len(column) != slots:
                raise BadInput(
                    f"column {name!r} has {len(column)} entries for {slots} slots of space {self._space!r}.",
                    hint="Pass one value for each slot.",
                    field=name,
                )
            # Extents before the first that says something of single slots say nothing of them.
            self._lists.setdefault(name, [None] * len(self._extents)).append(column)
        first, self._count = self._count, self._count + slots
        self._extents.append((step, extent.call, first, slots, extent.rows, extent.length, first_datapoint))
        for parts in self._lists.values():
            if len(parts) < len(self._extents):
                parts.append(None)
        return first

    def _lists_of(self, extent: Extent) -> dict[str, NDArray[Any]]:
        lists: dict[str, NDArray[Any]] = {}
        if extent.row is not None:
            known = extent.row >= 0
            lists["row"] = extent.row if known.all() else np.ma.MaskedArray(extent.row, mask=~known)
        if extent.position is not None:
            lists["position"] = extent.position
        return lists | {name: stored(column, self.types[name]) for name, column in extent.columns.items()}

    def _check(self, extent: Extent) -> None:
        if not extent.columns:
            return
        types = column_types(extent.columns)
        new = {name: kind for name, kind in types.items() if name not in self.types}
        if new:
            check_names(self.types | new, _TAKEN_OF_EXTENTS)
            self.types |= new
        check_same_types(types, {name: self.types[name] for name in types}, when="when it was first said")

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
