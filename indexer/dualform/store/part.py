"""One shard of a memory, read as a memory that has its slots alone: they keep the numbers that they have in the whole.

Shapes: H entries of a layer in the whole memory, m of them in the shard.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dualform.store.entries import Entries, Integers
from dualform.store.layer import Layer
from dualform.store.snapshot import Snapshot


class Part(Snapshot):
    """The rows of one shard; tables, columns and spaces are those of the whole. No other shard's rows are read."""

    def __init__(self, whole: Snapshot, number: int) -> None:
        """`number`: of the shard, among those that `shard_names` lists."""
        sources = {}
        for layer in whole.layers.values():
            for kind in ("keys", "values"):
                start, stop = _rows_of(whole, layer, kind, number)
                own = [one for one in whole.sources.get((layer.name, kind), []) if start <= one.first_row < stop]
                sources[layer.name, kind] = [one.shifted(-start) for one in own]
        super().__init__(whole.path, whole.manifest, whole._tables, sources)
        self._whole, self.number = whole, number
        self._places: dict[str, Integers] = {}
        self._orders: dict[tuple[str, str], Integers | None] = {}
        """By layer and kind, the row of each entry: to order those of the whole memory takes long."""

    def places(self, layer: str) -> Integers:
        """int64[m], ascending: the entries of the whole that are the shard's."""
        name = self.layer(layer).stored.name
        if name not in self._places:
            self._places[name] = np.flatnonzero(shard_of_entries(self._whole, name) == self.number)
        return self._places[name]

    def own(self, layer: str, entries: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Of some entries of the whole: those of the shard, numbered within it, and which of the given they are."""
        places = self.places(layer)
        found = np.searchsorted(places, entries)
        there = found < len(places)
        there[there] = places[found[there]] == entries[there]
        return found[there], there

    def entries(self, layer: str) -> Entries:
        found = self.layer(layer).stored
        if found.name not in self._entries:
            slots = self._whole.entries(found.name).slots_of(self.places(found.name))
            begins = np.flatnonzero(np.r_[True, np.diff(slots) != 1]) if len(slots) else np.empty(0, np.int64)
            lengths = np.diff(begins, append=len(slots))
            self._entries[found.name] = Entries(slots[begins], lengths, self.count(found.space))
        return self._entries[found.name]

    def _row_of_entry(self, layer: Layer) -> Integers | None:
        return self._order(layer, "keys", self._whole._row_of_entry)

    def _row_of_value(self, layer: Layer) -> Integers | None:
        return self._order(layer, "values", self._whole._row_of_value)

    def _order(
        self, layer: Layer, kind: Literal["keys", "values"], of_whole: Callable[[Layer], Integers | None]
    ) -> Integers | None:
        if (layer.name, kind) not in self._orders:
            places, rows = self.places(layer.name), of_whole(layer)
            start, stop = _rows_of(self._whole, layer, kind, self.number)
            own = (places if rows is None else rows[places]) - start
            in_order = len(own) == stop - start and np.array_equal(own, np.arange(len(own)))
            self._orders[layer.name, kind] = None if in_order else own
        return self._orders[layer.name, kind]


def shard_names(memory: Snapshot) -> list[str]:
    """The folders of a memory's shards, as seen from the folder that all of its runs are in: no two have one name."""
    runs = [(os.path.abspath(run.path), run.manifest.shards) for run in memory.runs]
    common = os.path.commonpath([path for path, _ in runs])
    return [Path(path, part.folder).relative_to(common).as_posix() for path, shards in runs for part in shards]


def shard_of_entries(memory: Snapshot, layer: str) -> NDArray[np.int64]:
    """int64[H]: the number of the shard that each entry of a layer is in."""
    stored = memory.layer(layer).stored
    kind: Literal["keys", "values"] = "keys" if stored.keys else "values"
    rows = memory._row_of_entry(stored) if stored.keys else memory._row_of_value(stored)
    if rows is None:
        rows = np.arange(memory.entries(layer).count)
    return np.searchsorted(np.cumsum(memory.shard_rows(stored.name, kind)), rows, side="right")


def _rows_of(memory: Snapshot, layer: Layer, kind: str, number: int) -> tuple[int, int]:
    """Where a shard's rows begin and end among those of all shards."""
    rows = memory.shard_rows(layer.name, kind)
    start = sum(rows[:number])
    return start, start + rows[number]
