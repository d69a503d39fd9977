"""About what a batch takes on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.record.budget import Bytes
from dualform.store.batch import Batch

_ROW = 160
"""About the bytes that a row of a table takes, beside its texts and lists."""


def bytes_of_batch(batch: Batch) -> Bytes:
    return bytes_of_slots(batch) + bytes_of_others(batch) + bytes_of_logs(batch)


def bytes_of_others(batch: Batch) -> Bytes:
    """Of parameters of no layer."""
    return Bytes(sum(row.content.nbytes for row in batch.others))


def bytes_of_slots(batch: Batch) -> Bytes:
    """Of the slots and what is said of them."""
    parts = [part for parts in batch.layers.values() for part in parts]
    rows = sum(part.keys.nbytes + (0 if part.values is None else part.values.nbytes) for part in parts)
    lists = [array for extent in batch.extents for array in (extent.row, extent.position, *extent.columns.values())]
    said = sum(_bytes(array) for array in (*batch.samples.values(), *lists) if array is not None)
    entries = sum(len(part.keys) for part in parts)  # where inputs repeat, which row each of them is
    samples = len(next(iter(batch.samples.values()), ()))
    return Bytes(rows, said + 8 * entries + 16 * samples)


def bytes_of_logs(batch: Batch) -> Bytes:
    """Of all else that becomes rows of tables."""
    factors = [factor for log in batch.logs for factor in log.factors]
    groups = sum(1 + len(log.groups) for log in batch.logs)
    alone = sum(factor.alone.rows.nbytes + factor.alone.gradient.nbytes for factor in factors if factor.alone)
    rows = len(factors) + groups + len(batch.defects) + len(batch.watch) + len(batch.extents) + len(batch.layers)
    random = sum(len(state) for state in batch.random_states.values())
    return Bytes(tables=alone + random + _ROW * (rows + 2 * len({extent.space for extent in batch.extents})))


def _bytes(array: NDArray[Any]) -> int:
    """Of a column, with its texts."""
    texts = sum(len(str(text).encode()) for text in np.ma.getdata(array)) if array.dtype.kind == "O" else 0
    return array.nbytes + texts
