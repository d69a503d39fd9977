"""Gathers what is said of samples, step by step, into rows of the table `samples`. Shapes: B rows of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.tables import SAMPLES, SLOTS, arrow_table
from dualform.store.user_columns import check_names, check_same_types, column_types, joined, stored

_SAID = ("dataset", "label", "sample")
_TAKEN = dict(SLOTS) | dict(SAMPLES)


class SamplesWriter:
    """Numbers the datapoints of a shard from 0, in the order of steps and rows."""

    def __init__(self) -> None:
        self.types: dict[str, str] = dict(SAMPLES)
        """Columns of the table; the user's are known from the first step on."""
        self.count = 0
        """Datapoints seen so far."""
        self._user: dict[str, str] | None = None
        self._taken = 0
        self._steps: list[tuple[int, int, bool]] = []
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def append(self, step: int, columns: Mapping[str, NDArray[Any]], unknown: Mapping[str, Any] | None) -> int:
        """Add a step's rows, and one more for slots whose row is not known; returns its first datapoint.

        Raises BadInput for a user column that is new, missing or of another type than at the first step.
        """
        self._check(columns)
        rows = len(next(iter(columns.values()))) if columns else 0
        for name in (*_SAID, *(self._user or {})):
            column = stored(columns[name], self.types[name])
            if len(column) != rows:
                raise BadInput(f"column {name!r} has {len(column)} entries for {rows} rows.", field=name)
            parts = self._parts.setdefault(name, [])
            parts.append(column)
            if unknown is not None:
                parts.append(_single(unknown.get(name), self.types[name]))
        self._steps.append((step, rows, unknown is not None))
        first, self.count = self.count, self.count + rows + (unknown is not None)
        return first

    def _check(self, columns: Mapping[str, NDArray[Any]]) -> None:
        types = column_types({name: column for name, column in columns.items() if name not in _SAID})
        if self._user is None:
            check_names(types, _TAKEN)
            self._user = types
            self.types |= types
        elif types != self._user:
            check_same_types(types, self._user, when="at the first step")

    def take(self) -> pa.Table | None:
        """The rows since the last call; None where there are none."""
        if self._taken == self.count:
            self._steps, self._parts = [], {}
            return None
        steps = np.array([step for step, _, _ in self._steps], dtype=np.int64)
        extra = np.array([unknown for _, _, unknown in self._steps], dtype=bool)
        counts = np.array([rows for _, rows, _ in self._steps], dtype=np.int64) + extra
        columns = {name: joined(parts) for name, parts in self._parts.items()}
        columns["datapoint"] = np.arange(self._taken, self.count, dtype=np.int64)
        columns["step"] = np.repeat(steps, counts)
        columns["row"] = _rows(counts, extra)
        self._taken, self._steps, self._parts = self.count, [], {}
        return arrow_table(columns, self.types)


def _rows(counts: NDArray[np.int64], extra: NDArray[np.bool_]) -> NDArray[Any]:
    """0, 1, … within each step; masked in the last place of steps that end with an unknown row."""
    ends = np.cumsum(counts)
    rows = (np.arange(ends[-1]) - np.repeat(ends - counts, counts)).astype(np.int32)
    if not extra.any():
        return rows
    mask = np.zeros(len(rows), dtype=bool)
    mask[ends[extra] - 1] = True
    return np.ma.MaskedArray(rows, mask=mask)


def _single(value: Any, kind: str) -> NDArray[Any]:
    """One entry of a column; NULL where the value is None."""
    if kind == "VARCHAR":
        return np.array([value], dtype=object)
    if value is None:
        return stored(np.ma.MaskedArray(np.zeros(1), mask=[True]), kind)
    return stored(np.array([value]), kind)
