"""What a user says of samples or of single slots: checked once, then stored under the type of the first time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.tables import KINDS, ColumnTypes, duckdb_type, what_columns_hold


def column_types(columns: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """DuckDB types by name. Raises BadInput, naming the column, where no type holds one."""
    types = {}
    for name, column in columns.items():
        kind = duckdb_type(column)
        if kind is None:
            raise BadInput(f"column {name!r} holds {column.dtype}.", hint=what_columns_hold(), field=name)
        types[name] = kind
    return types


def check_same_types(types: ColumnTypes, first: ColumnTypes, *, when: str) -> None:
    """Raises BadInput, naming the column, where one of `types` is not what it was `when` it was first said."""
    for name in sorted(types.keys() | first.keys()):
        if types.get(name) != first.get(name):
            raise BadInput(
                f"column {name!r} was {first.get(name, 'absent')} {when} and is {types.get(name, 'absent')} now.",
                hint="Give every step the same columns with the same types.",
                field=name,
            )


def check_names(types: ColumnTypes, taken: ColumnTypes) -> None:
    """Raises BadInput for a name that a column of the table has already; SQL does not tell capitals from small."""
    there = {name.lower(): name for name in taken}
    for name in types:
        if name.lower() in there:
            raise BadInput(
                f"column {name!r} cannot stand beside the column {there[name.lower()]!r} of every memory.",
                hint="Give it another name.",
                field=name,
            )
        there[name.lower()] = name


def stored(column: NDArray[Any], kind: str) -> NDArray[Any]:
    """The column as it is kept until a commit, its mask with it; no copy where it has the type already."""
    return column.astype(KINDS[kind].numpy, copy=False)


def single(value: Any, kind: str) -> NDArray[Any]:
    """One entry of a column; NULL where the value is None."""
    if kind == "VARCHAR":
        return np.array([value], dtype=object)
    if value is None:
        return stored(np.ma.MaskedArray(np.zeros(1), mask=[True]), kind)
    return stored(np.array([value]), kind)


def joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The parts of one column in one array, masked where one of them is."""
    whole = np.concatenate([np.asarray(part) for part in parts])
    if not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return whole
    return np.ma.MaskedArray(whole, mask=np.concatenate([np.ma.getmaskarray(part) for part in parts]))
