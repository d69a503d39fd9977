"""The tables of several shards as those of one memory.

The tables of several shards as those of one memory: slots in the order (step, shard, call, row, position).

Shapes: E extents of a space over all shards; H entries of a layer.

Datapoints and stored rows stand shard after shard, so that nothing of them is copied; extents are put in order, and
with them the slots. Logs of the optimizer are the first shard's, whose process writes weights and query sets, too.

Which products of errors and keys a training rounded to half precision, of one layer.

Shapes: n products.

What one shard or run says of rows alone, as lists of its slots, where another one says it of single slots.

A column of single slots hides that of the samples (tables.py), which would hide in all shards what it hides in one.

Shapes: E extents of a space, T slots of them, D datapoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.store.manifest import Manifest
from dualform.store.reading.shard_tables import TABLE, ListColumns, Samples, Tables, listed_key_rows, taken, whole
from dualform.store.reading.space import PLAIN, Extents
from dualform.store.rows import Entries, Integers
from dualform.store.tables import ColumnTypes, arrow_type, as_common, common_types, extents_table, joined


def missing_lists(part: Tables, table: str, name: str, kind: str) -> pa.ChunkedArray:
    """[E]: a column that the table of a shard or run does not have, of type `kind`.

    Of lists, an entry for each slot, which is what is said of its row; else, and where nothing is, NULL. Raises Damaged
    as reading columns does, and BadInput as `as_common`.
    """
    rows = part.rows(table) if table in part.types else 0
    of_samples = pa.types.is_list(arrow_type(kind)) and rows and name in part.types[TABLE]
    if not of_samples:
        return pa.chunked_array([pa.nulls(rows, arrow_type(kind))])
    samples = Samples(part)
    said = as_common(name, samples.column(name), kind.removesuffix("[]"))
    if said.null_count == len(said):
        return pa.chunked_array([pa.nulls(rows, arrow_type(kind))])
    extents = Extents(whole(part, table, PLAIN), ListColumns(part, table), samples.unknown)
    datapoints = extents.every_datapoint()
    entries = pa.array(said).take(pa.array(datapoints, mask=datapoints < 0))
    ends = pa.array(np.cumsum([0, *extents.slots]), pa.int32())
    return pa.chunked_array([pa.ListArray.from_arrays(ends, entries)])


def types_for_slots(columns: Mapping[str, ColumnTypes], manifests: Sequence[Manifest]) -> dict[str, dict[str, str]]:
    """The `columns` of all manifests, in which those of single slots also hold what one of them says of rows alone."""
    found = {table: dict(types) for table, types in columns.items()}
    for space in {space for manifest in manifests for space in manifest.spaces}:
        for manifest in manifests:
            of_rows, own = manifest.columns[TABLE], manifest.columns.get(space, {})
            hidden = {name: of_rows[name] for name in found[space] if name in of_rows and name not in own}
            found[space] = common_types(found[space], hidden)
    return found


@dataclass(frozen=True, eq=False)
class Products:
    """Ascending by entry."""

    first: Integers
    """int64[n]: the first entry of each; a product is that of consecutive entries."""
    stop: Integers
    """int64[n]: one past the last."""
    step: Integers
    copy: Integers
    """int64[n]: which copy of the weights each was computed with, of those of its step."""
    place: Integers
    """int64[n]: when it was added, among those of its step."""
    dtype: NDArray[np.object_]
    """[n]: "bfloat16" or "float16"."""

    @property
    def nbytes(self) -> int:
        return 6 * self.first.nbytes

    @classmethod
    def of(cls, tables: Tables, layer: str, entries: Entries) -> Products:
        """Of a layer with these entries."""
        table = whole(tables, "products")
        own = table.filter(pc.equal(table["layer"], layer))
        numbers = {name: np.asarray(own[name], dtype=np.int64) for name in ("first_slot", "slots", *_NUMBERS)}
        first = entries.of(numbers["first_slot"])
        order = np.argsort(first, kind="stable")
        kept = {name: numbers[name][order] for name in _NUMBERS}
        dtype = np.array(own["dtype"].to_pylist(), dtype=object)[order]
        return cls(first[order], first[order] + numbers["slots"][order], **kept, dtype=dtype)


_NUMBERS = ("step", "copy", "place")


def merged(parts: list[pa.Table]) -> pa.Table:
    """The products of several shards, each of which numbers its copies on its own."""
    found = [
        part.set_column(part.column_names.index("copy"), "copy", pc.add(pc.multiply(part["copy"], len(parts)), number))
        for number, part in enumerate(parts)
    ]
    return pa.concat_tables(found)


_FROM_ALL = ("defects", "digests", "shares")


class MergedTables(Tables):
    """Tables (shard_tables.py)."""

    def __init__(
        self,
        parts: Sequence[Tables],
        types: Mapping[str, ColumnTypes],
        spaces: Mapping[str, str],
        last: int | None,
        told: Mapping[str, int],
    ) -> None:
        """`spaces`: the space of each layer. `last`: the last step that is part of the memory; None for all. `told`: of
        some tables, how many rows of the first shard are.
        """
        self.types = types
        self._parts, self._spaces, self._last, self._told = parts, spaces, last, told
        self._extents: dict[str, _Merged] = {}

    def rows(self, table: str) -> int:
        return len(self.columns(table, [next(iter(self.types[table]))])[0])

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        if table.startswith("extents_"):
            merged = self.extents(table)
            return [merged.column(name, self._joined(table, name)) for name in names]
        if table == "entries":
            return [self._entries[name] for name in names]
        if table == "products":
            return [self._products[name] for name in names]
        if table == "samples" or table in _FROM_ALL:
            return [self._numbered(table) if name == "datapoint" else self._joined(table, name) for name in names]
        return [self._early(0, table, column) for column in self._parts[0].columns(table, names)]

    def some(self, table: str, name: str, rows: Integers) -> pa.Array:
        if not table.startswith("extents_"):
            return taken(self.columns(table, [name])[0], rows)
        place = self.extents(table).order[rows]
        order, found, start = np.argsort(place, kind="stable"), list[pa.Array](), 0
        for number, part in enumerate(self._parts):
            stop = start + self._kept(number, table)
            own = np.sort(place[(place >= start) & (place < stop)]) - start
            kind = self.types[table][name]
            known = name in part.types.get(table, {})
            entries = part.some(table, name, own) if known else taken(missing_lists(part, table, name, kind), own)
            found.append(as_common(name, entries, kind))
            start = stop
        return joined(found, arrow_type(self.types[table][name])).take(pa.array(np.argsort(order)))

    def _numbered(self, table: str) -> pa.ChunkedArray:
        return pa.chunked_array([pa.array(np.arange(sum(self._kept(n, table) for n in range(len(self._parts)))))])

    @contextmanager
    def reading(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.reading())
            yield

    def extents(self, table: str) -> _Merged:
        if table not in self._extents:
            columns = [self._steps_and_calls(part, table) for part in range(len(self._parts))]
            samples = [self._kept(part, "samples") for part in range(len(self._parts))]
            self._extents[table] = _Merged(columns, samples)
        return self._extents[table]

    def entry_order(self, layer: str) -> Integers:
        """int64[H]: the place of each entry among those of all shards, shard after shard."""
        merged = self.extents(extents_table(self._spaces[layer]))
        before, starts = 0, []
        for part, firsts, slots in merged.by_part():
            own = self._entries_of(part, layer)
            first = own.of(firsts)
            starts.append(np.where((slots > 0) & (first >= 0), first + before, -1))
            before += own.count
        start = np.concatenate([np.empty(0, np.int64), *starts])[merged.order]
        slots = merged.slots[start >= 0]
        start = start[start >= 0]
        return np.repeat(start - (np.cumsum(slots) - slots), slots) + np.arange(int(slots.sum()))

    def key_rows(self, layer: str, rows: Sequence[int]) -> Integers:
        """Shard after shard, whose stored rows follow each other, too."""
        before = np.cumsum([0, *rows[:-1]] if rows else [0] * len(self._parts)).tolist()
        own = zip(self._parts, before, strict=True)
        return np.concatenate([listed_key_rows(part, layer) + first for part, first in own])

    @cached_property
    def _entries(self) -> dict[str, pa.ChunkedArray]:
        rows: list[tuple[list[str], Integers, Integers]] = []
        for layer, space in self._spaces.items():
            merged = self.extents(extents_table(space))
            has = [
                (slots > 0) & (self._entries_of(part, layer).of(firsts) >= 0)
                for part, firsts, slots in merged.by_part()
            ]
            kept = np.concatenate([np.empty(0, bool), *has])[merged.order]
            rows.append(([layer] * int(kept.sum()), merged.first_slot[kept], merged.slots[kept]))
        return {
            "layer": pa.chunked_array([pa.array(names, pa.string()) for names, _, _ in rows], pa.string()),
            "first_slot": pa.chunked_array([pa.array(first) for _, first, _ in rows], pa.int64()),
            "slots": pa.chunked_array([pa.array(slots) for _, _, slots in rows], pa.int64()),
        }

    @cached_property
    def _products(self) -> pa.Table:
        return merged([self._products_of(part) for part in range(len(self._parts))])

    def _products_of(self, part: int) -> pa.Table:
        """Of one shard, with slots as they are numbered here."""
        table = whole(self._parts[part], "products").slice(0, self._kept(part, "products"))
        own = np.asarray(table["first_slot"])
        spaces = np.array([self._spaces[layer] for layer in table["layer"].to_pylist()], dtype=object)
        first = np.empty(len(own), np.int64)
        for space in set(spaces):
            first[spaces == space] = self.extents(extents_table(space)).first_slots(part, own[spaces == space])
        return table.set_column(table.column_names.index("first_slot"), "first_slot", pa.array(first))

    def _entries_of(self, part: int, layer: str) -> Entries:
        table = whole(self._parts[part], "entries")
        own = table.filter(pa.compute.equal(table["layer"], layer))
        return Entries(np.asarray(own["first_slot"]), np.asarray(own["slots"]), -1)

    def _steps_and_calls(self, part: int, table: str) -> Mapping[str, Integers]:
        names, kept = ("step", "call", "first_slot", "slots"), self._kept(part, table)
        if table not in self._parts[part].types:
            return {name: np.empty(0, np.int64) for name in names}
        found = self._parts[part].columns(table, names)
        return {name: np.asarray(c.slice(0, kept), dtype=np.int64) for name, c in zip(names, found, strict=True)}

    def _joined(self, table: str, name: str) -> pa.ChunkedArray:
        """A column of all shards, one after the other; as `missing_lists` where a shard does not have it."""
        kind = self.types[table][name]
        chunks: list[Any] = []
        for number, part in enumerate(self._parts):
            known = name in part.types.get(table, {})
            column = part.columns(table, [name])[0] if known else missing_lists(part, table, name, kind)
            chunks += as_common(name, self._early(number, table, column), kind).chunks
        return pa.chunked_array(chunks, arrow_type(kind))

    def _early(self, part: int, table: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """What a shard's column says of steps up to the last one: rows are now and then told of an earlier step."""
        kept = self._kept(part, table)
        if kept == len(column):
            return column
        steps = np.asarray(self._parts[part].columns(table, ["step"])[0])
        early = self._told_before(part, table, steps)
        return column.slice(0, kept) if early[:kept].all() else column.filter(pa.array(early))

    def _told_before(self, part: int, table: str, steps: Integers) -> NDArray[np.bool_]:
        """bool[rows]: which of a table's rows count, by their steps."""
        early: NDArray[np.bool_] = steps <= (np.inf if self._last is None else self._last)
        if part == 0 and table in self._told:
            early[self._told[table] :] = False
        return early

    def _kept(self, part: int, table: str) -> int:
        """Rows of a shard's table up to the last step; tables without steps are kept whole."""
        types = self._parts[part].types.get(table, {})
        rows = self._parts[part].rows(table) if types else 0
        if self._last is None or "step" not in types:
            return rows
        return int(self._told_before(part, table, np.asarray(self._parts[part].columns(table, ["step"])[0])).sum())


class _Merged:
    """The order of the extents of all shards."""

    def __init__(self, parts: Sequence[Mapping[str, Integers]], samples: Sequence[int]) -> None:
        self._parts = parts
        step, call, slots = (np.concatenate([part[name] for part in parts]) for name in ("step", "call", "slots"))
        counts = [len(part["step"]) for part in parts]
        shard = np.repeat(np.arange(len(parts)), counts)
        self.order: Integers = np.lexsort((call, shard, step))
        self._first_datapoint = np.repeat(np.cumsum([0, *samples[:-1]]), counts)[self.order]
        self.slots = slots[self.order]
        """int64[E], in order."""
        self.first_slot = np.cumsum(self.slots) - self.slots
        """int64[E], in order."""

    def by_part(self) -> Iterator[tuple[int, Integers, Integers]]:
        """Shard, first slots within it and numbers of slots, before they are put in order."""
        for number, part in enumerate(self._parts):
            yield number, part["first_slot"], part["slots"]

    def first_slots(self, part: int, own: Integers) -> Integers:
        """Where extents begin here whose first slots in one shard are `own`; each has slots."""
        before = sum(len(other["step"]) for other in self._parts[:part])
        rows = np.searchsorted(self._parts[part]["first_slot"], own, side="right") - 1
        places = np.empty(len(self.order), np.int64)
        places[self.order] = np.arange(len(self.order))
        return np.asarray(self.first_slot[places[before + rows]])

    def column(self, name: str, joined: pa.ChunkedArray) -> pa.ChunkedArray:
        if name == "first_slot":
            return pa.chunked_array([pa.array(self.first_slot)])
        found = joined.take(pa.array(self.order))
        if name == "first_datapoint":
            return pa.chunked_array([pa.array(np.asarray(found, dtype=np.int64) + self._first_datapoint)])
        return found
