"""Reads a stored preview set: the file is held against its checksum before anything of it is shown."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.answers import Previews
from dualform.answers.contents import MOST_BYTES
from dualform.errors import BadInput, Damaged, DualformError, NotAMemory
from dualform.faults import shortage
from dualform.store.durable_files import checksum_file
from dualform.store.manifest import FileMark
from dualform.store.missing_files import damaged, unreadable
from dualform.store.previews.content import row_bytes
from dualform.store.previews.found_rows import FoundRows
from dualform.store.previews.kinds import KINDS
from dualform.store.previews.preview_file import write_batches

HELD_BATCHES = 16 << 20
"""Bytes of batches that are held while samples of one question are read."""


class StoredPreviewSet:
    """One file. Used from one thread at a time, or several."""

    def __init__(self, path: Path, kind: str, mark: FileMark) -> None:
        """Raises Damaged where the file is not what was committed."""
        self._path, self.kind, self._mark = path, kind, mark
        self._state = self._verified()
        with self._opened() as reader:
            columns = [reader.get_batch(place).column("sample") for place in range(reader.num_record_batches)]
            said = reader.schema.metadata or {}
        self.scale: tuple[float, float] | None = None
        if b"scale" in said:
            least, greatest = json.loads(said[b"scale"])
            self.scale = float(least), float(greatest)
        self.samples = np.concatenate([np.zeros(0, dtype=np.int64), *(own.to_numpy() for own in columns)])
        """int64[n], in the order of the file."""
        self._starts = np.cumsum([0, *map(len, columns)])
        self._order = np.argsort(self.samples, kind="stable")

    @classmethod
    def of(cls, run: Path, entry: Mapping[str, Any], files: Mapping[str, FileMark]) -> StoredPreviewSet:
        """That of a run which its manifest has this entry of. Raises Damaged, naming the file."""
        return cls(run / entry["file"], entry["kind"], files[entry["file"]])

    @property
    def nbytes(self) -> int:
        """Bytes that it holds in memory."""
        return int(self.samples.nbytes + self._order.nbytes + self._starts.nbytes)

    def rows(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[m]: where in the file each sample is, -1 where it is not."""
        if not len(self.samples):
            return np.full(len(samples), -1, dtype=np.int64)
        places = np.searchsorted(self.samples, samples, sorter=self._order)
        found: NDArray[np.int64] = self._order[np.minimum(places, len(self._order) - 1)]
        return np.where(self.samples[found] == samples, found, -1)

    def look(self, samples: NDArray[np.int64], most_bytes: float = MOST_BYTES) -> Previews:
        """What they looked like.

        Raises BadInput for more than `most_bytes`, Damaged as `__init__`, NotAMemory for a kind of newer versions.
        """
        kind = KINDS.get(self.kind)
        if kind is None:
            raise NotAMemory(
                f"{self._path} is a preview set of kind {self.kind!r}, which this version of dualform does not read.",
                hint="Upgrade dualform: pip install --upgrade dualform.",
            )
        if self._stat() != self._state:
            self._state = self._verified()
        rows = self.rows(samples)
        known = rows >= 0
        content = self._read(rows[known], min(most_bytes, MOST_BYTES))
        return kind.look(FoundRows(self._path, content, samples, known, self.scale))

    def write_without(self, samples: NDArray[np.int64], path: Path) -> FileMark:
        """Write a preview set without some samples as another file, durably; returns its mark."""
        gone = pa.array(samples)
        with self._opened() as reader:
            batches = (reader.get_batch(place) for place in range(reader.num_record_batches))
            kept = (own.filter(pc.invert(pc.is_in(own.column("sample"), value_set=gone))) for own in batches)
            return write_batches(path, kept, reader.schema)

    def _read(self, rows: NDArray[np.int64], most_bytes: float) -> pa.RecordBatch:
        """The rows without their numbers, as they come, each as often as it does."""
        held, held_bytes, total, parts = dict[int, pa.RecordBatch](), 0, 0, list[pa.RecordBatch]()
        with self._opened() as reader:
            for done, row in enumerate(rows.tolist()):
                number = int(np.searchsorted(self._starts, row, side="right")) - 1
                if number not in held:
                    if held_bytes > HELD_BATCHES:
                        held, held_bytes = {}, 0
                    batch = reader.get_batch(number)
                    batch.validate(full=True)
                    held[number] = batch.select(batch.schema.names[1:])
                    held_bytes += held[number].nbytes
                part = held[number].slice(row - int(self._starts[number]), 1)
                total += int(row_bytes(part)[0])
                if total > most_bytes:
                    raise BadInput(
                        f"The previews of these samples take more than {most_bytes / 2**20:.1f} MiB.",
                        hint=f"Pass at most {done} samples at a time." if done else "One of them alone is larger.",
                        field="samples",
                    )
                parts.append(part)
            schema = pa.schema(list(reader.schema)[1:])
        batches = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)

    def _verified(self) -> tuple[int, ...]:
        state = self._stat()
        try:
            digest = checksum_file(self._path)
        except OSError as error:
            raise self._unreadable(error) from None
        if digest != self._mark.checksum:
            raise damaged(self._path, "was altered: its checksum does not match")
        return state

    def _stat(self) -> tuple[int, ...]:
        """What changes where somebody writes to the file."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise self._unreadable(error) from None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _unreadable(self, error: OSError) -> DualformError:
        short = shortage(error, f"{self._path} cannot be read: this process")
        said = f"{self._path} cannot be read: {error.strerror}."
        return short or Damaged(said, hint="Open the memory again, or check it.")

    @contextmanager
    def _opened(self) -> Iterator[pa.ipc.RecordBatchFileReader]:
        try:
            with pa.OSFile(str(self._path)) as file, pa.ipc.open_file(file) as reader:
                yield reader
        except DualformError:
            raise
        except (pa.ArrowException, OSError, LookupError, ValueError, TypeError) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # of the file that is written meanwhile
                raise
            raise unreadable(self._path, error, "is not a readable preview set") from None
