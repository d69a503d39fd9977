"""One slot space of a snapshot: where its slots lie, and their columns.

One slot space of a snapshot: its columns, each known from its extents, from the samples, or said of single slots.

Shapes: T slots, D datapoints, n slots that are asked for.

Where the slots of a space lie: step, call, row, position and datapoint of any of them, by arithmetic.

Shapes: E extents, n slots that are asked for, T slots of the space, D datapoints of the samples.

An extent is one call of a step. Its slots follow each other row after row, and the rows of a step follow each other
among the datapoints, so that nothing is kept for single slots unless they are irregular (padding masks, routed tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.store.reading.shard_tables import ListColumns, Samples, Tables, as_numpy, whole
from dualform.store.rows import Integers
from dualform.store.tables import EXTENTS, Lists, arrow_column, arrow_type, extents_table, view_types

FEW = 1 << 20
"""Slots up to which only their own extents are looked at."""
LONG = 1 << 22
"""Slots from which on few of them are looked up without reading a column of lists whole: that would take seconds."""
PLAIN = tuple(name for name in EXTENTS if name not in ("row", "position"))
"""The columns of an extents table that are no lists."""


@dataclass(frozen=True, eq=False)
class Places:
    """Some slots, by extent."""

    extent: Integers
    """int64[n]."""
    index: Integers
    """int64[n]: counted from the extent's first slot."""


class Extents:
    """The extents of one space. What single slots say is read when it is first needed."""

    def __init__(self, plain: pa.Table, lists: ListColumns, unknown: Callable[[], tuple[Integers, Integers]]) -> None:
        """`plain`: the table without its columns of `lists`. `unknown`: the datapoints, ascending, that stand for slots
        whose row is not known; their steps come first.
        """
        self._lists, self._unknown = lists, unknown
        self.step, self.call = _integers(plain, "step"), _integers(plain, "call")
        self.first_slot, self.slots = _integers(plain, "first_slot"), _integers(plain, "slots")
        self.rows, self.first_datapoint = _integers(plain, "rows"), _integers(plain, "first_datapoint")
        self.length = _integers(plain, "length")
        """0 where a slot is a row."""
        self.count = int(self.slots.sum())
        """T."""

    def of(self, slots: Integers) -> Places:
        extent = np.searchsorted(self.first_slot, slots, side="right") - 1
        # Extents without slots begin where the next one does; the last of them all is the one that has the slot.
        return Places(extent, slots - self.first_slot[extent])

    def between(self, start: int, stop: int) -> Places:
        """As `of` the slots from start to stop."""
        if start >= stop:
            return Places(np.empty(0, np.int64), np.empty(0, np.int64))
        low = int(np.searchsorted(self.first_slot, start, side="right")) - 1
        high = int(np.searchsorted(self.first_slot, stop, side="left"))
        first = self.first_slot[low:high]
        last = np.minimum(first + self.slots[low:high], stop)
        extent = np.repeat(np.arange(low, high), np.maximum(last - np.maximum(first, start), 0))
        return Places(extent, np.arange(start, stop) - self.first_slot[extent])

    def step_of(self, places: Places) -> Integers:
        return self.step[places.extent]

    def call_of(self, places: Places) -> NDArray[np.int32]:
        return self.call[places.extent].astype(np.int32)

    def row_of(self, places: Places) -> NDArray[np.int32]:
        """int32[n]; masked where the row is not known."""
        row = places.index // np.maximum(self.length[places.extent], 1)
        lists, extent = self._at("row", places)
        if not lists.given.any():
            return row.astype(np.int32)
        listed, there = lists.at(extent, places.index)
        given = lists.given[extent]
        missing = given & ~there
        known: NDArray[np.int32] = np.where(given, np.where(there, listed, 0), row).astype(np.int32)
        return np.ma.MaskedArray(known, mask=missing) if missing.any() else known

    def position_of(self, places: Places) -> Integers:
        """int64[n]; masked where a slot is a row and nothing else was said."""
        length = self.length[places.extent]
        position, known = places.index % np.maximum(length, 1), length > 0
        lists, extent = self._at("position", places)
        if lists.given.any():
            listed, there = lists.at(extent, places.index)
            given = lists.given[extent]
            position, known = np.where(given, listed, position), np.where(given, there, known)
        return position if known.all() else np.ma.MaskedArray(position, mask=~known)

    def is_null(self, name: str) -> bool | NDArray[np.bool_]:
        """Whether `row` or `position` is NULL: False for no slot, else bool[T]."""
        if name == "row" and self.regular:
            return False
        if name == "position" and self._listed_positions is None:
            return False if (self.length > 0).all() else np.repeat(self.length == 0, self.slots)
        of = self.row_of if name == "row" else self.position_of
        return np.asarray(np.ma.getmaskarray(of(self.between(0, self.count))))

    def datapoint_of(self, places: Places) -> Integers:
        """int64[n]; -1 for a slot of which no datapoint says anything."""
        row = self.row_of(places)
        known = self.first_datapoint[places.extent] + np.ma.getdata(row)
        if not isinstance(row, np.ma.MaskedArray):
            return np.asarray(known)
        return np.asarray(np.where(row.mask, self._unknown_datapoint[places.extent], known))

    @cached_property
    def regular(self) -> bool:
        """Whether every row follows from the shape of its extent."""
        return self._listed_rows is None

    @cached_property
    def rowless(self) -> bool:
        """Whether no extent's rows are those of its batch: the network chose them, or nobody knows them."""
        return bool(len(self.rows)) and not self.rows.any()

    def every_step(self) -> Integers:
        """int64[T]."""
        return np.repeat(self.step, self.slots)

    def every_call(self) -> NDArray[np.int32]:
        """int32[T]."""
        return np.repeat(self.call.astype(np.int32), self.slots)

    def said(self, name: str, places: Places | None = None) -> pa.Array:
        """What is said of single slots under a name, of some or of all of them, as an Arrow array with NULLs."""
        if places is None:
            return self._lists.whole(name).every(self.slots)
        lists, extent = self._at(name, places)
        return lists.take(extent, places.index)

    def _at(self, name: str, places: Places) -> tuple[Lists, Integers]:
        """A column of lists that has those of some places, and int64[n]: which of its lists is that of each."""
        if len(places.extent) < FEW and self.count >= LONG:
            extents, number = np.unique(places.extent, return_inverse=True)
            few = len(extents) <= len(self.step) // 2
            if few and (some := self._lists.some(name, extents)) is not None:
                return some, number
        return self._lists.whole(name), places.extent

    def said_between(self, name: str, start: int, stop: int) -> pa.Array:
        """As `said`, of the slots from start to stop."""
        found = self._lists.whole(name).between(self.slots, start, stop)
        return self.said(name, self.between(start, stop)) if found is None else found

    def spread(self, entries: NDArray[Any]) -> NDArray[Any]:
        """From one entry a datapoint, [D], to one a slot, [T]; masked, or None among objects, where there is none."""
        if isinstance(entries, np.ma.MaskedArray):
            mask = self.spread(np.ma.getmaskarray(entries))
            if isinstance(mask, np.ma.MaskedArray):
                mask = mask.filled(True)
            return np.ma.MaskedArray(np.ma.getdata(self.spread(entries.data)), mask=mask)
        return self._repeated(entries) if self.regular else self._gathered(entries)

    def _repeated(self, entries: NDArray[Any]) -> NDArray[Any]:
        order, length = self._row_datapoints, self._row_lengths
        own = entries if order is None else entries[order]
        if isinstance(length, int):
            # Copying a broadcast array is several times faster than numpy.repeat.
            return np.broadcast_to(own[:, None], (len(own), length)).reshape(-1)
        return np.repeat(own, length)

    def _gathered(self, entries: NDArray[Any]) -> NDArray[Any]:
        datapoints = self.every_datapoint()
        missing = datapoints < 0
        if not missing.any():
            return entries[datapoints]
        if not len(entries):  # every datapoint is unknown
            entries = np.zeros(1, entries.dtype)
        found = entries[np.maximum(datapoints, 0)]
        if found.dtype == object:
            found[missing] = None
            return found
        return np.ma.MaskedArray(found, mask=missing)

    def every_datapoint(self) -> Integers:
        """int64[T], as `datapoint_of`."""
        return self.datapoint_of(self.between(0, self.count))

    def has(self, datapoints: int) -> NDArray[np.bool_] | None:
        """bool[D]: which of D datapoints have a slot; None where all have."""
        if self.regular and self._row_datapoints is None and int(self._full_rows.sum()) == datapoints:
            return None
        found = np.zeros(datapoints, dtype=bool)
        if self.regular:
            rows = self._row_datapoints
            found[slice(int(self._full_rows.sum())) if rows is None else rows] = True
        else:
            own = self.every_datapoint()
            found[own[own >= 0]] = True
        return None if found.all() else found

    def slots_of_datapoints(self, datapoints: int) -> Integers:
        """int64[D]: how many slots each of D datapoints has."""
        if not self.regular:
            own = self.every_datapoint()
            return np.bincount(own[own >= 0], minlength=datapoints)
        rows, length = self._row_datapoints, self._row_lengths
        rows = np.arange(int(self._full_rows.sum())) if rows is None else rows
        lengths = np.broadcast_to(np.asarray(length), rows.shape)
        return np.bincount(rows, lengths, minlength=datapoints).astype(np.int64)

    @cached_property
    def unknown_datapoints(self) -> bool:
        """Whether there are slots of which no datapoint says anything."""
        return not self.regular and bool((self.every_datapoint() < 0).any())

    @cached_property
    def _row_datapoints(self) -> Integers | None:
        """The datapoint of each row of each extent; None where they are 0, 1, 2, …"""
        ends = np.cumsum(self._full_rows)
        starts = np.repeat(self.first_datapoint - (ends - self._full_rows), self._full_rows)
        return (starts + np.arange(len(starts))) if starts.any() else None

    @cached_property
    def _row_lengths(self) -> int | Integers:
        """Slots of each row of each extent; one number where all have as many."""
        each = np.maximum(self.length, 1)
        if not len(each):
            return 1
        return int(each[0]) if (each == each[0]).all() else np.repeat(each, self._full_rows)

    @cached_property
    def _unknown_datapoint(self) -> Integers:
        """int64[E]: the datapoint of slots whose row is not known; -1 where there is none.

        It is the next one of its kind behind the extent's first datapoint, if it is of the same step.
        """
        steps, datapoints = self._unknown()
        if not len(datapoints):
            return np.full(len(self.step), -1)
        place = np.minimum(np.searchsorted(datapoints, self.first_datapoint), len(datapoints) - 1)
        return np.where(
            (steps[place] == self.step) & (datapoints[place] >= self.first_datapoint), datapoints[place], -1
        )

    @cached_property
    def _full_rows(self) -> Integers:
        return self.slots // np.maximum(self.length, 1)

    @cached_property
    def _listed_rows(self) -> Lists | None:
        lists = self._lists.whole("row")
        return lists if lists.given.any() else None

    @cached_property
    def _listed_positions(self) -> Lists | None:
        lists = self._lists.whole("position")
        return lists if lists.given.any() else None


def _integers(table: pa.Table, name: str) -> Integers:
    column = table[name]
    return np.asarray((column.fill_null(0) if column.null_count else column).to_numpy(), dtype=np.int64)


_OF_EXTENTS = ("slot", "step", "row", "position", "call")


class Space:
    """Safe to use from several threads: what is made twice at once is the same."""

    def __init__(self, name: str, tables: Tables, samples: Samples, token_columns: dict[str, str]) -> None:
        self.name, self.samples, self._token_columns = name, samples, token_columns
        table = extents_table(name)
        self.extents = Extents(whole(tables, table, PLAIN), ListColumns(tables, table), samples.unknown)
        self.columns: dict[str, str] = dict(view_types(samples.types, token_columns))
        """Names and DuckDB types of the slots' columns."""

    @property
    def count(self) -> int:
        """T."""
        return self.extents.count

    @cached_property
    def sample_columns(self) -> frozenset[str]:
        """Columns that are the same for all slots of a datapoint, so that a mask may be evaluated over datapoints."""
        if self.extents.unknown_datapoints:
            return frozenset()
        own = {*_OF_EXTENTS, *self._token_columns} - {"step", "row"}
        return frozenset(name for name in self.columns if name not in own)

    def datapoints(self) -> NDArray[np.bool_] | None:
        """bool[D]: which datapoints have a slot here; None where all have."""
        return self.extents.has(self.samples.count)

    def spread(self, per_datapoint: NDArray[Any]) -> NDArray[Any]:
        """From one entry a datapoint, [D], to one a slot, [T]."""
        return self.extents.spread(per_datapoint)

    def slots_of_datapoints(self) -> Integers:
        """int64[D]: how many slots each datapoint has here."""
        return self.extents.slots_of_datapoints(self.samples.count)

    def sample_table(self, names: Iterable[str]) -> pa.Table:
        """[D] entries of some of `sample_columns`."""
        chosen = list(names)
        return pa.table([self.samples.column(name) for name in chosen], names=chosen)

    def column(self, name: str) -> NDArray[Any]:
        """[T], in slot order; masked where NULL, texts as objects with None."""
        if name in _OF_EXTENTS:
            return self._of_extents(name, None)
        if name in self._token_columns:
            return as_numpy(self.extents.said(name))
        return self.spread(as_numpy(self.samples.column(name)))

    def at(self, slots: Integers, names: list[str]) -> pa.Table:
        """[n] entries of some columns, of any slots in any order."""
        places = self.extents.of(slots)
        return self._table(places, slots, names)

    def between(self, start: int, stop: int, names: list[str]) -> pa.Table:
        """As `at` the slots from start to stop."""
        said = {name: self.extents.said_between(name, start, stop) for name in names if name in self._token_columns}
        others = [name for name in names if name not in said]
        found = said
        if others or not names:
            table = self._table(self.extents.between(start, stop), np.arange(start, stop), others)
            found |= {name: table[name] for name in others}
        return pa.table({name: found[name] for name in names})

    def is_null(self, name: str) -> bool | NDArray[np.bool_]:
        """Whether the column is NULL: True or False for all slots alike, else bool[T]."""
        if name in ("slot", "step", "call"):
            return False
        if name in self.sample_columns and name not in _OF_EXTENTS:
            column = self.samples.column(name)
            if column.null_count in (0, len(column)):
                return bool(column.null_count)
            return self.spread(np.asarray(column.is_null()))
        if name in ("row", "position"):
            return _alike(self.extents.is_null(name))
        if name in self._token_columns:
            said = self.extents.said(name)
            return bool(said.null_count) if said.null_count in (0, len(said)) else np.asarray(said.is_null())
        values = self.column(name)  # of slots of which no datapoint says anything
        return _alike(np.array([v is None for v in values]) if values.dtype == object else np.ma.getmaskarray(values))

    def slots_by_dataset(self) -> dict[str, int]:
        """How many slots name each dataset."""
        if "dataset" in self.sample_columns:
            encoded = self.samples.column("dataset").dictionary_encode().unify_dictionaries().combine_chunks()
            slots = self.slots_of_datapoints()
        else:
            encoded = pa.array(self.column("dataset"), type=pa.string()).dictionary_encode()
            slots = np.ones(self.count, dtype=np.int64)
        there = np.asarray(encoded.is_valid())
        counts = np.bincount(np.asarray(encoded.indices.fill_null(0))[there], slots[there], len(encoded.dictionary))
        return {name: int(n) for name, n in zip(encoded.dictionary.to_pylist(), counts, strict=True) if n}

    def _of_extents(self, name: str, places: Places | None) -> NDArray[Any]:
        extents = self.extents
        if places is None and name == "slot":
            return np.arange(self.count)
        if places is None and name in ("step", "call"):
            return extents.every_step() if name == "step" else extents.every_call()
        places = extents.between(0, self.count) if places is None else places
        if name == "slot":
            return extents.first_slot[places.extent] + places.index
        of: dict[str, Callable[[Places], NDArray[Any]]] = {
            "step": extents.step_of,
            "row": extents.row_of,
            "position": extents.position_of,
            "call": extents.call_of,
        }
        return of[name](places)

    def _table(self, places: Places, slots: Integers, names: list[str]) -> pa.Table:
        found: dict[str, Any] = {}
        of_samples = [name for name in names if name not in _OF_EXTENTS and name not in self._token_columns]
        for name in names:
            if name in _OF_EXTENTS:
                numbers = slots if name == "slot" else self._of_extents(name, places)
                found[name] = arrow_column(numbers, self.columns[name])
            elif name in self._token_columns:
                found[name] = self.extents.said(name, places)
        if of_samples:
            own = self.extents.datapoint_of(places)
            found |= self.samples.at(of_samples, pa.array(own, mask=own < 0))
        return pa.table({name: found[name].cast(arrow_type(self.columns[name])) for name in names})


def _alike(null: bool | NDArray[np.bool_]) -> bool | NDArray[np.bool_]:
    """One answer where it is the same for all slots."""
    if isinstance(null, bool):
        return null
    return bool(null.all()) if len(null) and (null.all() or not null.any()) else null
