"""The slot columns of one space between two commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.tables import SLOTS, duckdb_type


class SlotColumns:
    """Collects slot columns batch by batch and numbers the slots."""

    def __init__(self, space: str) -> None:
        self.space = space
        self.count = 0
        """Slots seen so far."""
        self._types: dict[str, str] | None = None
        self._announced = False
        self._parts: dict[str, list[NDArray[Any]]] = {}
        self.pending = 0
        """Slots not yet taken."""

    def append(self, step: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add one step's new slots. Raises BadInput for a user column that is new or changed its type."""
        rows = len(columns["row"])
        self._check_types({name: column for name, column in columns.items() if name not in SLOTS})
        numbers = np.arange(self.count, self.count + rows, dtype=np.int64)
        numbered = {"slot": numbers, "step": np.full(rows, step, dtype=np.int64), **columns}
        for name, column in numbered.items():
            if len(column) != rows:
                raise BadInput(f"column {name!r} has {len(column)} entries for {rows} slots.", field=name)
            self._parts.setdefault(name, []).append(column)
        self.count += rows
        self.pending += rows

    def _check_types(self, columns: Mapping[str, NDArray[Any]]) -> None:
        types = {}
        for name, column in columns.items():
            kind = duckdb_type(column)
            if kind is None:
                raise BadInput(
                    f"column {name!r} holds {column.dtype}.",
                    hint="Give integers, floats, booleans or texts.",
                    field=name,
                )
            types[name] = kind
        if self._types is None:
            self._types = types
        elif types != self._types:
            name = next(n for n in types.keys() | self._types.keys() if types.get(n) != self._types.get(n))
            raise BadInput(
                f"column {name!r} was {self._types.get(name, 'absent')} at the first step and is "
                f"{types.get(name, 'absent')} now.",
                hint="Give every step the same columns with the same types.",
                field=name,
            )

    def new_columns(self) -> dict[str, str]:
        """User columns that the slot table does not have yet, with their DuckDB types; they come once."""
        if self._announced or self._types is None:
            return {}
        self._announced = True
        return self._types

    def take(self) -> dict[str, NDArray[Any]]:
        """The pending slots' columns, joined."""
        joined = {name: _joined(parts) for name, parts in self._parts.items()}
        self._parts = {}
        self.pending = 0
        return joined


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    whole = np.concatenate([np.asarray(part) for part in parts])
    if not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return whole
    return np.ma.MaskedArray(whole, mask=np.concatenate([np.ma.getmaskarray(part) for part in parts]))
