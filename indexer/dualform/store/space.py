"""One slot space of a snapshot: its columns, each known from its extents, from the samples, or said of single slots.

Shapes: T slots, D datapoints, n slots that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.store.entries import Integers
from dualform.store.extents import PLAIN, Extents, Places
from dualform.store.list_columns import ListColumns
from dualform.store.samples import Samples, as_numpy
from dualform.store.shard_tables import Tables, whole
from dualform.store.tables import arrow_column, arrow_type, extents_table, view_types

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
