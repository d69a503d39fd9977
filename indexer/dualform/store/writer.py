"""Writes a memory: rows gather in memory, and a commit writes segment files and makes them part of it.

Commit order: segment files under temporary names, checksummed, fsynced, renamed, folder fsynced; then the DuckDB
transaction that names them; then memory.json by atomic rename. A cut at any moment leaves the last commit whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import AlreadyExists
from dualform.rules import settings_of
from dualform.store import shard
from dualform.store.batch import Batch
from dualform.store.digests import digests
from dualform.store.direct_file import Blocks
from dualform.store.durable import sync_folder
from dualform.store.layer import Layer
from dualform.store.layer_writer import LayerWriter
from dualform.store.manifest import FileMark, Manifest, Shard
from dualform.store.probes import write_probe
from dualform.store.slot_columns import SlotColumns
from dualform.store.step_rows import step_rows
from dualform.store.tables import SLOTS, arrow_table, rows_table, tables_of
from dualform.store.weights import write_weights

SEGMENT_BYTES = 256 << 20
"""A commit comes after this much was appended: what waits in memory, and what a power cut can take from a training
that never flushes."""


def check_new_folder(path: Path) -> None:
    """Raises AlreadyExists where a memory cannot be recorded into `path` without touching what is there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AlreadyExists(
            f"{path} already exists and is not an empty folder.", hint="Record into a new folder, or remove this one."
        )


class Writer:
    """The one writer of a memory. Used from one thread."""

    def __init__(
        self,
        path: str | Path,
        *,
        layers: Sequence[Layer],
        skipped: Mapping[str, str],
        optimizer: str,
        rule: str,
        reason: str,
        initial: Mapping[str, NDArray[Any]],
        momentum: Mapping[str, NDArray[Any]],
        label_names: Mapping[str, Sequence[str]],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.path = Path(path)
        check_new_folder(self.path)
        self._segment_bytes = segment_bytes
        self._settings, self._tables = len(settings_of(rule)), tables_of(rule)
        spaces = list(dict.fromkeys(layer.space for layer in layers)) or ["sample"]
        # The first space's slots are the table `slots`, which is all that most memories have.
        names = {space: "slots" if not i else f"slots_{space}" for i, space in enumerate(spaces)}
        self._shard = Shard()
        folder = self.path / self._shard.folder
        self._slots = {space: SlotColumns(space) for space in spaces}
        blocks = Blocks()
        self._layers = {layer.name: LayerWriter(layer, folder, blocks) for layer in layers}
        for writer in self._layers.values():
            writer.folder.mkdir(parents=True)
        self._digested = {layer.name: layer.space for layer in layers if not layer.keys}
        self._database = folder / shard.FILE
        self._shard.tables = shard.create(self._database, {**self._tables, **dict.fromkeys(names.values(), SLOTS)})
        self.manifest = Manifest(
            layers=list(layers),
            skipped=dict(skipped),
            optimizer=optimizer,
            rule=rule,
            reason=reason,
            spaces=names,
            columns={space: dict(SLOTS) for space in spaces},
            shards=[self._shard],
        )
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in self._tables}
        self._rows["labels"] = [
            (dataset, label, name) for dataset, names in label_names.items() for label, name in enumerate(names)
        ]
        self._bytes = 0
        self._set_weights("initial", initial)
        if momentum:
            self._set_weights("momentum", momentum)
        for created in (folder / "layers", folder, self.path, self.path.parent):
            sync_folder(created)
        self.manifest.write(self.path)

    def append(self, batch: Batch) -> None:
        """Take one step's slots and logs. Raises BadInput for a user column that is new or changed its type."""
        for space, columns in batch.slots.items():
            self._slots[space].append(batch.step, columns)
            self._bytes += sum(column.nbytes for column in columns.values())
        for name, rows in batch.layers.items():
            self._bytes += self._layers[name].append(rows)
        for name, digest in digests(batch, self._digested).items():
            self._rows["digests"].append((batch.step, name, digest.keys, digest.columns))
        for log in batch.logs:
            for table, new in step_rows(log, self._settings).items():
                self._rows[table].extend(new)
        self._rows["defects"].extend((d.step, d.layer, d.reason) for d in batch.defects)
        self._rows["watch"].extend(astuple(row) for row in batch.watch)
        if self._bytes >= self._segment_bytes:
            self.commit()

    def commit(self) -> None:
        """Make everything appended so far durable and part of the memory."""
        if not self._bytes and not any(self._rows.values()) and not any(s.pending for s in self._slots.values()):
            return
        number = self._shard.commits
        for writer in self._layers.values():
            self._rows["segments"].extend(writer.finish(number))
        added = {name: rows_table(rows, self._tables[name]) for name, rows in self._rows.items() if rows}
        key_rows = [writer.take_key_rows() for writer in self._layers.values() if writer.layer.repeats]
        if key_rows:
            added["key_rows"] = pa.concat_tables(key_rows)
        for space, slots in self._slots.items():
            table = self.manifest.spaces[space]
            if new := slots.new_columns():
                shard.add_columns(self._database, table, new)
                self.manifest.columns[space] |= new
            if slots.pending:
                added[table] = arrow_table(slots.take(), self.manifest.columns[space])
        self._shard.tables = shard.append(self._database, number, added, self._shard.tables)
        self._shard.commits += 1
        self.manifest.write(self.path)
        self._rows = {name: [] for name in self._tables}
        self._bytes = 0

    def set_final(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Store the weights as the training left them, under the names of the model's state dict."""
        self._set_weights("final", weights)
        self.manifest.write(self.path)

    def add_probe(
        self,
        name: str,
        *,
        queries: Mapping[str, NDArray[np.float32]],
        labels: NDArray[np.int64] | None,
        outputs: NDArray[np.float32] | None,
    ) -> None:
        """Store queries under a name. Raises BadInput for a name that is taken or no plain word."""
        files, probe = write_probe(self.path, name, self.manifest, queries, labels, outputs)
        self.manifest.files |= files
        self.manifest.probes[name] = probe
        self.manifest.write(self.path)

    def close(self, finished: bool = True) -> None:
        """Commit, and say whether the training came to its end."""
        self.commit()
        self.manifest.recording = not finished
        self.manifest.write(self.path)

    def abandon(self) -> None:
        """Let go without a further commit: the memory stays as of the last one."""
        for writer in self._layers.values():
            writer.discard()

    def _set_weights(self, name: str, weights: Mapping[str, NDArray[Any]]) -> None:
        file, size, digest = write_weights(self.path, name, weights)
        self.manifest.files[file] = FileMark(size, digest)
