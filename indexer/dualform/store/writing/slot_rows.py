"""Gathers what batches bring until the tables take it: samples, slots, logs and digests.

Gathers what batches bring of datapoints and slots, until the tables `samples` and `extents_<space>` take it.

Shapes: B rows of a step; n slots of an extent; E extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.batch import Array, Batch, Extent, LayerRows, StepLog
from dualform.store.files.durable_files import checksum_pieces
from dualform.store.tables import (
    EXTENTS,
    FIRST_STEP,
    OPTIONAL,
    SAID,
    SAMPLES,
    SETTINGS,
    SHARES,
    SLOTS,
    TABLES,
    ColumnTypes,
    arrow_column,
    arrow_table,
    arrow_type,
    check_names,
    check_same_types,
    column_types,
    duckdb_type,
    extents_table,
    extents_types,
    joined_parts,
    rows_table,
    single,
    stored,
    table_digest,
)


@dataclass(frozen=True)
class Digest:
    """XXH3 of 128 bits, in hexadecimal."""

    keys: str
    """Of the float32 keys, call after call, in slot order."""
    columns: str
    """Of what is said of samples and of the space's slots: names, types and entries, and how the slots lie."""


def digests(batch: Batch, layers: Mapping[str, str]) -> dict[str, Digest]:
    """By layer, of those of `layers` (layer -> space) that the batch holds rows of."""
    held = {name: rows for name, rows in batch.layers.items() if name in layers and rows}
    columns = {space: _of_columns(batch, space) for space in {layers[name] for name in held}}
    return {name: Digest(_of_keys(rows), columns[layers[name]]) for name, rows in held.items()}


def _of_keys(rows: Sequence[LayerRows]) -> str:
    return checksum_pieces(np.ascontiguousarray(each.keys).reshape(-1).view(np.uint8).data for each in rows)


def _of_columns(batch: Batch, space: str) -> str:
    digest = xxhash.xxh3_128(_of_arrays(batch.samples).encode())
    digest.update(repr(sorted((batch.unknown or {}).items())).encode())
    for extent in batch.extents:
        if extent.space == space:
            digest.update(_of_extent(extent).encode())
    return str(digest.hexdigest())


def _of_extent(extent: Extent) -> str:
    lists = {"row": extent.row, "position": extent.position}
    said = _of_arrays({name: column for name, column in lists.items() if column is not None})
    return f"{extent.call}:{extent.rows}:{extent.length}:{said}:{_of_arrays(extent.columns)}"


def _of_arrays(columns: Mapping[str, Array]) -> str:
    types = {name: SAMPLES.get(name) or duckdb_type(columns[name]) or "" for name in sorted(columns)}
    return table_digest(repr(types), arrow_table(columns, types))


_TAKEN_OF_SAMPLES = dict(SLOTS) | dict(SAMPLES)
_TAKEN_OF_EXTENTS = dict(EXTENTS) | {"slot": "BIGINT", "datapoint": "BIGINT"}


class SlotRows:
    """The datapoints and slots of a shard, as batches bring them."""

    def __init__(self, spaces: Iterable[str]) -> None:
        self.spaces = {name: ExtentRows(name) for name in dict.fromkeys(spaces)}
        """By name, in the order in which they came."""
        self._samples = SampleRows()

    def add_space(self, name: str) -> None:
        """Make room for a space, where there is none yet."""
        self.spaces.setdefault(name, ExtentRows(name))

    def append(self, batch: Batch) -> dict[tuple[str, int], tuple[int, int]]:
        """Add one step; returns where each extent came to lie: (space, call) -> first slot and number of slots.

        Raises BadInput, naming the column that does not fit what came before.
        """
        first_datapoint = self._samples.append(batch.step, batch.samples, batch.unknown)
        placed = {}
        for extent in batch.extents:
            self.add_space(extent.space)
            first_slot = self.spaces[extent.space].append(batch.step, first_datapoint, extent)
            placed[extent.space, extent.call] = first_slot, extent.slots
        return placed

    @property
    def width(self) -> int:
        """How many spaces and columns there are."""
        return sum(1 + len(rows.types) for rows in self.spaces.values()) + len(self._samples.types)

    def columns(self) -> dict[str, dict[str, str]]:
        """DuckDB types of the columns of samples, and by space of what is said of its single slots."""
        return {"samples": dict(self._samples.types), **{name: dict(rows.types) for name, rows in self.spaces.items()}}

    def take(self) -> dict[str, pa.Table]:
        """The rows by table since the last call; a table without new rows is absent."""
        tables = {"samples": self._samples.take()}
        tables |= {extents_table(name): rows.take() for name, rows in self.spaces.items()}
        return {name: rows for name, rows in tables.items() if rows is not None}


class SampleRows:
    """Numbers the datapoints of a shard from 0, in the order of steps and rows."""

    def __init__(self) -> None:
        self.types: dict[str, str] = dict(SAMPLES)
        """Columns of the table; the user's are known from the first step on."""
        self._count = 0
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
        for name in (*SAID, *(self._user or {})):
            column = stored(columns[name], self.types[name])
            if len(column) != rows:
                raise BadInput(
                    f"column {name!r} has {len(column)} entries for {rows} rows.",
                    hint="Pass one value for each row.",
                    field=name,
                )
            parts = self._parts.setdefault(name, [])
            parts.append(column)
            if unknown is not None:
                parts.append(single(unknown.get(name), self.types[name]))
        self._steps.append((step, rows, unknown is not None))
        first, self._count = self._count, self._count + rows + (unknown is not None)
        return first

    def _check(self, columns: Mapping[str, NDArray[Any]]) -> None:
        types = column_types({name: column for name, column in columns.items() if name not in SAID})
        if self._user is None:
            check_names(types, _TAKEN_OF_SAMPLES)
            self._user = types
            self.types |= types
        elif types != self._user:
            check_same_types(types, self._user, when="at the first step")

    def take(self) -> pa.Table | None:
        """The rows since the last call; None where there are none."""
        if self._taken == self._count:
            self._steps, self._parts = [], {}
            return None
        steps = np.array([step for step, _, _ in self._steps], dtype=np.int64)
        extra = np.array([unknown for _, _, unknown in self._steps], dtype=bool)
        counts = np.array([rows for _, rows, _ in self._steps], dtype=np.int64) + extra
        columns = {name: joined_parts(parts) for name, parts in self._parts.items()}
        columns["datapoint"] = np.arange(self._taken, self._count, dtype=np.int64)
        columns["step"] = np.repeat(steps, counts)
        columns["row"] = _rows(counts, extra)
        self._taken, self._steps, self._parts = self._count, [], {}
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


class ExtentRows:
    """Numbers the slots of a space from 0, in the order of steps and calls."""

    def __init__(self, space: str) -> None:
        self.types: dict[str, str] = {}
        """What is said of single slots, under the type of one slot; known from the first time on."""
        self._space = space
        self._count = 0
        """Slots seen so far."""
        self._extents: list[tuple[Any, ...]] = []
        self._lists: dict[str, list[NDArray[Any] | None]] = {}

    def append(self, step: int, first_datapoint: int, extent: Extent) -> int:
        """Add an extent; returns its first slot. Raises BadInput for a column of another type than the first time."""
        slots = extent.slots
        self._check(extent)
        for name, column in self._lists_of(extent).items():
            if len(column) != slots:
                raise BadInput(
                    f"column {name!r} has {len(column)} entries for {slots} slots of space {self._space!r}.",
                    hint="Pass one value for each slot.",
                    field=name,
                )
            # Extents before the first that says something of single slots say nothing of them.
            self._lists.setdefault(name, [None] * len(self._extents)).append(column)
        first, self._count = self._count, self._count + slots
        self._extents.append((step, extent.call, first, slots, extent.rows, extent.length, first_datapoint))
        for parts in self._lists.values():
            if len(parts) < len(self._extents):
                parts.append(None)
        return first

    def _lists_of(self, extent: Extent) -> dict[str, NDArray[Any]]:
        lists: dict[str, NDArray[Any]] = {}
        if extent.row is not None:
            known = extent.row >= 0
            lists["row"] = extent.row if known.all() else np.ma.MaskedArray(extent.row, mask=~known)
        if extent.position is not None:
            lists["position"] = extent.position
        return lists | {name: stored(column, self.types[name]) for name, column in extent.columns.items()}

    def _check(self, extent: Extent) -> None:
        if not extent.columns:
            return
        types = column_types(extent.columns)
        new = {name: kind for name, kind in types.items() if name not in self.types}
        if new:
            check_names(self.types | new, _TAKEN_OF_EXTENTS)
            self.types |= new
        check_same_types(types, {name: self.types[name] for name in types}, when="when it was first said")

    def take(self) -> pa.Table | None:
        """The rows since the last call; None where there are none."""
        if not self._extents:
            return None
        types = extents_types(self.types)
        plain = [name for name in EXTENTS if name not in ("row", "position")]
        columns: dict[str, Any] = dict(zip(plain, zip(*self._extents, strict=True), strict=True))
        for name in types:
            if name not in columns:
                columns[name] = _lists(self._lists.get(name), len(self._extents), types[name])
        self._extents, self._lists = [], {}
        return arrow_table(columns, types)


def _lists(parts: Sequence[NDArray[Any] | None] | None, extents: int, kind: str) -> pa.Array:
    """[E] lists of a DuckDB list type, NULL where an extent has none."""
    if parts is None:
        return pa.nulls(extents, type=arrow_type(kind))
    lengths = np.array([0 if part is None else len(part) for part in parts], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]).astype(np.int32)
    values = arrow_column(joined_parts([part for part in parts if part is not None]), kind[:-2])
    missing = pa.array([part is None for part in parts])
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=arrow_type(kind), mask=missing)


class LogRows:
    """Rows of plain values by table; learns which settings the optimizer has."""

    def __init__(self, settings: ColumnTypes, label_names: Mapping[str, Sequence[str]], several: bool = False) -> None:
        """`several`: whether more than one optimizer is logged."""
        self._factors = {**TABLES["factors"], **(FIRST_STEP if several else {})}
        self.settings: dict[str, str] = dict(SETTINGS) | dict(settings)
        """DuckDB types of the optimizer's settings: those given, then others as they are seen."""
        self.further: dict[str, ColumnTypes] = {}
        """Tables that came while recording."""
        self._named: dict[str, list[dict[str, Any]]] = {}
        """Rows of tables that have the settings as columns; what a row lacks is NULL."""
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        for dataset, names in label_names.items():
            self._add("labels", [(dataset, label, name) for label, name in enumerate(names)])

    def append(self, batch: Batch, digested: Mapping[str, str]) -> None:
        """Add what one batch says; `digested`: layer -> space, of layers of which a digest is kept at each step."""
        for log in batch.logs:
            self._append_log(log)
        self._add("defects", [(d.step, d.layer, d.reason) for d in batch.defects])
        self._add(
            "watch", [(w.step, w.parameter, w.one_step, w.accumulated, w.way, w.rounding, w.noise) for w in batch.watch]
        )
        self._add("random_states", [(batch.step, device, state) for device, state in batch.random_states.items()])
        self._add("shares", [(batch.step, s.space, s.share, s.slots, s.kept) for s in batch.shares])
        found = digests(batch, digested) if digested else {}
        self._add("digests", [(batch.step, name, digest.keys, digest.columns) for name, digest in found.items()])

    def _append_log(self, log: StepLog) -> None:
        numbered = {index if group.number is None else group.number: group for index, group in enumerate(log.groups)}
        if not log.more:
            first = dict(numbered[0].settings) if 0 in numbered else {}
            clip = log.factors[0].factor if log.factors else None
            step = {"step": log.step, "updated": log.updated, "first_step": log.first_step, "clip": clip}
            self._named.setdefault("steps", []).append(first | step)
        groups = self._named.setdefault("parameter_groups", [])
        for number, group in numbered.items():
            groups.append({**group.settings, "step": log.step, "group": number})
            if group.settings.keys() - self.settings.keys():
                self.settings |= _types(group.settings, self.settings)
        rows = [(log.step, f.parameter, f.group, f.factor, f.residual, f.first_step) for f in log.factors]
        self._add("factors", [row[: len(self._factors)] for row in rows])
        alone = [(log.step, f.parameter, f.alone.rows, f.alone.gradient) for f in log.factors if f.alone is not None]
        self._add("rounding_gradients", alone)

    def _add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            if table in OPTIONAL:
                self.further[table] = OPTIONAL[table]
            self._rows.setdefault(table, []).extend(rows)

    def take(self) -> dict[str, pa.Table]:
        """The rows by table since the last call; a table without new rows is absent."""
        tables = {name: self._table(name, rows) for name, rows in self._named.items() if rows}
        types = {**TABLES, **OPTIONAL, **SHARES, "factors": self._factors}
        tables |= {name: rows_table(rows, types[name]) for name, rows in self._rows.items()}
        self._named, self._rows = {}, {}
        return tables

    def _table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        types = {**TABLES[name], **self.settings}
        return arrow_table({column: [row.get(column) for row in rows] for column in types}, types)


def _types(settings: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    new = {name: value for name, value in settings.items() if name not in known}
    return {name: "BOOLEAN" if isinstance(value, (bool, np.bool_)) else "DOUBLE" for name, value in new.items()}
