"""What came to a memory between two moments: rows of its tables and of its matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dualform.store.tables import TABLES, ColumnTypes, arrow_table, arrow_type


@dataclass(frozen=True)
class RowBytes:
    """Rows of one layer's keys or values, as stored, in pieces."""

    layer: str
    kind: str
    """"keys" or "values"."""
    first_row: int
    """The number of the first among all rows of the layer and kind."""
    rows: int
    width: int
    """Numbers of a row."""
    pieces: Sequence[memoryview]
    dtype: str
    """Of those numbers, as NumPy writes it: "<f4"."""


@dataclass
class Increment:
    """Rows by table, and rows of matrices. A table without new rows is absent."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    matrices: list[RowBytes] = field(default_factory=list)


def completed(rows: pa.Table, types: ColumnTypes) -> pa.Table:
    """The rows with all of a table's columns, in its order: those that came later are NULL."""
    columns = [
        rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, type=arrow_type(kind))
        for name, kind in types.items()
    ]
    return pa.table(columns, names=list(types))


def summed(parts: Sequence[Mapping[str, pa.Table]], tables: Mapping[str, ColumnTypes]) -> dict[str, pa.Table]:
    """The rows of several increments by table, neighbouring ranges of `entries` merged."""
    whole = {}
    for name, types in tables.items():
        rows = [completed(part[name], types) for part in parts if name in part]
        if rows:
            whole[name] = pa.concat_tables(rows).combine_chunks()
    if "entries" in whole and len(parts) > 1:
        whole["entries"] = _merged(whole["entries"])
    return whole


def _merged(entries: pa.Table) -> pa.Table:
    """Ranges by layer, ascending; two that touch are one."""
    layers = entries["layer"].combine_chunks().dictionary_encode()
    codes = np.asarray(layers.indices)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    first = entries["first_slot"].to_numpy()[order]
    stop = first + entries["slots"].to_numpy()[order]
    starts = np.flatnonzero(np.append(True, (codes[1:] != codes[:-1]) | (first[1:] != stop[:-1])))
    ends = np.append(starts[1:], len(first)) - 1
    columns = {
        "layer": layers.dictionary.take(pa.array(codes[starts])),
        "first_slot": first[starts],
        "slots": stop[ends] - first[starts],
    }
    return arrow_table(columns, TABLES["entries"])
