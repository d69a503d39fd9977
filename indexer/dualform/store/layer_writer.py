"""Writes one layer's keys and values: with each commit, a file for each form of their rows.

Shapes: n slots of an extent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.batch import LayerRows
from dualform.store.direct_file import Blocks
from dualform.store.distinct_keys import DistinctKeys
from dualform.store.durable_files import sync_folder
from dualform.store.increment import RowBytes
from dualform.store.layer import Layer
from dualform.store.rows_writer import RowsWriter


class LayerWriter:
    """Gathers one layer's rows and writes them at a commit; of a layer whose inputs repeat, each distinct key once."""

    def __init__(self, layer: Layer, shard_folder: Path, blocks: Blocks) -> None:
        """Raises BadInput for a layer whose keys its source cannot store."""
        self.layer = layer
        place = f"layers/{layer.folder}"
        self.folder = shard_folder / place
        self._format = layer.key_format
        self._keys = RowsWriter(layer.name, "keys", shard_folder, place, blocks)
        self._values = RowsWriter(layer.name, "values", shard_folder, place, blocks)
        self._distinct = DistinctKeys() if layer.repeats and layer.keys else None
        self._key_rows: list[NDArray[np.int64]] = []
        """Of a layer whose inputs repeat, the key row of each entry since they were last taken."""
        self._entries = 0
        self._ranges: list[list[int]] = []
        self._first_entry = 0

    def append(self, rows: LayerRows, first_slot: int, slots: int) -> int:
        """Add the rows of an extent of `slots` slots; returns the bytes gathered.

        Raises BadInput where there are not as many rows as slots, or where they cannot be stored without loss.
        """
        keys = self._format.count(rows.keys)
        if keys is not None:
            self._check_count("keys", keys, rows.call, slots)
        if rows.values is not None:
            self._check_count("values", len(rows.values), rows.call, slots)
        elif self.layer.values and self.layer.keys:
            raise BadInput(f"layer {self.layer.name!r} has keys without values.", field="layers")
        if not slots:
            return 0
        written = self._gather(rows) if self.layer.keys else 0
        self._entries += slots
        if self._ranges and sum(self._ranges[-1]) == first_slot:
            self._ranges[-1][1] += slots
        else:
            self._ranges.append([first_slot, slots])
        return written

    def _check_count(self, kind: str, rows: int, call: int, slots: int) -> None:
        if rows != slots:
            raise BadInput(
                f"layer {self.layer.name!r} has {rows} {kind} for the {slots} slots of call {call} in "
                f"space {self.layer.space!r}.",
                hint=f"Give it its own space: Recorder(spaces={{{self.layer.name!r}: …}}).",
                field="layers",
            )

    def _gather(self, rows: LayerRows) -> int:
        keys = self._accepted(rows.keys)
        if self._distinct:
            rows_of_keys, new = self._distinct.rows_of(keys)
            self._key_rows.append(_entry_rows(rows_of_keys, self._format.per_row))
            keys = keys if len(new) == len(keys) else keys[new]
        written = self._keys.append_encoded(keys, self._format)
        if self.layer.values and rows.values is not None:
            written += self._values.append_encoded(rows.values, self.layer.value_format)
        return written

    def _accepted(self, keys: NDArray[Any]) -> NDArray[Any]:
        try:
            return self._format.accepted(keys)
        except ValueError as error:
            raise BadInput(f"layer {self.layer.name!r}: {error}", field="layers") from None

    def unseen(self) -> list[RowBytes]:
        """The rows gathered since the last call; they are overwritten once they were written."""
        return [*self._keys.unseen(), *self._values.unseen()]

    def write(self) -> None:
        """As RowsWriter."""
        self._keys.write()
        self._values.write()

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make the open segment durable; returns its rows for the table `segments`."""
        rows = [*self._keys.finish(segment), *self._values.finish(segment)]
        if rows:
            sync_folder(self.folder)
        for writer in (self._keys, self._values):
            writer.begin(segment + 1)
        return rows

    def discard(self) -> None:
        """Remove the open segment, with those of its files that were finished before another one failed."""
        self._keys.discard()
        self._values.discard()

    def take_entries(self) -> list[tuple[str, int, int]]:
        """The rows for the table `entries` since the last call."""
        ranges, self._ranges = self._ranges, []
        return [(self.layer.name, first, slots) for first, slots in ranges]

    def take_key_rows(self) -> list[tuple[str, int, NDArray[np.int64]]]:
        """The row for the table `key_rows` since the last call: one, or none."""
        if not self._key_rows:
            return []
        rows, self._key_rows = np.concatenate(self._key_rows), []
        first, self._first_entry = self._first_entry, self._entries
        return [(self.layer.name, first, rows)]


def _entry_rows(rows: NDArray[np.int64], per_row: int) -> NDArray[np.int64]:
    """int64[n]: the key row of each entry, of which a stored row stands for `per_row`."""
    return (rows[:, None] * per_row + np.arange(per_row)).reshape(-1)
