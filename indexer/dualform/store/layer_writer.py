"""Writes one layer's keys and values: a pair of segment files for each commit. Shapes: n slots of an extent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.batch import LayerRows
from dualform.store.direct_file import Blocks
from dualform.store.durable import sync_folder
from dualform.store.increment import RowBytes
from dualform.store.layer import Layer
from dualform.store.matrix_file import Header, MatrixWriter, flat_index_header, npy_header

_MOST_REMEMBERED = 4_000_000
"""Distinct keys remembered in search of repeats (about 0.5 GB): inputs that never repeat must not fill memory."""


class LayerWriter:
    """Gathers one layer's rows and writes them at a commit; of a layer whose inputs repeat, each distinct key once."""

    def __init__(self, layer: Layer, shard_folder: Path, blocks: Blocks) -> None:
        self.layer = layer
        self.folder = shard_folder / "layers" / layer.folder
        self._blocks = blocks
        self._open: dict[str, MatrixWriter] = {}
        self._segment = 0
        self._rows_before = {"keys": 0, "values": 0}
        self._unseen_before = {"keys": 0, "values": 0}
        self._row_of_key: dict[bytes, int] = {}
        self._distinct = 0
        self._entries = 0
        self._ranges: list[list[int]] = []
        self._first_entry = 0
        self._key_rows: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def append(self, rows: LayerRows, first_slot: int, slots: int) -> int:
        """Add the rows of an extent of `slots` slots; returns the bytes gathered.

        Raises BadInput where there are not as many rows as slots.
        """
        self._check(rows, slots)
        if not slots:
            return 0
        self._entries += slots
        if self._ranges and sum(self._ranges[-1]) == first_slot:
            self._ranges[-1][1] += slots
        else:
            self._ranges.append([first_slot, slots])
        return self._gather(rows) if self.layer.keys else 0

    def _check(self, rows: LayerRows, slots: int) -> None:
        for kind, matrix in (("keys", rows.keys), ("values", rows.values)):
            if matrix is not None and len(matrix) != slots:
                raise BadInput(
                    f"layer {self.layer.name!r} has {len(matrix)} {kind} for the {slots} slots of call {rows.call} in "
                    f"space {self.layer.space!r}.",
                    hint="Give it a space of its own: Recorder(spaces={...}).",
                    field="layers",
                )
        if rows.values is None and self.layer.values and self.layer.keys:
            raise BadInput(f"layer {self.layer.name!r} has keys without values.", field="layers")

    def _gather(self, rows: LayerRows) -> int:
        keys = self._distinct_keys(rows.keys) if self.layer.repeats else rows.keys
        written = keys.nbytes
        if len(keys):
            self._writer("keys", self.layer.d_in, flat_index_header).append(keys)
        if self.layer.values and rows.values is not None:
            self._writer("values", self.layer.d_out, npy_header).append(rows.values)
            written += rows.values.nbytes
        return written

    def _distinct_keys(self, keys: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The keys not stored before, bit for bit; notes the row of every entry's key."""
        new: list[int] = []
        of_entry = []
        # As bytes, all at once: one row of an array after the other holds the training up for longer.
        each = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1] * 4))).reshape(-1)
        contents = cast(list[bytes], each.tolist())
        for entry, digest in enumerate(map(xxhash.xxh3_128_digest, contents)):
            row = self._row_of_key.get(digest)
            if row is None:
                row = self._distinct
                self._distinct += 1
                new.append(entry)
                if len(self._row_of_key) < _MOST_REMEMBERED:
                    self._row_of_key[digest] = row
            of_entry.append(row)
        self._key_rows.append(np.array(of_entry, dtype=np.int64))
        return keys if len(new) == len(keys) else keys[new]

    def _writer(self, kind: str, width: int, header: Header) -> MatrixWriter:
        if kind not in self._open:
            suffix = "faiss" if kind == "keys" else "npy"
            self._open[kind] = MatrixWriter(
                self.folder / f"{kind}-{self._segment:06d}.{suffix}", width, header, self._blocks
            )
        return self._open[kind]

    def unseen(self) -> list[RowBytes]:
        """The rows gathered since the last call; they are overwritten once the segment is finished."""
        found = []
        for kind, writer in self._open.items():
            before, after = self._unseen_before[kind], self._rows_before[kind] + writer.rows
            if after > before:
                found.append(RowBytes(self.layer.name, kind, before, after - before, writer.width, writer.unseen()))
            self._unseen_before[kind] = after
        return found

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make the open segment durable; returns its rows for the table `segments`."""
        rows = []
        for kind, writer in self._open.items():
            size, blocks = writer.finish()
            first = self._rows_before[kind]
            file = f"layers/{self.layer.folder}/{writer.path.name}"
            rows.append((segment, self.layer.name, kind, file, first, writer.rows, size, blocks))
            self._rows_before[kind] = self._unseen_before[kind] = first + writer.rows
        if self._open:
            sync_folder(self.folder)
        self._open = {}
        self._segment = segment + 1
        return rows

    def discard(self) -> None:
        """Remove the open segment, with those of its files that were finished before another one failed."""
        for writer in self._open.values():
            writer.discard()
        self._open = {}

    def take_entries(self) -> list[tuple[str, int, int]]:
        """The rows for the table `entries` since the last call."""
        ranges, self._ranges = self._ranges, []
        return [(self.layer.name, first, slots) for first, slots in ranges]

    def take_key_rows(self) -> list[tuple[str, int, NDArray[np.int64]]]:
        """The row for the table `key_rows` since the last call: one, or none."""
        if not self._key_rows:
            return []
        first, self._first_entry = self._first_entry, self._entries
        rows, self._key_rows = np.concatenate(self._key_rows), []
        return [(self.layer.name, first, rows)]
