"""Writes a memory: rows gather in memory, go to a journal every few seconds, and become segments with a commit.

Commit order: segment files under temporary names, checksummed, fsynced, renamed, folder fsynced; then the DuckDB
transaction that names them; then memory.json by atomic rename; then the journal of the rows before it goes. A cut at
any moment leaves the last commit and the frames since whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import AlreadyExists, NotAMemory
from dualform.store import shard
from dualform.store.batch import Batch
from dualform.store.direct_file import Blocks
from dualform.store.durable import checksum, sync_folder
from dualform.store.gathered import Gathered
from dualform.store.increment import summed
from dualform.store.journal import JournalWriter
from dualform.store.layer import Layer
from dualform.store.manifest import FILE, SHARD_FILE, FileMark, Manifest, Shard, first_columns, shard_folder
from dualform.store.probes import write_probe
from dualform.store.tables import SETTINGS, ColumnTypes
from dualform.store.views import view_name, view_statement
from dualform.store.weights import write_weights

SEGMENT_BYTES = 256 << 20
"""A commit comes after this much was appended: what waits in memory."""
JOURNAL_SECONDS = 5.0
"""How long rows wait at most before they are on disk: what a crash costs, beside the write that it interrupts."""
FRAME_BYTES = 64 << 20
"""Where more than this came within that time, it is committed at once: it would soon be written a second time."""


def check_new_folder(path: Path) -> None:
    """Raises AlreadyExists where a memory cannot be recorded into `path` without touching what is there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AlreadyExists(
            f"{path} already exists and is not an empty folder.", hint="Record into a new folder, or remove this one."
        )


def check_new_shard(path: Path, part: Shard) -> None:
    """Raises NotAMemory where no memory waits for this shard, AlreadyExists where it has been written."""
    if part.folder not in [known.folder for known in Manifest.read(path).shards]:
        raise NotAMemory(f"{path} has no place for {part.folder}.", hint="Say how many shards there are: shards=…")
    if (path / part.folder).exists():
        raise AlreadyExists(f"{path / part.folder} already exists.", hint="Record into a new folder.")


class Writer:
    """The one writer of a shard. Used from one thread."""

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
        aliases: Mapping[str, str] | None = None,
        settings: ColumnTypes = SETTINGS,
        shard_number: int = 0,
        shards: int = 1,
        segment_bytes: int = SEGMENT_BYTES,
        journal_seconds: float | None = None,
    ) -> None:
        """Creates the memory of so many `shards`, or one of its further shards; weights are the first one's to write.

        `settings`: DuckDB types of those that the update rule names; others get their columns when they are first seen.
        `aliases`: as in the manifest.
        `journal_seconds`: JOURNAL_SECONDS where None. Raises AlreadyExists where something is there already,
        NotAMemory where a further shard comes before the first.
        """
        self.path = Path(path)
        self._segment_bytes = segment_bytes
        self._journal_seconds = JOURNAL_SECONDS if journal_seconds is None else journal_seconds
        self._shard = Shard(shard_folder(shard_number))
        self._folder = self.path / self._shard.folder
        self._place = (self._folder, SHARD_FILE) if shard_number else (self.path, FILE)
        if shard_number:
            check_new_shard(self.path, self._shard)
        else:
            check_new_folder(self.path)
        self._folder.joinpath("layers").mkdir(parents=True)
        self._gathered = Gathered(self._folder, Blocks(), layers, label_names, settings)
        spaces = list(self._gathered.spaces) or ["sample"]
        self.manifest = Manifest(
            layers=list(layers),
            skipped=dict(skipped),
            optimizer=optimizer,
            rule=rule,
            reason=reason,
            spaces=spaces,
            columns=first_columns(spaces, settings),
            aliases=dict(aliases or {}),
            shards=[self._shard, *([] if shard_number else [Shard(shard_folder(n)) for n in range(1, shards)])],
        )
        self._database = self._folder / shard.FILE
        self._shard.tables = shard.create(self._database, self.manifest.tables(), self._views())
        self._journaled: list[dict[str, pa.Table]] = []
        self._journaled_bytes = 0
        self._journal = JournalWriter(self._folder, 0)
        self._durable_at = time.monotonic()
        if not shard_number:
            self._set_weights("initial", initial)
            if momentum:
                self._set_weights("momentum", momentum)
        for created in (self._folder / "layers", self._folder, self.path, self.path.parent):
            sync_folder(created)
        self._write_manifest()

    def append(self, batch: Batch) -> None:
        """Take one step's slots and logs. Raises BadInput for a user column that is new or changed its type."""
        self._gathered.append(batch)
        if batch.joined or self._gathered.changed:
            self._evolve(batch.joined)
        if self._gathered.bytes >= self._segment_bytes:
            self.commit()
        else:
            self.tick()

    def tick(self) -> float:
        """Make the rows of the last seconds durable where it is time; returns the seconds until it will be."""
        left = self._durable_at + self._journal_seconds - time.monotonic()
        if left > 0:
            return left
        if self._gathered.bytes - self._journaled_bytes >= FRAME_BYTES:
            self.commit()
            return self._journal_seconds
        increment = self._gathered.take()
        if increment.tables:
            self._journal.append(increment)
            self._journaled.append(increment.tables)
            self._journaled_bytes = self._gathered.bytes
        self._durable_at = time.monotonic()
        return self._journal_seconds

    def commit(self) -> None:
        """Make everything appended so far durable and part of the segments and tables."""
        self._journaled.append(self._gathered.take_tables())
        added = summed(self._journaled, self.manifest.tables())
        if added:
            number = self._shard.commits
            if segments := self._gathered.finish(number):
                added["segments"] = segments
            self._shard.tables = shard.append(self._database, number, added, self._shard.tables)
            self._shard.commits += 1
            self._write_manifest()
            self._journal.remove()
            self._journal = JournalWriter(self._folder, self._shard.commits)
        self._journaled, self._journaled_bytes = [], 0
        self._durable_at = time.monotonic()

    def set_final(self, weights: Mapping[str, NDArray[Any]], buffers: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Store the weights as the training left them, under the names of the model's state dict.

        `buffers`: those that the optimizer had by then, by parameter name, of which a checksum is kept.
        """
        self._set_weights("final", weights)
        self.manifest.buffers = {name: checksum(array.tobytes()) for name, array in (buffers or {}).items()}
        self._write_manifest()

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
        self._write_manifest()

    def close(self, finished: bool = True) -> None:
        """Commit, and say whether the training came to its end."""
        self.commit()
        self.manifest.recording = not finished
        self._write_manifest()

    def abandon(self) -> None:
        """Let go without a further commit: the memory stays as of what is durable."""
        self._gathered.discard()
        self._journal.close()

    def _write_manifest(self) -> None:
        self.manifest.write(*self._place)

    def _evolve(self, joined: Sequence[Layer]) -> None:
        """Make room for layers, spaces, columns and settings that the training had not shown before."""
        self.manifest.layers += joined
        for layer in joined:
            self.manifest.skipped.pop(layer.name, None)
        self.manifest.spaces += [space for space in self._gathered.spaces if space not in self.manifest.spaces]
        self.manifest.columns |= self._gathered.columns()
        self._shard.tables = shard.evolve(
            self._database, self._shard.commits, self.manifest.tables(), self._views(), self._shard.tables
        )
        self._gathered.changed = False
        self._write_manifest()

    def _views(self) -> list[str]:
        columns, spaces = self.manifest.columns, self.manifest.spaces
        return [view_statement(view_name(s, spaces), s, columns["samples"], columns[s]) for s in spaces]

    def _set_weights(self, name: str, weights: Mapping[str, NDArray[Any]]) -> None:
        file, size, digest = write_weights(self.path, name, weights)
        self.manifest.files[file] = FileMark(size, digest)
