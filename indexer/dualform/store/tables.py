"""The DuckDB tables of a shard: their columns, and the running digest that marks how far they are committed.

    slots             one row per slot, in slot order (one such table per space)
    key_rows          slot -> row among the distinct keys, for layers whose inputs repeat
    steps             what the optimizer did at each recorded step, for its first parameter group
    parameter_groups  the settings of every parameter group at each update
    factors           the measured gradient factor of every recorded parameter at each update
    watch             how far the weights were from the record, at each time they were looked at
    defects           why a layer cannot be rebuilt exactly, and from which step on
    labels            names of labels
    digests           what each layer was fed at each step, for layers whose keys are not stored
    segments          the matrix files, with their checksums
    commits           rows and running digest of each table after each commit

Tables only grow. The digest of a table after a commit hashes the digest before it and the rows the commit added, so
that the last one, which stands in memory.json, vouches for every row that an answer can come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from dualform.rules import settings_of

ColumnTypes: TypeAlias = Mapping[str, str]

SLOTS: ColumnTypes = {
    "slot": "BIGINT",
    "step": "BIGINT",
    "row": "INTEGER",
    "position": "BIGINT",
    "dataset": "VARCHAR",
    "label": "BIGINT",
    "sample": "BIGINT",
}
TABLES: Mapping[str, ColumnTypes] = {
    "key_rows": {"layer": "VARCHAR", "slot": "BIGINT", "key_row": "BIGINT"},
    "steps": {"step": "BIGINT", "updated": "BOOLEAN", "first_step": "BIGINT", **settings_of(""), "clip": "DOUBLE"},
    "parameter_groups": {"step": "BIGINT", "group": "INTEGER", **settings_of("")},
    "factors": {
        "step": "BIGINT",
        "parameter": "VARCHAR",
        "group": "INTEGER",
        "factor": "DOUBLE",
        "residual": "DOUBLE",
    },
    "watch": {
        "step": "BIGINT",
        "parameter": "VARCHAR",
        "one_step": "DOUBLE",
        "accumulated": "DOUBLE",
        "way": "DOUBLE",
        "rounding": "DOUBLE",
        "noise": "DOUBLE",
    },
    "defects": {"step": "BIGINT", "layer": "VARCHAR", "reason": "VARCHAR"},
    "labels": {"dataset": "VARCHAR", "label": "BIGINT", "name": "VARCHAR"},
    "digests": {"step": "BIGINT", "layer": "VARCHAR", "keys": "VARCHAR", "columns": "VARCHAR"},
    "segments": {
        "segment": "BIGINT",
        "layer": "VARCHAR",
        "kind": "VARCHAR",
        "file": "VARCHAR",
        "first_row": "BIGINT",
        "rows": "BIGINT",
        "bytes": "BIGINT",
        "checksum": "VARCHAR",
    },
}
"""Every table but the slot tables, whose user columns differ from memory to memory; without an update rule."""
COMMITS: ColumnTypes = {"commit": "BIGINT", "table": "VARCHAR", "rows": "BIGINT", "digest": "VARCHAR"}


def tables_of(rule: str) -> dict[str, ColumnTypes]:
    """`TABLES` of a training with an update rule: the rule says which settings are logged of every group."""
    settings = settings_of(rule)
    return {
        **TABLES,
        "steps": {"step": "BIGINT", "updated": "BOOLEAN", "first_step": "BIGINT", **settings, "clip": "DOUBLE"},
        "parameter_groups": {"step": "BIGINT", "group": "INTEGER", **settings},
    }


_ARROW = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
}
_DUCKDB_OF_KIND = {"i": "BIGINT", "u": "BIGINT", "f": "DOUBLE", "b": "BOOLEAN", "O": "VARCHAR", "U": "VARCHAR"}


def duckdb_type(column: np.ndarray[Any, Any]) -> str | None:
    """The DuckDB type that holds a slot column; None where no type does."""
    return _DUCKDB_OF_KIND.get(column.dtype.kind)


def create_statement(table: str, types: ColumnTypes) -> str:
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
    return f"CREATE TABLE {quoted(table)} ({columns})"


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def arrow_table(columns: Mapping[str, Any], types: ColumnTypes) -> pa.Table:
    """Columns (arrays, masked arrays or sequences with None) as an Arrow table of the given DuckDB types."""
    arrays = []
    for name, kind in types.items():
        column = columns[name]
        mask = None
        if isinstance(column, np.ma.MaskedArray):
            mask, column = np.ma.getmaskarray(column), column.data
        if isinstance(column, np.ndarray) and column.dtype.kind == "U":
            column = column.astype(object)
        arrays.append(pa.array(column, type=_ARROW[kind], mask=mask))
    return pa.table(arrays, names=list(types))


def rows_table(rows: Sequence[Sequence[Any]], types: ColumnTypes) -> pa.Table:
    """Rows of plain values as an Arrow table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    return arrow_table(dict(zip(types, columns, strict=True)), types)


def as_typed(table: pa.Table, types: ColumnTypes) -> pa.Table:
    """The same rows with exactly the Arrow types that the digest is defined on."""
    return table.select(list(types)).cast(pa.schema([(name, _ARROW[kind]) for name, kind in types.items()]))


def running_digest(before: str, rows: pa.Table) -> str:
    """The digest of a table after `rows` were added to what `before` stands for."""
    digest = xxhash.xxh3_128(f"{before}:{rows.num_rows}".encode())
    for name in rows.column_names:
        digest.update(name.encode())
        _update(digest, rows[name].combine_chunks())
    return str(digest.hexdigest())


def _update(digest: Any, column: pa.Array) -> None:
    digest.update(np.packbits(column.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_string(column.type):
        filled = column.fill_null("")
        digest.update(np.ascontiguousarray(pc.binary_length(filled).to_numpy(zero_copy_only=False)).tobytes())
        _, offsets, content = filled.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32)[filled.offset : filled.offset + len(filled) + 1]
        if len(filled) and content is not None:
            digest.update(memoryview(content)[bounds[0] : bounds[-1]])
    else:
        zero = pa.scalar(False) if pa.types.is_boolean(column.type) else pa.scalar(0, type=column.type)
        digest.update(np.ascontiguousarray(column.fill_null(zero).to_numpy(zero_copy_only=False)).tobytes())
