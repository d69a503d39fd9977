"""The DuckDB tables of a shard: their columns, and the running digest that marks how far each column is committed.

    samples           one row for each row of each step; one more, its row NULL, for slots whose row is not known
    extents_<space>   one row for each call of a space in a step: where its slots lie, and what single slots say
    entries           which slots of its space a layer has, as ranges
    products          the products of errors and keys that the training rounded to half precision; none of float32's
    key_rows          entry -> row among the distinct keys, for layers whose inputs repeat; a list for each increment
    steps             what the optimizer did at each recorded step, for its first parameter group
    parameter_groups  the settings of every parameter group at each update
    factors           the measured gradient factor of every recorded parameter at each update
    watch             how far the weights were from the record, at each time they were looked at
    defects           what may keep a layer from being rebuilt exactly, and from which step on
    labels            names of labels
    digests           what each layer was fed at each step, for layers whose keys are not stored
    segments          the matrix files, with a checksum for each of their blocks
    shares            of each step that was sampled, how many slots of a space it had and how many were kept
    rounding_gradients  gradients of biases that are rounding alone, at each update that has any
    random_states     the random number generators' states at the beginning of each step, if asked for
    other_rows        how many steps were taken when each row of what no slot explains was kept
    other_segments    the matrix files of those rows
    commits           rows and running digest of each column after each commit

Tables only grow. The digest of a column after a commit hashes the digest before it and the entries that the commit
added, so that the last one, which stands in memory.json, vouches for every entry that an answer can come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

ColumnTypes: TypeAlias = Mapping[str, str]
"""DuckDB types by column, in column order."""

SAMPLES: ColumnTypes = {
    "datapoint": "BIGINT",
    "step": "BIGINT",
    "row": "INTEGER",
    "dataset": "VARCHAR",
    "label": "BIGINT",
    "sample": "BIGINT",
}
"""The columns of `samples` that every memory has; user columns follow."""
SAID = ("dataset", "label", "sample")
"""Those of them that a training says."""
EXTENTS: ColumnTypes = {
    "step": "BIGINT",
    "call": "INTEGER",
    "first_slot": "BIGINT",
    "slots": "BIGINT",
    "rows": "INTEGER",
    "length": "BIGINT",
    "first_datapoint": "BIGINT",
    "row": "INTEGER[]",
    "position": "BIGINT[]",
}
"""The columns of `extents_<space>` that every space has; token columns follow, as lists."""
SLOTS: ColumnTypes = {
    "slot": "BIGINT",
    "step": "BIGINT",
    "row": "INTEGER",
    "position": "BIGINT",
    "call": "INTEGER",
    "dataset": "VARCHAR",
    "label": "BIGINT",
    "sample": "BIGINT",
}
"""The columns of a space's view that every memory has; user columns follow."""
SETTINGS: ColumnTypes = {"lr": "DOUBLE"}
"""The setting that every optimizer has; the others are those that its update rule names."""
FIRST_STEP: ColumnTypes = {"first_step": "BIGINT"}
"""The further column of `factors` where several optimizers update: each uses the gradients of its own steps."""
TABLES: Mapping[str, ColumnTypes] = {
    "entries": {"layer": "VARCHAR", "first_slot": "BIGINT", "slots": "BIGINT"},
    "products": {
        "step": "BIGINT",
        "layer": "VARCHAR",
        "first_slot": "BIGINT",
        "slots": "BIGINT",
        "dtype": "VARCHAR",
        "copy": "BIGINT",
        "place": "BIGINT",
    },
    "key_rows": {"layer": "VARCHAR", "first_entry": "BIGINT", "key_rows": "BIGINT[]"},
    "steps": {"step": "BIGINT", "updated": "BOOLEAN", "first_step": "BIGINT", **SETTINGS, "clip": "DOUBLE"},
    "parameter_groups": {"step": "BIGINT", "group": "INTEGER", **SETTINGS},
    "factors": {
        "step": "BIGINT",
        "parameter": "VARCHAR",
        "group": "INTEGER",
        "factor": "DOUBLE",
        "residual": "DOUBLE",
    },
    "defects": {"step": "BIGINT", "layer": "VARCHAR", "reason": "VARCHAR"},
    "watch": {
        "step": "BIGINT",
        "parameter": "VARCHAR",
        "one_step": "DOUBLE",
        "accumulated": "DOUBLE",
        "way": "DOUBLE",
        "rounding": "DOUBLE",
        "noise": "DOUBLE",
    },
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
        "blocks": "BLOB",
    },
}
"""Every table but samples and extents. Further settings follow in `steps` and `parameter_groups`."""
OPTIONAL: Mapping[str, ColumnTypes] = {
    "rounding_gradients": {"step": "BIGINT", "parameter": "VARCHAR", "rows": "INTEGER[]", "gradient": "DOUBLE[]"},
    "random_states": {"step": "BIGINT", "device": "VARCHAR", "state": "BLOB"},
}
"""Those of a memory that has rows of them."""
OTHERS: Mapping[str, ColumnTypes] = {
    "other_rows": {"at_step": "BIGINT"},
    "other_segments": {name: kind for name, kind in TABLES["segments"].items() if name not in ("layer", "kind")},
}
"""Those of a shard that keeps what no slot explains (others.py)."""
SHARES: Mapping[str, ColumnTypes] = {
    "shares": {"step": "BIGINT", "space": "VARCHAR", "share": "DOUBLE", "slots": "BIGINT", "kept": "BIGINT"},
}
"""That of a shard whose slots were sampled (sampling.py)."""
SHARE = "share"
"""The column of such a shard's samples that says with which probability each of them was kept."""
COMMITS: ColumnTypes = {
    "commit": "BIGINT",
    "table": "VARCHAR",
    "column": "VARCHAR",
    "rows": "BIGINT",
    "digest": "VARCHAR",
}


MOST_BYTES = 2**31 - 1
"""Of the texts of one array whose offsets have 32 bits."""
ROWS_AT_ONCE = 1 << 16
"""That DuckDB hands over in one array."""


class Kind(NamedTuple):
    """How the entries of a column of one DuckDB type are held elsewhere."""

    arrow: pa.DataType
    numpy: np.dtype[Any]
    letters: str = ""
    """The kinds of NumPy arrays (`dtype.kind`) that users may give for it."""
    said: str = ""
    """What users call such values, in the plural."""


KINDS: Mapping[str, Kind] = {
    "BIGINT": Kind(pa.int64(), np.dtype(np.int64), "iu", "integers"),
    "INTEGER": Kind(pa.int32(), np.dtype(np.int32)),
    "DOUBLE": Kind(pa.float64(), np.dtype(np.float64), "f", "floats"),
    "BOOLEAN": Kind(pa.bool_(), np.dtype(np.bool_), "b", "booleans"),
    "VARCHAR": Kind(pa.string(), np.dtype(np.object_), "OU", "texts"),
    "BLOB": Kind(pa.binary(), np.dtype(np.object_)),
}
"""By DuckDB type. A new type of what users say is a line here; one of the wire's own (`WIRE_TYPES`) lets it travel."""


def extents_table(space: str) -> str:
    """The name of a space's table of extents."""
    return f"extents_{space}"


def extents_types(token_columns: ColumnTypes) -> ColumnTypes:
    """The columns of a space's table of extents, from the types of what is said of its single slots."""
    return {**EXTENTS, **{name: f"{kind}[]" for name, kind in token_columns.items()}}


def view_types(samples: ColumnTypes, token_columns: ColumnTypes) -> ColumnTypes:
    """The columns of a space's view. A token column hides the sample's column of its name."""
    said = {name: kind for name, kind in samples.items() if name not in ("datapoint", "step", "row")}
    return {**SLOTS, **said, **token_columns}


def duckdb_type(column: np.ndarray[Any, Any]) -> str | None:
    """The DuckDB type that holds a user column; None where no type does."""
    return next((name for name, kind in KINDS.items() if column.dtype.kind in kind.letters), None)


def what_columns_hold() -> str:
    """What users may give for a column, as a hint."""
    *others, last = (kind.said for kind in KINDS.values() if kind.letters)
    return f"A column holds {', '.join(others)} or {last}."


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a DuckDB type, which may be a list's."""
    return pa.list_(KINDS[kind[:-2]].arrow) if kind.endswith("[]") else KINDS[kind].arrow


def joined(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Arrays of a type, as one: their texts have offsets of 64 bits where 32 bits do not count all of their bytes."""
    if sum(own.nbytes for own in arrays) > MOST_BYTES or len({own.type for own in arrays}) > 1:
        arrays = [own.cast(_large(own.type)) for own in arrays]
    return pa.concat_arrays(arrays) if arrays else pa.array([], type=kind)


def _large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_large(kind.value_type))
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def schema(types: ColumnTypes) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in types.items()])


def create_statement(table: str, types: ColumnTypes) -> str:
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
    return f"CREATE TABLE {quoted(table)} ({columns})"


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def arrow_table(columns: Mapping[str, Any], types: ColumnTypes) -> pa.Table:
    """Columns (Arrow arrays, arrays, masked arrays or sequences with None) as a table of the given DuckDB types."""
    return pa.table([arrow_column(columns[name], kind) for name, kind in types.items()], schema=schema(types))


def arrow_column(column: Any, kind: str) -> pa.Array:
    """One column, its NULLs masked or None, as an Arrow array of the given DuckDB type."""
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        return column
    mask = None
    if isinstance(column, np.ma.MaskedArray):
        mask, column = np.ma.getmaskarray(column), column.data
    if isinstance(column, np.ndarray) and column.dtype.kind == "U":
        column = column.astype(object)
    return pa.array(column, type=arrow_type(kind), mask=mask)


def rows_table(rows: Sequence[Sequence[Any]], types: ColumnTypes) -> pa.Table:
    """Rows of plain values as an Arrow table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    return arrow_table(dict(zip(types, columns, strict=True)), types)


def running_digest(before: str, column: pa.Array | pa.ChunkedArray) -> str:
    """The digest of a column after these entries were added to what `before` stands for ("" for none)."""
    digest = xxhash.xxh3_128(f"{before}:{len(column)}".encode())
    _update(digest, column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return str(digest.hexdigest())


def table_digest(before: str, rows: pa.Table) -> str:
    """One digest over all columns of some rows, their names included."""
    for name in rows.column_names:
        before = running_digest(f"{before}:{name}", rows[name])
    return before


def _update(digest: Any, column: pa.Array) -> None:
    if isinstance(column, pa.ChunkedArray):  # combining no chunks, or too many bytes for one, leaves chunks
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type=column.type)
    digest.update(np.packbits(column.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_list(column.type):
        lengths = column.value_lengths().fill_null(0)
        digest.update(lengths.cast(pa.int64()).to_numpy().tobytes())
        _update(digest, column.flatten())
    elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        _update_bytes(digest, column.fill_null("" if pa.types.is_string(column.type) else b""))
    else:
        zero = pa.scalar(False) if pa.types.is_boolean(column.type) else pa.scalar(0, type=column.type)
        filled = column.fill_null(zero) if column.null_count else column
        digest.update(np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).view(np.uint8).data)


def _update_bytes(digest: Any, filled: pa.Array) -> None:
    digest.update(np.ascontiguousarray(pc.binary_length(filled).to_numpy(zero_copy_only=False)).tobytes())
    _, offsets, content = filled.buffers()
    if len(filled) and content is not None:
        bounds = np.frombuffer(offsets, dtype=np.int32)[filled.offset : filled.offset + len(filled) + 1]
        digest.update(memoryview(content)[bounds[0] : bounds[-1]])
