"""Writes a shard again without some of its samples.

What is left of a shard's samples and slots when some samples are taken out: which stay, and their new numbers.

Samples, slots and the rows of a batch are numbered anew, without gaps; steps are not, and an extent without slots stays
one. Shapes: D datapoints of the shard, E extents and T slots of a space.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store import shard
from dualform.store.files.durable_files import Blocks, make_folder, sync_folder
from dualform.store.files.segment import MatrixForm
from dualform.store.layer import Layer
from dualform.store.manifest import Manifest, Shard
from dualform.store.reading.opening import FolderContents, ShardContents
from dualform.store.reading.shard_tables import Samples, Tables, listed_key_rows, whole
from dualform.store.reading.space import Space
from dualform.store.rows import FOLDER, KIND, OWNER, Entries, Integers
from dualform.store.sources.key_format import StoredRows
from dualform.store.tables import OTHERS, TABLES, ColumnTypes, arrow_column, extents_table, rows_table, view_statements
from dualform.store.writing.rows_writer import RowsWriter

Stays = NDArray[np.bool_]


class KeptSlots:
    """Of one shard."""

    def __init__(self, tables: Tables, manifest: Manifest, stays: Stays, last: int | None) -> None:
        """`stays` bool[D]. `last`: the last step that is part of the memory, None for all; the extents behind go.

        Raises BadInput where slots are of rows that are not known, so that nobody can tell whose they are.
        """
        self._tables, self._manifest = tables, manifest
        self.stays = stays
        self._new: Integers = np.cumsum(stays) - stays
        self._samples = Samples(tables)
        self._extents = {name: self._of_space(name, last) for name in manifest.spaces}
        self._spaces = {layer.name: layer.space for layer in manifest.layers}

    def samples(self) -> pa.Table:
        table = whole(self._tables, "samples").filter(pa.array(self.stays))
        steps = np.asarray(table["step"], dtype=np.int64)
        row = np.arange(len(steps)) - np.searchsorted(steps, steps)  # steps ascend, and so do rows within one
        numbered: dict[str, NDArray[Any]] = {"datapoint": np.arange(len(steps)), "row": row.astype(np.int32)}
        return _with(table, numbered, self._tables.types["samples"])

    def extents(self, space: str) -> pa.Table:
        return self._extents[space].table

    def slots(self, space: str) -> Stays:
        """bool[T]: which stay."""
        return self._extents[space].stays

    def entries(self, layer: str) -> Stays:
        """bool[H]: which of a layer's entries stay."""
        own = self._entries(layer)
        stays = self.slots(self._spaces[layer])
        return stays if own.slots is None else stays[own.slots]

    def entry_rows(self) -> list[tuple[str, int, int]]:
        """The rows of the table `entries`, their slots as they are numbered now."""
        found = []
        for layer, space in self._spaces.items():
            own, extents = self._entries(layer), self._extents[space]
            slots = np.arange(len(extents.stays)) if own.slots is None else own.slots
            now = extents.new[slots[extents.stays[slots]]]
            starts = np.flatnonzero(np.diff(now, prepend=-2) != 1)
            lengths = np.diff(np.append(starts, len(now)))
            found += [(layer, int(now[start]), int(n)) for start, n in zip(starts, lengths, strict=True)]
        return found

    def products(self) -> pa.Table:
        """The table `products`: each product with what stays of its slots, and none without any."""
        table = whole(self._tables, "products")
        first, slots = (np.asarray(table[name], dtype=np.int64) for name in ("first_slot", "slots"))
        layers = table["layer"].to_pylist()
        counted = {name: np.append(own.new, own.stays.sum()) for name, own in self._extents.items()}
        of = [counted[self._spaces[layer]] for layer in layers]
        now = np.array([own[at] for own, at in zip(of, first, strict=True)], dtype=np.int64)
        stop = np.array([own[min(at, len(own) - 1)] for own, at in zip(of, first + slots, strict=True)], dtype=np.int64)
        numbered = _with(table, {"first_slot": now, "slots": stop - now}, self._tables.types["products"])
        return numbered.filter(pa.array(stop > now))

    def _entries(self, layer: str) -> Entries:
        table = whole(self._tables, "entries")
        own = table.filter(pa.compute.equal(table["layer"], layer))
        first, slots = (np.asarray(own[name], dtype=np.int64) for name in ("first_slot", "slots"))
        return Entries(first, slots, len(self._extents[self._spaces[layer]].stays))

    def _of_space(self, name: str, last: int | None) -> _KeptExtents:
        space = Space(name, self._tables, self._samples, self._manifest.columns[name])
        if space.extents.unknown_datapoints or len(self._samples.unknown()[0]):
            raise BadInput(
                f"samples cannot be deleted: the rows of slots in space {name!r} are unknown.",
                hint="Record the training again, without the samples.",
                field="where",
            )
        return _KeptExtents(space, whole(self._tables, extents_table(name)), self.stays, self._new, last)


class _KeptExtents:
    """Of one space."""

    def __init__(self, space: Space, table: pa.Table, stays: Stays, new: Integers, last: int | None) -> None:
        """`new` int64[D]: the number that each datapoint would have, by how many before it stay."""
        extents = space.extents
        datapoint, extent = extents.every_datapoint(), np.repeat(np.arange(len(extents.step)), extents.slots)
        there = extents.step <= (np.iinfo(np.int64).max if last is None else last)
        self.stays: Stays = stays[datapoint] & there[extent]
        """bool[T]."""
        self.new: Integers = np.cumsum(self.stays) - self.stays
        """int64[T]: the number that each slot would have, by how many before it stay."""
        counted = np.append(new, int(stays.sum()))
        slots = np.bincount(extent[self.stays], minlength=len(there))
        first = counted[extents.first_datapoint]
        numbers = {
            "first_slot": np.cumsum(slots) - slots,
            "slots": slots,
            "rows": (counted[extents.first_datapoint + extents.rows] - first).astype(np.int32),
            "first_datapoint": first,
        }
        types = dict(zip(table.column_names, table.schema.types, strict=True))
        lists: dict[str, pa.Array] = {}
        rows = (new[datapoint] - first[extent]).astype(np.int32)
        for column, kind in types.items():
            if pa.types.is_list(kind):
                lists[column] = _kept_lists(table[column], self.stays, extents.slots, rows if column == "row" else None)
        columns = {name: pa.array(own) for name, own in numbers.items()} | lists
        arrays = [columns.get(name, table[name]) for name in table.column_names]
        self.table = pa.table(arrays, schema=table.schema).filter(pa.array(there))


def _kept_lists(column: pa.ChunkedArray, stays: Stays, slots: Integers, other: Integers | None) -> pa.Array:
    """A column of lists, one for each extent, with the entries of slots that stay; `other`: in place of the entries."""
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = pa.concat_arrays(joined.chunks) if joined.num_chunks else pa.array([], type=column.type)
    given = np.asarray(joined.is_valid())
    of_given = np.repeat(given, slots)
    own = stays[of_given]
    values = joined.flatten() if other is None else arrow_column(other[of_given], "INTEGER")
    lengths = np.bincount(np.repeat(np.arange(len(given)), slots)[of_given & stays], minlength=len(given))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    chosen = values.filter(pa.array(own))
    return pa.ListArray.from_arrays(pa.array(offsets), chosen, type=column.type, mask=pa.array(~given))


def _with(table: pa.Table, columns: Mapping[str, NDArray[Any]], types: ColumnTypes) -> pa.Table:
    """The table with other numbers in some of its columns."""
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, arrow_column(column, types[name]))
    return table


_AT_ONCE = 32 << 20
"""Bytes of rows that are read at once."""
_FILE_BYTES = 256 << 20
"""About how long a new file becomes at most."""


@dataclass(frozen=True)
class Removal:
    """What goes beside the samples, in all shards alike."""

    labels: frozenset[tuple[Any, Any]] = frozenset()
    """(dataset, label) that no sample has any more."""
    datasets: frozenset[str | None] = frozenset()
    """Datasets that no sample is of any more."""
    blocks: frozenset[str] = frozenset()
    """Parameter blocks whose gradients that are rounding alone go …"""
    first_step: int = 0
    """… from this step of the run on. It is the first that had a sample of those that go …"""
    end: int = 0
    """… and the memory ends once so many steps were taken, counted from the run's first."""


def rewrite_shard(
    run: FolderContents, number: int, folder: Path, stays: Stays, removal: Removal, check: Callable[[], None]
) -> Shard:
    """Write one of a run's shards to a new folder; returns what the manifest is to say of it.

    `stays` bool[D]: the shard's datapoints, False for those behind the end of the memory as well. Nothing is written
    outside the folder. Raises BadInput where whose a slot is cannot be told, Damaged where a file is.
    """
    old = run.shards[number]
    with old.tables.reading():
        kept = KeptSlots(old.tables, old.manifest, stays, run.last)
        make_folder(folder)
        tables = _tables(run, number, kept, removal)
        segments = list[tuple[Any, ...]]()
        key_rows = list[tuple[str, int, NDArray[np.int64]]]()
        make_folder(folder / "layers")
        blocks = Blocks()
        for layer in old.manifest.layers:
            make_folder(folder / "layers" / layer.folder)
            rows, of_entry = _rows_that_stay(old, layer, kept.entries(layer.name))
            if of_entry is not None and len(of_entry):
                key_rows.append((layer.name, 0, of_entry))
            for kind, chosen in rows.items():
                stored = old.stored.get((layer.name, kind), [])
                writer = RowsWriter(layer.name, kind, folder, f"layers/{layer.folder}", blocks)
                segments += _written(writer, stored, chosen, check)
            sync_folder(folder / "layers" / layer.folder)
        tables["segments"] = rows_table(segments, TABLES["segments"])
        tables["key_rows"] = rows_table(key_rows, TABLES["key_rows"])
        if old.manifest.others is not None:
            tables |= _others(run, old, folder, removal, check)
        views = view_statements(old.manifest.spaces, old.manifest.columns)
        commits = old.manifest.shards[0].commits
        database = folder / shard.FILE
        marks = shard.append(database, commits, tables, shard.create(database, old.manifest.tables(), views))
    for made in (folder / "layers", folder):
        sync_folder(made)
    return Shard(folder.name, commits + 1, marks)


def early_rows(run: FolderContents, number: int, table: str) -> Stays:
    """bool[rows]: which rows of a shard's table are part of the memory, of a table with steps."""
    steps = np.asarray(run.shards[number].tables.columns(table, ["step"])[0], dtype=np.int64)
    found: Stays = np.ones(len(steps), dtype=np.bool_) if run.last is None else steps <= run.last
    if number == 0 and run.last is not None and table in run.told:
        found[run.told[table] :] = False
    return found


def _tables(run: FolderContents, number: int, kept: KeptSlots, removal: Removal) -> dict[str, pa.Table]:
    """Every table but those that speak of files. Digests are not written again: they would confirm a guess."""
    old = run.shards[number]
    found = {"samples": kept.samples(), "products": kept.products()}
    found |= {extents_table(space): kept.extents(space) for space in old.manifest.spaces}
    found["entries"] = rows_table(kept.entry_rows(), TABLES["entries"])
    elsewhere = ("digests", "segments", "key_rows", *OTHERS, *found)
    for name, types in old.tables.types.items():
        if name in elsewhere:
            continue
        table = whole(old.tables, name)
        if "step" in types:
            table = table.filter(pa.array(early_rows(run, number, name)))
        found[name] = table
    found["labels"] = _filtered(
        found["labels"],
        ("dataset", "label"),
        lambda dataset, label: dataset not in removal.datasets and (dataset, label) not in removal.labels,
    )
    if "rounding_gradients" in found:
        found["rounding_gradients"] = _filtered(
            found["rounding_gradients"],
            ("step", "parameter"),
            lambda step, block: step < removal.first_step or block not in removal.blocks,
        )
    return found


def _filtered(table: pa.Table, columns: tuple[str, str], stays: Callable[[Any, Any], bool]) -> pa.Table:
    said = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return table.filter(pa.array([stays(*row) for row in said], pa.bool_()))


def _rows_that_stay(
    old: ShardContents, layer: Layer, stays: Stays
) -> tuple[dict[str, Stays], NDArray[np.int64] | None]:
    """By kind, bool[rows]: which stored rows stay; and the row of each entry that does, where inputs repeat."""
    found, of_entry = dict[str, Stays](), None
    per_row = layer.key_format.per_row
    if layer.keys and layer.repeats:
        before = listed_key_rows(old.tables, layer.name)[stays]
        used = np.zeros(_count(old, layer, "keys"), dtype=np.bool_)
        used[before // per_row] = True
        found["keys"] = used
        of_entry = (np.cumsum(used) - 1)[before // per_row] * per_row + before % per_row
    elif layer.keys:
        rows = stays.reshape(-1, per_row)
        if (rows != rows[:, :1]).any():
            raise BadInput(
                f"layer {layer.name!r} stores one key for several samples, and where matches only some of them.",
                hint="Write a condition that matches none of them, or all.",
                field="where",
            )
        found["keys"] = rows[:, 0]
    if layer.keys and layer.values:
        found["values"] = stays
    return found, of_entry


def _count(old: ShardContents, layer: Layer, kind: str) -> int:
    return sum(rows.rows for _, rows in old.stored.get((layer.name, kind), []))


def _written(
    writer: RowsWriter,
    stored: Collection[tuple[MatrixForm, StoredRows]],
    stays: Stays,
    check: Callable[[], None],
) -> Iterator[tuple[Any, ...]]:
    """The rows for the table `segments`, one for each file that is written."""
    segment, first = 0, 0
    for form, rows in stored:
        own, gathered = stays[first : first + rows.rows], 0
        first += rows.rows
        size = max(1, _AT_ONCE // max(1, form.row_bytes))
        for start in range(0, rows.rows, size):
            check()
            chosen = own[start : start + size]
            gathered += writer.append(rows.read(start, start + len(chosen))[chosen], form)
            if gathered >= _FILE_BYTES or start + size >= rows.rows:
                yield from writer.finish(segment)
                segment, gathered = segment + 1, 0
                writer.begin(segment)


def _others(
    run: FolderContents, old: ShardContents, folder: Path, removal: Removal, check: Callable[[], None]
) -> Mapping[str, pa.Table]:
    """Rows of no layer, but for moments that are no part of the memory, and for those between the first step that had
    a sample of those that go and the end: from one to the next, a running mean tells of a single batch.
    """
    make_folder(folder / FOLDER)
    moments = whole(old.tables, "other_rows")
    at_step = np.asarray(moments["at_step"], dtype=np.int64)
    stays: Stays = np.ones(len(at_step), dtype=np.bool_) if run.last is None else at_step <= run.last + 1
    stays &= (at_step <= removal.first_step) | (at_step >= removal.end)
    writer = RowsWriter("", KIND, folder, FOLDER, Blocks())
    rows = [(segment, *rest) for segment, _, _, *rest in _written(writer, old.stored.get(OWNER, []), stays, check)]
    sync_folder(folder / FOLDER)
    return {
        "other_rows": moments.filter(pa.array(stays)),
        "other_segments": rows_table(rows, OTHERS["other_segments"]),
    }


def manifest_of(old: Manifest, shards: list[Shard], deleted: Mapping[str, int]) -> Manifest:
    """What a manifest says once its shards were written anew; `deleted`: of each layer, how many slots went."""
    layers = [replace(own, deleted=own.deleted + deleted.get(own.name, 0)) for own in old.layers]
    return replace(old, shards=shards, layers=layers)
