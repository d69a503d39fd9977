"""The DuckDB tables of a shard: their columns, views, and what is added to them.

What a user says of samples or of single slots: checked once, then stored under the type of the first time.

Each process of a training has a first time of its own. Where they differ, a reader gives the column a type for all.

A column of lists: one for each extent, with an entry for each of its slots.

Shapes: E extents, n slots that are asked for, T slots of the space.

The DuckDB tables of a shard: their columns, and the running digest that marks how far each column is committed.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from dualform.errors import BadInput

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
"""Those of a shard that keeps what no slot explains (rows.py)."""
SHARES: Mapping[str, ColumnTypes] = {
    "shares": {"step": "BIGINT", "space": "VARCHAR", "share": "DOUBLE", "slots": "BIGINT", "kept": "BIGINT"},
}
"""That of a shard whose slots were sampled (layer.py)."""
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


class Lists:
    """Entries by extent and place within it. An extent without a list has NULLs."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        lengths = [np.asarray(chunk.value_lengths().fill_null(0), dtype=np.int64) for chunk in chunks]
        self.given: NDArray[np.bool_] = _joined([np.asarray(chunk.is_valid()) for chunk in chunks], np.bool_)
        """bool[E]: which extents have a list."""
        self._lengths = _joined(lengths, np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        parts = [chunk.flatten() for chunk in chunks]
        self._values = joined(parts, column.type.value_type)

    def at(self, extent: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Numbers of [n] slots, and which of them are there; a number that is not there is 0."""
        there = self.given[extent]
        place = np.where(there, self._starts[extent] + index, 0)
        numbers, valid = self._numbers
        if not len(numbers):
            return np.zeros(len(extent), dtype=np.int64), np.zeros(len(extent), dtype=bool)
        return np.where(there, numbers[place], 0), there if valid is None else there & valid[place]

    @property
    def _numbers(self) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        if not hasattr(self, "_held"):
            values = self._values
            valid = np.asarray(values.is_valid()) if values.null_count else None
            self._held = np.asarray(values.fill_null(0) if values.null_count else values), valid
        return self._held

    def take(self, extent: NDArray[np.int64], index: NDArray[np.int64]) -> pa.Array:
        """[n] entries, NULL where there is none."""
        there = self.given[extent]
        place = pa.array(np.where(there, self._starts[extent] + index, 0), mask=~there)
        return self._values.take(place)

    def between(self, slots: NDArray[np.int64], start: int, stop: int) -> pa.Array | None:
        """As `every` the slots from start to stop, copying nothing; None where that needs the places of each."""
        return self._values.slice(start, stop - start) if np.array_equal(self._lengths, slots) else None

    def every(self, slots: NDArray[np.int64]) -> pa.Array:
        """[T] entries; `slots` is int64[E]: how many each extent has."""
        if np.array_equal(self._lengths, slots):
            return self._values
        place = np.repeat(self._starts - (np.cumsum(slots) - slots), slots) + np.arange(int(slots.sum()))
        there = np.repeat(self.given, slots)
        return self._values.take(pa.array(np.where(there, place, 0), mask=~there))


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


# Lists unnested in one SELECT are zipped: no list is copied for each slot, and one that is NULL reads as NULLs.
_VIEW = """CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM (
  SELECT extent_step, extent_call{datapoints}, extent_first + i AS slot,
    CASE WHEN regular THEN CAST(i // coalesce(extent_length, 1) AS INTEGER) ELSE listed_row END AS slot_row,
    CASE WHEN in_order THEN i % extent_length ELSE listed_position END AS slot_position{tokens}
  FROM (
    SELECT step AS extent_step, "call" AS extent_call, first_slot AS extent_first, "length" AS extent_length,
      "row" IS NULL AS regular, "position" IS NULL AS in_order{first},
      unnest(range(slots)) AS i, unnest("row") AS listed_row, unnest("position") AS listed_position{lists}
    FROM {extents}
  )
) AS e LEFT JOIN samples AS s ON {same}"""
_IN_A_SHARD = {
    "datapoints": "",
    "first": "",
    "extents": "{extents}",
    "same": 's.step = e.extent_step AND s."row" IS NOT DISTINCT FROM e.slot_row',
}
"""The rows of a step are numbered from 0."""
_IN_ALL = {
    "datapoints": ", first_datapoint, unknown_datapoint",
    "first": ", first_datapoint, CASE WHEN unknown_step = step THEN unknown_datapoint END AS unknown_datapoint",
    "extents": """{extents} ASOF LEFT JOIN (
      SELECT step AS unknown_step, datapoint AS unknown_datapoint FROM samples WHERE "row" IS NULL
    ) ON first_datapoint <= unknown_datapoint""",
    "same": "s.datapoint = coalesce(e.first_datapoint + e.slot_row, e.unknown_datapoint)",
}
"""In every shard they are, which datapoints tell apart (space.py)."""
_OF_EXTENT = {
    "slot": "e.slot",
    "step": "e.extent_step",
    "row": "e.slot_row",
    "position": "e.slot_position",
    "call": "e.extent_call",
}


def view_name(space: str, spaces: Sequence[str]) -> str:
    """The first space's view is `slots`, that of each other has its name."""
    return "slots" if space == spaces[0] else space


def view_statements(spaces: Sequence[str], columns: Mapping[str, ColumnTypes], *, merged: bool = False) -> list[str]:
    """The views of all spaces; `columns` as the manifest has them. `merged`: over the tables of several shards or runs,
    read as one memory's.
    """
    return [_view_statement(view_name(s, spaces), s, columns["samples"], columns[s], merged) for s in spaces]


def _view_statement(view: str, space: str, samples: ColumnTypes, token_columns: ColumnTypes, merged: bool) -> str:
    """CREATE OR REPLACE VIEW for a space: slot, step, row, position, call, dataset, label, sample, user columns."""
    token = {name: f"token_{number}" for number, name in enumerate(token_columns)}
    columns = []
    for name in view_types(samples, token_columns):
        said = f"e.{token[name]}" if name in token else f"s.{quoted(name)}"
        columns.append(f"{_OF_EXTENT.get(name, said)} AS {quoted(name)}")
    joined = dict(_IN_ALL if merged else _IN_A_SHARD)
    return _VIEW.format(
        view=quoted(view),
        columns=", ".join(columns),
        tokens="".join(f", {alias}" for alias in token.values()),
        lists="".join(f", unnest({quoted(name)}) AS {alias}" for name, alias in token.items()),
        **joined | {"extents": joined["extents"].format(extents=quoted(extents_table(space)))},
    )


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


def joined_parts(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The parts of one column in one array, masked where one of them is."""
    whole = np.concatenate([np.asarray(part) for part in parts])
    if not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return whole
    return np.ma.MaskedArray(whole, mask=np.concatenate([np.ma.getmaskarray(part) for part in parts]))
