"""Writes one layer's keys and values: a pair of segment files for each commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import xxhash

from dualform.store.batch import LayerRows
from dualform.store.direct_file import Blocks
from dualform.store.durable import sync_folder
from dualform.store.layer import Layer
from dualform.store.matrix_file import Header, MatrixWriter, flat_index_header, npy_header
from dualform.store.tables import TABLES, arrow_table

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
        self._row_of_key: dict[bytes, int] = {}
        self._distinct = 0
        self._slots = 0
        self._key_rows: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def append(self, rows: LayerRows) -> int:
        """Add one step's rows; returns the bytes gathered, none of a layer whose keys are not stored."""
        if not self.layer.keys:
            return 0
        keys = self._distinct_keys(rows.keys) if self.layer.repeats else rows.keys
        written = keys.nbytes
        if len(keys):
            self._writer("keys", self.layer.d_in, flat_index_header).append(keys)
        if self.layer.values and rows.values is not None:
            self._writer("values", self.layer.d_out, npy_header).append(rows.values)
            written += rows.values.nbytes
        return written

    def _distinct_keys(self, keys: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The keys not stored before, bit for bit; notes the row of every slot's key."""
        new: list[int] = []
        of_slot = []
        # As bytes, all at once: one row of an array after the other holds the training up for longer.
        each = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1] * 4))).reshape(-1)
        contents = cast(list[bytes], each.tolist())
        for slot, digest in enumerate(map(xxhash.xxh3_128_digest, contents)):
            row = self._row_of_key.get(digest)
            if row is None:
                row = self._distinct
                self._distinct += 1
                new.append(slot)
                if len(self._row_of_key) < _MOST_REMEMBERED:
                    self._row_of_key[digest] = row
            of_slot.append(row)
        self._key_rows.append(np.array(of_slot, dtype=np.int64))
        return keys if len(new) == len(keys) else keys[new]

    def _writer(self, kind: str, width: int, header: Header) -> MatrixWriter:
        if kind not in self._open:
            suffix = "faiss" if kind == "keys" else "npy"
            self._open[kind] = MatrixWriter(
                self.folder / f"{kind}-{self._segment:06d}.{suffix}", width, header, self._blocks
            )
        return self._open[kind]

    def finish(self, segment: int) -> list[tuple[Any, ...]]:
        """Make the open segment durable; returns its rows for the table `segments`."""
        rows = []
        for kind, writer in self._open.items():
            size, digest = writer.finish()
            first = self._rows_before[kind]
            file = f"layers/{self.layer.folder}/{writer.path.name}"
            rows.append((segment, self.layer.name, kind, file, first, writer.rows, size, digest))
            self._rows_before[kind] = first + writer.rows
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

    def take_key_rows(self) -> pa.Table:
        """The rows for the table `key_rows` since the last commit."""
        rows = np.concatenate([np.empty(0, dtype=np.int64), *self._key_rows])
        self._key_rows = []
        slots = np.arange(self._slots, self._slots + len(rows), dtype=np.int64)
        self._slots += len(rows)
        columns = {"layer": [self.layer.name] * len(rows), "slot": slots, "key_row": rows}
        return arrow_table(columns, TABLES["key_rows"])
