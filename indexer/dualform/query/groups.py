"""Slots by the values of their columns.

Shapes: m slots that the mask leaves, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.errors import NotFound
from dualform.query.where.mask import Selection


class SlotColumns(Protocol):
    """The part of a memory that a grouping needs."""

    def columns(self, space: str) -> dict[str, str]: ...

    def column(self, space: str, name: str) -> NDArray[Any]: ...


@dataclass(frozen=True, eq=False)
class Groups:
    """The slots that stay, each with its group."""

    by: tuple[str, ...]
    keys: tuple[GroupKey, ...]
    """One tuple of `by` values per group, in value order, NULLs (None) last. Groups that no slot has are left out."""
    slots: NDArray[np.int64]
    """int64[m], ascending."""
    numbers: NDArray[np.int64]
    """int64[m]: the group of each of `slots`."""
    counts: NDArray[np.int64]
    """int64[G]."""

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.numbers.nbytes + self.counts.nbytes + 100 * len(self.keys) * len(self.by)


def group(memory: SlotColumns, space: str, selection: Selection, by: tuple[str, ...]) -> Groups:
    """The groups of the selected slots by columns; with no column, all are one group.

    Raises NotFound for a column that the space's slots do not have.
    """
    known = memory.columns(space)
    for name in by:
        if name not in known:
            raise NotFound(f"no slot column {name!r}.", hint=f"Columns: {', '.join(known)}.", field="by")
    slots = selection.slots
    numbers = np.zeros(len(slots), dtype=np.int64)
    keys: list[GroupKey] = [()]
    for name in by:
        codes, values = _codes(memory.column(space, name)[slots])
        # Dense again after every column, so that the product of the cardinalities cannot overflow.
        present, numbers = np.unique(numbers * len(values) + codes, return_inverse=True)
        keys = [(*keys[code // len(values)], values[code % len(values)]) for code in present.tolist()]
    counts = np.bincount(numbers, minlength=len(keys)).astype(np.int64)
    return Groups(by, tuple(keys), slots, numbers.astype(np.int64), counts)


def _codes(column: NDArray[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """The rank of each entry among the column's values, NULL last, and those values."""
    if column.dtype == object:
        return _text_codes(column)
    nulls = np.ma.getmaskarray(column)
    values, inverse = np.unique(np.ma.getdata(column)[~nulls], return_inverse=True)
    codes = np.full(len(column), len(values), dtype=np.int64)
    codes[~nulls] = inverse
    return codes, [*values.tolist(), *([None] if nulls.any() else [])]


def _text_codes(column: NDArray[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    texts = np.ma.filled(column, None).tolist()
    distinct = sorted({text for text in texts if text is not None})
    rank: dict[Any, int] = {text: number for number, text in enumerate(distinct)}
    nulls = [None] if None in set(texts) else []
    rank[None] = len(distinct)
    return np.fromiter((rank[text] for text in texts), dtype=np.int64, count=len(texts)), [*distinct, *nulls]
