"""A memory as its files say it is: one consistent snapshot, read and let go.

Opening holds memory.json, the DuckDB tables and the segment files against each other. What is missing or altered is an
error that names the file, never a shorter answer: files are compared by size when a memory is opened, and by checksum
when their content is first used.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.answers import ProbeInfo
from dualform.errors import Damaged, NotFound
from dualform.store import shard
from dualform.store.layer import Layer
from dualform.store.manifest import Manifest
from dualform.store.matrix_file import flat_index_header, npy_header
from dualform.store.probes import StoredProbe
from dualform.store.rows import Keys, Rows, Segment, SegmentCache
from dualform.store.tables import quoted, rows_table, tables_of
from dualform.store.weights import read_weights


class Snapshot:
    """One snapshot of a memory. Reads; never writes."""

    def __init__(self, path: Path, manifest: Manifest, tables: dict[str, pa.Table], cache: SegmentCache) -> None:
        self.path = path
        self.manifest = manifest
        self.format = manifest.format
        self.layers: dict[str, Layer] = {layer.name: layer for layer in manifest.layers}
        self.skipped = manifest.skipped
        self.optimizer, self.rule, self.reason = manifest.optimizer, manifest.rule, manifest.reason
        self._tables = tables
        self._cache = cache
        self._folder = path / manifest.shards[0].folder
        self.segments = self._read_segments()
        self._databases: dict[str, duckdb.DuckDBPyConnection] = {}
        self._loading = Lock()

    @classmethod
    def open(cls, path: str | Path, cache: SegmentCache | None = None) -> Snapshot:
        """The memory in a folder, as of its last commit.

        Raises NotAMemory where there is none, Damaged where a file is missing, cut short or altered.
        """
        folder = Path(path)
        manifest = Manifest.read(folder)
        if len(manifest.shards) != 1:
            raise Damaged(f"{folder} has {len(manifest.shards)} shards; this version reads memories of one.")
        part = manifest.shards[0]
        kinds = {manifest.spaces[space]: types for space, types in manifest.columns.items()}
        known = tables_of(manifest.rule)
        # A memory of an earlier version lacks the tables that came later.
        there = {name: types for name, types in {**known, **kinds}.items() if name in part.tables}
        tables = {name: rows_table([], types) for name, types in known.items() if name not in there}
        tables |= shard.read(folder / part.folder / shard.FILE, there, part.tables)
        memory = cls(folder, manifest, tables, cache or SegmentCache())
        memory._check_files()
        return memory

    @property
    def commits(self) -> int:
        """Number of commits that this snapshot holds."""
        return self.manifest.shards[0].commits

    @property
    def recording(self) -> bool:
        return self.manifest.recording

    @property
    def steps(self) -> int:
        """Recorded steps: 1 + the last step that a slot or a log names."""
        last = [-1]
        for name in ("steps", *self.manifest.spaces.values()):
            column = self._tables[name]["step"]
            if len(column):
                last.append(column[-1].as_py())
        return 1 + max(last)

    def layer(self, name: str) -> Layer:
        """Raises NotFound, listing the layers that exist."""
        if name not in self.layers:
            reason = self.manifest.skipped.get(name)
            raise NotFound(
                f"there is no layer {name!r}" + (f": it was not recorded ({reason})." if reason else "."),
                hint=f"Layers: {', '.join(self.layers)}.",
                field="layer",
            )
        return self.layers[name]

    def count(self, space: str) -> int:
        """Slots of a space."""
        return int(self._tables[self.manifest.spaces[space]].num_rows)

    def columns(self, space: str) -> dict[str, str]:
        """Slot columns and their DuckDB types."""
        return dict(self.manifest.columns[space])

    def column(self, space: str, name: str) -> NDArray[Any]:
        """One slot column in slot order: an array, masked where it has NULLs; texts as objects, NULL as None."""
        return as_numpy(self._tables[self.manifest.spaces[space]][name])

    def table(self, name: str) -> pa.Table:
        """A table other than slots, for example steps, factors or defects."""
        return self._tables[name]

    def tables(self, space: str) -> duckdb.DuckDBPyConnection:
        """A cursor on the snapshot's tables in memory, `slots` being those of this space."""
        with self._loading:
            if space not in self._databases:
                self._databases[space] = self._load(space)
            return self._databases[space].cursor()

    def _load(self, space: str) -> duckdb.DuckDBPyConnection:
        database = duckdb.connect(":memory:")
        for name, rows in self._tables.items():
            database.register(f"arrow_{name}", rows)
            database.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM {quoted(f'arrow_{name}')}")
            database.unregister(f"arrow_{name}")
        table = self.manifest.spaces[space]
        if table != "slots":
            database.execute("ALTER TABLE slots RENAME TO slots_of_the_first_space")
            database.execute(f"CREATE VIEW slots AS SELECT * FROM {quoted(table)}")
        return database

    def close(self) -> None:
        """Let go of the tables in memory; a later question loads them again."""
        with self._loading:
            self._databases.clear()

    def keys(self, layer: str) -> Keys:
        """Raises NotFound where the recorder kept no keys."""
        found = self.layer(layer)
        if not found.keys:
            raise NotFound(
                f"this memory holds no keys of layer {layer!r}: it was recorded with keys=False.",
                hint="Replay its training with the question: dualform.Replay(model, optimizer, path, [question]).",
                field="layer",
            )
        slots = self.count(found.space)
        of_slot = self._key_rows(found) if found.repeats else None
        segments = self.segments.get((layer, "keys"), [])
        return Keys(segments, found.d_in, flat_index_header, self._cache, slots, of_slot)

    def values(self, layer: str) -> Rows:
        """Raises NotFound where the recorder kept no values."""
        found = self.layer(layer)
        if not found.values:
            raise NotFound(f"layer {layer!r} was recorded without values.", hint="Record with values=True.")
        return Rows(self.segments.get((layer, "values"), []), found.d_out, npy_header, self._cache)

    def initial(self) -> dict[str, NDArray[Any]]:
        return read_weights(self.path, "initial", self.manifest.files) or {}

    def final(self) -> dict[str, NDArray[Any]] | None:
        """None where the training was cut off before its end."""
        return read_weights(self.path, "final", self.manifest.files)

    def momentum(self) -> dict[str, NDArray[Any]]:
        """Momentum buffers that the optimizer already had when recording began."""
        return read_weights(self.path, "momentum", self.manifest.files) or {}

    @property
    def probes(self) -> dict[str, ProbeInfo]:
        entries = self.manifest.probes.items()
        return {name: ProbeInfo(name, entry["rows"], tuple(entry["layers"])) for name, entry in entries}

    def probe(self, name: str) -> StoredProbe:
        """Raises NotFound, listing the probes that exist."""
        if name not in self.manifest.probes:
            known = ", ".join(self.manifest.probes) or "none"
            raise NotFound(f"there is no probe {name!r}.", hint=f"Probes: {known}.", field="probe")
        return StoredProbe(self.path, name, self.manifest)

    def _key_rows(self, layer: Layer) -> NDArray[np.int64]:
        table = self._tables["key_rows"]
        rows = table.filter(pa.compute.equal(table["layer"], layer.name))["key_row"]
        return np.ascontiguousarray(rows.to_numpy(), dtype=np.int64)

    def _read_segments(self) -> dict[tuple[str, str], list[Segment]]:
        found: dict[tuple[str, str], list[Segment]] = {}
        for row in self._tables["segments"].to_pylist():
            segment = Segment(self._folder / row["file"], row["first_row"], row["rows"], row["bytes"], row["checksum"])
            found.setdefault((row["layer"], row["kind"]), []).append(segment)
        return found

    def _check_files(self) -> None:
        """Sizes of all files, and that each layer's segments hold as many rows as it has slots."""
        expected = {s.path: s.bytes for segments in self.segments.values() for s in segments}
        expected |= {self.path / name: mark.bytes for name, mark in self.manifest.files.items()}
        for path, size in expected.items():
            if not path.is_file():
                raise Damaged(f"{path} is missing.")
            if path.stat().st_size != size:
                raise Damaged(f"{path} has {path.stat().st_size} bytes where {size} were committed.")
        for layer in [layer for layer in self.layers.values() if layer.keys]:
            keys, slots = self.keys(layer.name), self.count(layer.space)
            of_slot = keys.row_of_slot
            held = {"keys": keys.rows if of_slot is None else len(of_slot)}
            if layer.values:
                held["values"] = self.values(layer.name).rows
            for kind, rows in held.items():
                if rows != slots:
                    raise Damaged(f"{self._folder}: layer {layer.name!r} has {rows} {kind} for {slots} slots.")


def as_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """An Arrow column as an array, masked where numbers are NULL; texts as objects, NULL as None."""
    if pa.types.is_string(column.type):
        return np.asarray(column.to_numpy(), dtype=object)
    if not column.null_count:
        return np.asarray(column.to_numpy())
    mask = column.is_null().to_numpy()
    zero = False if pa.types.is_boolean(column.type) else 0
    return np.ma.MaskedArray(column.fill_null(zero).to_numpy(), mask=mask)
