"""Writes a memory: rows gather in RAM, go to a journal every few seconds, and become segments with a commit.

What a frame of the journal has already, or will not have because it is too much for one, is written to its segment
ahead of the commit, so that little waits in memory.

Commit order: segment files without their names, checksummed, fsynced, named, folder fsynced; then the DuckDB
transaction that names them; then memory.json by atomic rename; then the journal of the rows before it goes. A cut at
any moment leaves the last commit and the frames since whole.

Whether a memory, or a shard of one, can be begun in a folder without touching what is there.

A recorder that is killed while it creates a memory leaves a folder without memory.json, which is written last. That is
no memory yet: the next recorder clears it. A folder that holds anything else is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import AlreadyExists, BadInput, DualformError, NotAMemory
from dualform.store import shard
from dualform.store.batch import TOLD, Batch, Ending, Header, Mark
from dualform.store.files.durable_files import (
    Blocks,
    checksum,
    digest_of,
    make_folder,
    make_folders,
    remove_all,
    sync_folder,
)
from dualform.store.journal import JournalWriter
from dualform.store.layer import Layer
from dualform.store.locks import Writing, WritingLock, being_written, held_alone, writing
from dualform.store.manifest import (
    FILE,
    SHARD_FILE,
    FileMark,
    Manifest,
    Shard,
    first_manifest,
    is_only_begun,
    shard_folder,
)
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.previews.stored_previews import FOLDER, dataset_name, free_name, preview_folder, write_preview_set
from dualform.store.query_sets import QuerySetArrays, write_query_set
from dualform.store.shard import check_writable
from dualform.store.tables import OTHERS, TABLES, Increment, rows_table, summed, view_statements
from dualform.store.weights import write_buffers, write_weights
from dualform.store.writing.rows_writer import LayerWriter, OthersWriter
from dualform.store.writing.slot_rows import LogRows, SlotRows


def check_new_folder(path: Path) -> None:
    """Raises AlreadyExists where a memory cannot be recorded into `path` without touching what is there, Locked where
    another process records into it, and BadInput where it could not be written.
    """
    check_writable(path)
    first = path / shard_folder(0)
    if first.is_dir() and (found := writing(first)).going_on:
        raise being_written(first, found)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not is_nothing(path))):
        raise AlreadyExists(
            f"{path} already exists and is not an empty folder.", hint="Record into a new folder, or remove this one."
        )


def check_new_shard(path: Path, part: Shard) -> None:
    """Raises NotAMemory where no memory waits for this shard, AlreadyExists where it has been written."""
    if part.folder not in [known.folder for known in Manifest.read(path).shards]:
        raise NotAMemory(
            f"{path} was not created for {part.folder}.", hint="Record with the same number of ranks on every rank."
        )
    if (path / part.folder).exists():
        raise AlreadyExists(f"{path / part.folder} already exists.", hint="Record into a new folder.")


def is_nothing(path: Path) -> bool:
    """Whether a folder holds no more than what a kill leaves while a memory is created: no rows, and nobody's files."""
    first = path / shard_folder(0)
    if not is_only_begun(path):
        return False
    if first.is_dir() and any(first.iterdir()) and writing(first).going_on is not False:
        return False  # somebody may be creating it at this moment
    database = first / shard.FILE
    if not database.is_file():
        return True
    try:
        with shard.opened(database) as connection:
            return not connection.execute("SELECT 1 FROM commits LIMIT 1").fetchall()
    except duckdb.Error:  # it was not whole yet
        return True
    except DualformError:
        return False


@contextmanager
def beginning(path: Path) -> Iterator[None]:
    """The moment in which one process begins a memory in a folder, which it makes, and has cleared of what is nothing.

    Every folder that is made on the way is on disk. Raises as `check_new_folder`, and Locked where another process is
    about to begin there, too.
    """
    check_new_folder(path)
    make_folders(path)
    with held_alone(path, being_written(path / shard_folder(0), Writing(True))):
        check_new_folder(path)
        for left in path.iterdir():
            remove_all(left)
        yield


SEGMENT_BYTES = 512 << 20
"""A commit comes after this much was appended."""
WRITTEN_AT_ONCE = 32 << 20
"""After how much more the blocks of segments are written that are full."""
TABLE_BYTES = 8 << 20
"""A commit comes after so many bytes of tables' rows: they wait in memory."""
JOURNAL_SECONDS = 5.0
"""How long rows wait at most before they are on disk: what a crash costs, beside the write that it interrupts.

docs/format.md and docs/durability.md state it; a test compares them.
"""
FRAME_BYTES = 64 << 20
"""Where more than this came within that time, it is committed at once: it would soon be written a second time."""
MOST_MARKS = 1000
"""Of which a memory keeps the last ones."""


class Writer:
    """The one writer of a shard. Used from one thread."""

    def __init__(
        self,
        header: Header,
        *,
        shard_number: int = 0,
        shards: int = 1,
        segment_bytes: int = SEGMENT_BYTES,
        journal_seconds: float | None = None,
    ) -> None:
        """Creates the memory of so many `shards`, or one of its further shards; weights are the first one's to write.

        `journal_seconds`: JOURNAL_SECONDS where None. Raises AlreadyExists where something is there already, Locked
        where another process records there, NotAMemory where a further shard comes before the first.
        """
        self.path = header.path
        self._segment_bytes = segment_bytes
        self._journal_seconds = JOURNAL_SECONDS if journal_seconds is None else journal_seconds
        self._shard = Shard(shard_folder(shard_number))
        self._folder = self.path / self._shard.folder
        self._place = (self._folder, SHARD_FILE) if shard_number else (self.path, FILE)
        with nullcontext() if shard_number else beginning(self.path):
            if shard_number:
                check_new_shard(self.path, self._shard)
            make_folder(self._folder)
            self._lock = WritingLock(self._folder)
        make_folder(self._folder / "layers")
        further = [] if shard_number else [Shard(shard_folder(number)) for number in range(1, shards)]
        self.manifest = first_manifest(header, [self._shard, *further])
        self._blocks = Blocks()
        self._layers = {layer.name: self._layer_writer(layer) for layer in header.layers}
        self._marks: list[Mark] = []
        """Those that no manifest has yet."""
        self._others = OthersWriter(header.others, self._folder, self._blocks)
        self._slots = SlotRows(layer.space for layer in header.layers)
        self._logs = LogRows(header.settings, header.label_names, several=len(header.optimizers) > 1)
        self._products: list[tuple[Any, ...]] = []
        """Rows for the table of that name since they were last taken."""
        self._width = self._columns_known()
        self._bytes = 0
        """About what came since the last commit."""
        self._written_bytes = 0
        """Of which so many had come when full blocks were last written."""
        self._database = self._folder / shard.FILE
        self._shard.tables = shard.create(self._database, self.manifest.tables(), self._views())
        self._journaled: list[dict[str, pa.Table]] = []
        self._journaled_bytes = 0
        self._table_bytes = 0
        """Of the journaled rows of tables."""
        self._journal = JournalWriter(self._folder, 0)
        self._durable_at = time.monotonic()
        if not shard_number:
            self._set_weights("initial", header.initial)
            if header.buffers:
                self._mark(*write_buffers(self.path, header.buffers))
        for created in (self._folder / "layers", self._folder, self.path):
            sync_folder(created)
        self._write_manifest()

    def append(self, batch: Batch) -> None:
        """Take one step's slots and logs. Raises BadInput, naming what does not fit what came before."""
        self._marks += [batch.mark] if batch.mark else []
        self._join(batch.joined)
        placed = self._slots.append(batch)
        self._append_rows(batch, placed)
        self._bytes += self._others.append(batch.others)
        self._logs.append(batch, {name: w.layer.space for name, w in self._layers.items() if not w.layer.keys})
        if batch.joined or self._columns_known() != self._width:
            self._evolve(batch.joined)
        if self._bytes >= self._segment_bytes:
            self.commit()
        else:
            self.tick()
            self._write_ahead()

    def _append_rows(self, batch: Batch, placed: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """The layers' rows; `placed`: (space, call) -> first slot and number of slots."""
        self._bytes += batch.said_bytes
        for name, calls in batch.layers.items():
            writer = self._layers[name]
            for rows in calls:
                where = placed.get((writer.layer.space, rows.call))
                if where is None:
                    raise BadInput(
                        f"layer {name!r} has rows of call {rows.call}, and space {writer.layer.space!r} no such call.",
                        field="layers",
                    )
                self._bytes += writer.append(rows, *where)
                if rows.product is not None and where[1]:
                    self._products.append((batch.step, name, *where, *astuple(rows.product)))

    def _join(self, layers: Sequence[Layer]) -> None:
        """Layers are seen for the first time."""
        for layer in layers:
            self._layers[layer.name] = self._layer_writer(layer)
            self._slots.add_space(layer.space)
        if layers:
            sync_folder(self._folder / "layers")

    def _layer_writer(self, layer: Layer) -> LayerWriter:
        writer = LayerWriter(layer, self._folder, self._blocks)
        make_folder(writer.folder)
        return writer

    def tick(self) -> float:
        """Make the rows of the last seconds durable where it is time; returns the seconds until it will be."""
        left = self._durable_at + self._journal_seconds - time.monotonic()
        if left > 0:
            return left
        self._save()
        return self._journal_seconds

    def _save(self) -> None:
        """Make the rows since the last frame of the journal durable: as a frame, or with a commit where they are too
        many for one.
        """
        if self._bytes - self._journaled_bytes >= FRAME_BYTES or self._table_bytes >= TABLE_BYTES:
            self.commit()
            return
        tables = self._take_tables()
        if tables:
            rows = [rows for writer in self._layers.values() for rows in writer.unseen()] + self._others.unseen()
            self._journal.append(Increment(tables, rows))
            if self._shard.journal != self._journal.begun:
                self._shard.journal = self._journal.begun
                self._write_manifest()
            self._journaled.append(tables)
            self._journaled_bytes = self._bytes
            self._table_bytes += sum(rows.nbytes for rows in tables.values())
        self._durable_at = time.monotonic()

    def _write_ahead(self) -> None:
        """Write full blocks where it is time and no frame will need them: there is none before the next commit if more
        came than one may have, and one that was written has all of them.
        """
        unseen = self._bytes - self._journaled_bytes
        if self._bytes - self._written_bytes >= WRITTEN_AT_ONCE and (not unseen or unseen >= FRAME_BYTES):
            for writer in self._layers.values():
                writer.write()
            self._others.write()
            self._written_bytes = self._bytes

    def _take_tables(self) -> dict[str, pa.Table]:
        """The rows since the last call by table; a table without new rows is absent."""
        tables = self._slots.take() | self._logs.take()
        writers = self._layers.values()
        entries = [row for writer in writers for row in writer.take_entries()]
        key_rows = [row for writer in writers for row in writer.take_key_rows()]
        found: dict[str, list[Any]] = {
            "entries": entries,
            "products": self._products,
            "key_rows": key_rows,
            "other_rows": self._others.take_moments(),
        }
        self._products = []
        types = {**TABLES, **OTHERS}
        return tables | {name: rows_table(rows, types[name]) for name, rows in found.items() if rows}

    def commit(self) -> None:
        """Make everything appended so far durable and part of the segments and tables."""
        self._journaled.append(self._take_tables())
        added = summed(self._journaled, self.manifest.tables())
        marks, self._marks = self._marks, []
        if marks and not added:
            self._add_marks(marks)
            self._write_manifest()
        if added:
            number = self._shard.commits
            segments = [row for writer in self._layers.values() for row in writer.finish(number)]
            if segments:
                added["segments"] = rows_table(segments, TABLES["segments"])
            if others := self._others.finish(number):
                added["other_segments"] = rows_table(others, OTHERS["other_segments"])
            self._bytes = self._written_bytes = 0
            self._shard.tables = shard.append(self._database, number, added, self._shard.tables)
            self._shard.commits, self._shard.journal = self._shard.commits + 1, ""
            self._add_marks(marks)
            self._write_manifest()
            self._journal.remove()
            self._journal = JournalWriter(self._folder, self._shard.commits)
        self._journaled, self._journaled_bytes, self._table_bytes = [], 0, 0
        self._durable_at = time.monotonic()

    def _add_marks(self, marks: Sequence[Mark]) -> None:
        """Everything so far is on disk."""
        told = {name: self._shard.tables[name].rows if name in self._shard.tables else 0 for name in TOLD}
        for mark in marks:
            if not any(mark == replace(own, rows={}) for own in self.manifest.marks):
                self.manifest.marks.append(replace(mark, rows=told))
        del self.manifest.marks[:-MOST_MARKS]

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """Store queries under a name. Raises BadInput for a name that is taken or no plain word."""
        files, entry = write_query_set(self.path, self.manifest, query_set)
        self.manifest.files |= files
        self.manifest.query_sets[query_set.name] = entry
        self._write_manifest()

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet, most_bytes: int | None = None) -> None:
        """Store what the samples of a dataset looked like. Raises BadInput where that is known already, for a sample
        that cannot be stored, and for more than `most_bytes`.
        """
        name = dataset_name(dataset)
        if name in self.manifest.preview_sets:
            said = f"of dataset {name!r}" if name else "of samples without a dataset"
            raise BadInput(
                f"A preview set {said} already exists.", hint="A dataset has one preview set.", field="dataset"
            )
        self._save()  # encoding may take long, and what came before must not wait for it
        file = free_name(f"{FOLDER}/{preview_folder(name)}", self.manifest.files)
        mark, entry = write_preview_set(self.path, file, preview_set.samples, preview_set.content, most_bytes)
        self.manifest.files[file], self.manifest.preview_sets[name] = mark, entry
        self._write_manifest()

    def close(self, ending: Ending = Ending()) -> None:  # noqa: B008 - it is frozen
        """Commit, and say how the training ended. Weights are the first shard's to write."""
        if ending.final is not None and self._place[0] == self.path:
            self._set_weights("final", ending.final)
            self.manifest.final = {name: digest_of(array) for name, array in ending.final.items()}
        self.manifest.buffers = {
            name: {kind: checksum(array.tobytes()) for kind, array in own.items()}
            for name, own in ending.buffers.items()
        }
        if ending.skipped is not None:
            self.manifest.skipped = dict(ending.skipped)
        self._marks += [ending.mark] if ending.mark else []
        self.commit()
        self.manifest.recording = not ending.finished
        self._write_manifest()
        self._lock.release(ended=ending.finished)

    def abandon(self) -> None:
        """Let go without a further commit: the memory stays as of what is durable."""
        for writer in self._layers.values():
            writer.discard()
        self._others.discard()
        self._journal.close()
        self._lock.release(ended=False)

    def _write_manifest(self) -> None:
        """Raises AlreadyExists where another process has gone on with this training: its run must not be lost."""
        if self._continued():
            raise AlreadyExists(
                f"{self.path} is no longer recorded by this process: another one resumed the training.",
                hint="Let one process record a training at a time.",
            )
        self.manifest.write(*self._place)

    def _continued(self) -> bool:
        """By a run of this memory or, where it is a further run itself, by one that came later."""
        if not self._place[0].joinpath(self._place[1]).exists():
            return False
        above = self.path.parent
        beside = Manifest.read(above).runs if self.path.name.startswith("run-") and (above / FILE).exists() else []
        return bool(Manifest.read(*self._place).runs) or any(run.folder > self.path.name for run in beside)

    def _evolve(self, joined: Sequence[Layer]) -> None:
        """Make room for layers, spaces, columns and settings that the training had not shown before."""
        self.manifest.layers += joined
        for layer in joined:
            self.manifest.skipped.pop(layer.name, None)
        self.manifest.spaces += [space for space in self._slots.spaces if space not in self.manifest.spaces]
        self.manifest.columns |= {**self._slots.columns(), "steps": dict(self._logs.settings)}
        self.manifest.columns |= {name: dict(types) for name, types in self._logs.further.items()}
        self._shard.tables = shard.evolve(
            self._database, self._shard.commits, self.manifest.tables(), self._views(), self._shard.tables
        )
        self._width = self._columns_known()
        self._write_manifest()

    def _columns_known(self) -> int:
        """How many spaces, columns, settings and tables have come so far."""
        return self._slots.width + len(self._logs.settings) + len(self._logs.further)

    def _views(self) -> list[str]:
        return view_statements(self.manifest.spaces, self.manifest.columns)

    def _set_weights(self, name: str, weights: Mapping[str, NDArray[Any]]) -> None:
        self._mark(*write_weights(self.path, name, weights))

    def _mark(self, file: str, size: int, digest: str) -> None:
        self.manifest.files[file] = FileMark(size, digest)
