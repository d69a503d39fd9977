"""What is left of a shard's samples and slots when some samples are taken out: which stay, and their new numbers.

Samples, slots and the rows of a batch are numbered anew, without gaps; steps are not, and an extent without slots stays
one. Shapes: D datapoints of the shard, E extents and T slots of a space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.entries import Entries, Integers
from dualform.store.manifest import Manifest
from dualform.store.samples import Samples
from dualform.store.shard_tables import Tables, whole
from dualform.store.space import Space
from dualform.store.tables import ColumnTypes, arrow_column, extents_table

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
