"""What a user says of samples or of single slots: checked once, then stored under the type of the first time.

Each process of a training has a first time of its own. Where they differ, a reader gives the column a type for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.tables import KINDS, ColumnTypes, arrow_type, duckdb_type, what_columns_hold


def column_types(columns: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """DuckDB types by name. Raises BadInput, naming the column, where no type holds one."""
    types = {}
    for name, column in columns.items():
        kind = duckdb_type(column)
        if kind is None:
            raise BadInput(f"Column {name!r} cannot hold {column.dtype}.", hint=what_columns_hold(), field=name)
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
                f"Column {name!r} cannot be recorded: every memory has a column {there[name.lower()]!r}.",
                hint="Rename it.",
                field=name,
            )
        there[name.lower()] = name


def alike_but_for_case(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of some column names that SQL does not tell apart, which memories of before may have; None for none."""
    there: dict[str, str] = {}
    for name in names:
        known = there.setdefault(name.lower(), name)
        if known != name:
            return known, name
    return None


def common_types(types: ColumnTypes, others: ColumnTypes) -> dict[str, str]:
    """The columns of two shards: integers and floats are floats, and other types that differ are texts."""
    return {**types, **{name: _common_type(types.get(name, kind), kind) for name, kind in others.items()}}


def _common_type(kind: str, other: str) -> str:
    if kind == other:
        return kind
    return "DOUBLE" if {kind, other} == {"BIGINT", "DOUBLE"} else "VARCHAR"


def as_common(name: str, column: pa.Array | pa.ChunkedArray, kind: str) -> pa.Array | pa.ChunkedArray:
    """A shard's column as the type that all shards have in common. Raises BadInput for integers that no float holds."""
    try:
        return column.cast(arrow_type(kind))
    except pa.ArrowInvalid:
        raise BadInput(
            f"column {name!r} has integers beyond 2**53 in one shard and floats in another, which no type holds.",
            hint="Leave this column out, or record again with one type on every rank.",
            field=name,
        ) from None


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
