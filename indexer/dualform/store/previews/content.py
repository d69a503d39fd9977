"""What a preview set holds of each sample, and what is found of it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.answers import Previews

BATCH_BYTES = 64 << 10
"""Of rows that are read together: a question reads one such batch for each sample that it asks for, at most."""


class Content(Protocol):
    """One kind of previews: n rows, each of which knows how to be stored, and how they are read back."""

    @property
    def kind(self) -> str:
        """ "images", "texts" or "table": its name in manifests, on the wire and in `Previews`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of `batches`."""

    def __len__(self) -> int: ...

    def scale(self) -> tuple[float, float] | None:
        """What black and full brightness stand for, of images that are scaled; else None. Called before `batches`."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, about BATCH_BYTES at a time. Raises BadInput for a row that cannot be stored."""

    @staticmethod
    def look(found: FoundRows) -> Previews:
        """What samples looked like, of the rows that a preview set has of them. Raises Damaged for what cannot be
        shown.
        """


def gathered(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of plain values as batches. The first value of a row is a text or bytes, which are most of what it takes."""
    waiting, size = list[tuple[Any, ...]](), 0
    for row in rows:
        if waiting and size + len(row[0]) > BATCH_BYTES:
            yield _batch(waiting, schema)
            waiting, size = [], 0
        waiting.append(row)
        size += len(row[0])
    if waiting:
        yield _batch(waiting, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, type=own.type) for column, own in zip(columns, schema, strict=True)], schema=schema
    )


def row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """int64[rows]: what each row adds to an answer, without its number."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        total += _bytes(column)
    return total


def _bytes(column: pa.Array) -> NDArray[np.int64]:
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(map(_bytes, column.flatten()), np.zeros(len(column), dtype=np.int64))
    if pa.types.is_list(kind):
        return np.int64(4) * _numbers(pc.list_value_length(column))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _numbers(pc.binary_length(column))
    return np.full(len(column), 8, dtype=np.int64)


def _numbers(lengths: pa.Array) -> NDArray[np.int64]:
    return np.asarray(lengths.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


@dataclass(frozen=True)
class FoundRows:
    """Shapes: n samples were asked for, m of them are in the preview set."""

    path: Path
    """Of the file, for errors that name it."""
    rows: pa.RecordBatch
    """m rows by the schema of the kind, in the order of the samples that are known."""
    samples: NDArray[np.int64]
    """int64[n]."""
    known: NDArray[np.bool_]
    """bool[n], m of them true."""
    scale: tuple[float, float] | None
    """What `Content.scale` was when the preview set was stored."""

    def has(self, column: str) -> bool:
        """Whether the preview set was stored with a column that not all of its kind have."""
        return column in self.rows.schema.names

    def spread(self, values: Iterable[Any], missing: Any) -> tuple[Any, ...]:
        """Those of the m known samples, and `missing` in the others' places."""
        given = iter(values)
        return tuple(next(given) if own else missing for own in self.known.tolist())


@contextmanager
def generators_kept() -> Iterator[None]:
    """A dataset may draw random numbers for each item: the generators of the process are as before, afterwards, so that
    a training goes on as it would have.
    """
    python, numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    drawn = None if torch is None else torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None and drawn is not None:
            torch.set_rng_state(drawn)
            if devices is not None:
                torch.cuda.set_rng_state_all(devices)
