"""Preview sets on disk: the file, its kinds, and reading it.

A preview set on disk: one file of Arrow's IPC format, checked before anything of it is shown.

    gallery/<dataset>/samples-000000.arrow       of a dataset
    probes/<query set>/samples-000000.arrow      of a query set's examples

Columns: `sample` int64, and those of the preview set's kind, as its file beside this one has them (`schema`). The
file's metadata says the kind, and the scale of images. A file never changes: one that takes its place has another
number.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from dualform.answers import Previews
from dualform.answers.contents import MOST_BYTES
from dualform.errors import BadInput, Damaged, DualformError, NotAMemory
from dualform.faults import shortage
from dualform.store.files.durable_files import (
    WrittenFile,
    checksum_file,
    damaged,
    make_folders,
    remove,
    rename,
    sync_folder,
    unreadable,
)
from dualform.store.manifest import FileMark
from dualform.store.previews.content import Content, FoundRows, generators_kept, row_bytes
from dualform.store.previews.images import Images
from dualform.store.previews.table import TableRows
from dualform.store.previews.texts import Texts

FOLDER = "gallery"
_LONGEST = 255
"""Bytes of a folder's name that file systems take."""


def dataset_name(dataset: str | None) -> str:
    """What the manifest calls a dataset: "" stands for samples without one. Raises BadInput for what cannot be one."""
    name = "" if dataset is None else dataset
    if not isinstance(name, str):
        raise BadInput(
            f"dataset must be a name, not {dataset!r}.", hint='For example dataset="mnist".', field="dataset"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"dataset {dataset!r} is not valid Unicode text.", hint="Choose another name.", field="dataset"
        ) from None
    if len(preview_folder(name)) > _LONGEST:
        raise BadInput(
            f"the name of the dataset is too long: as a folder name it takes more than {_LONGEST} bytes.",
            hint="Choose a shorter name.",
            field="dataset",
        )
    return str.__str__(name)


def preview_folder(dataset: str) -> str:
    """The name of the folder of a dataset's preview set: escaped where a file system could not hold it, or take it for
    another place.
    """
    name = quote(dataset, safe="") or "%"
    inner = name.strip(".")
    left = len(name) - len(name.lstrip(".")) if inner else len(name)
    right = len(name) - left - len(inner)
    return "%2E" * left + inner + "%2E" * right


def free_name(place: str, files: Iterable[str]) -> str:
    """The name of the next file in a folder within the memory, of which none in use is told apart by case alone."""
    used, number = {name.casefold() for name in files}, 0
    while (name := f"{place}/samples-{number:06d}.arrow").casefold() in used:
        number += 1
    return name


def write_preview_set(
    folder: Path, name: str, samples: NDArray[np.int64], content: Content, most_bytes: int | None = None
) -> tuple[FileMark, dict[str, Any]]:
    """Write what samples looked like durably, as this file within a run's folder; returns its mark, and what the
    manifest says of it.

    Raises BadInput for a sample that cannot be stored, and for more than `most_bytes`; no file is there then.
    """
    with generators_kept():
        metadata = {"dualform": FOLDER, "kind": content.kind}
        if scale := content.scale():
            metadata["scale"] = json.dumps(scale)
        schema = pa.schema([("sample", pa.int64()), *content.schema]).with_metadata(metadata)
        mark = write_batches(folder / name, _numbered(samples, content), schema, most_bytes)
    return mark, {"kind": content.kind, "file": name, "samples": len(samples)}


def write_batches(
    path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int | None = None
) -> FileMark:
    """Write batches durably, under another name until all are there; no file is there where that fails."""
    make_folders(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    file = WrittenFile(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        sink = _Checksummed(file, most_bytes)
        with pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.sync()
        file.close()
        rename(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            remove(temporary)
        raise
    finally:
        file.let_go()
    return FileMark(sink.bytes, sink.digest.hexdigest())


class _Checksummed:
    """A file to be written to, as Arrow takes one."""

    closed = False

    def __init__(self, file: WrittenFile, most_bytes: int | None) -> None:
        self._file, self._most = file, most_bytes
        self.bytes = 0
        self.digest = xxhash.xxh3_128()

    def write(self, content: Any) -> int:
        piece = memoryview(content).cast("B")
        if self._most is not None and self.bytes + piece.nbytes > self._most:
            raise BadInput(
                f"the preview set does not fit into the {self._most:,} bytes that are left of the budget.",
                hint="Store it when the training is over: preview_set.store(…), or record with a larger budget.",
                field="preview_set",
            )
        self.digest.update(piece)
        self.bytes += piece.nbytes
        self._file.write([piece])
        return piece.nbytes

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _numbered(samples: NDArray[np.int64], content: Content) -> Iterator[pa.RecordBatch]:
    """The rows with their samples. Raises BadInput for one that no answer could hold."""
    first = 0
    for batch in content.batches():
        numbers = samples[first : first + batch.num_rows]
        first += batch.num_rows
        sizes = row_bytes(batch)
        if (sizes > MOST_BYTES).any():
            place = int(sizes.argmax())
            raise BadInput(
                f"the preview of sample {numbers[place]} takes {sizes[place] / 2**20:.1f} MiB; the limit is "
                f"{MOST_BYTES >> 20} MiB.",
                hint="Pass smaller images or texts.",
                field="preview_set",
            )
        yield pa.record_batch([pa.array(numbers), *batch.columns], names=["sample", *batch.schema.names])


KINDS: Mapping[str, type[Content]] = {own.kind: own for own in (Images, Texts, TableRows)}


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
