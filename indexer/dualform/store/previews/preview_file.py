"""A preview set on disk: one file of Arrow's IPC format, checked before anything of it is shown.

    gallery/<dataset>/samples-000000.arrow       of a dataset
    probes/<query set>/samples-000000.arrow      of a query set's examples

Columns: `sample` int64, and those of the preview set's kind, as its file beside this one has them (`schema`). The
file's metadata says the kind, and the scale of images. A file never changes: one that takes its place has another
number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from dualform.answers.contents import MOST_BYTES
from dualform.errors import BadInput
from dualform.store.durable_files import WrittenFile, make_folders, remove, rename, sync_folder
from dualform.store.manifest import FileMark
from dualform.store.previews.content import Content, row_bytes
from dualform.store.previews.generators import generators_kept

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
