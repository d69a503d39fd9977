"""The layers of a snapshot, and views of parts of them.

The layers of a snapshot: which slots each has, and its keys and values. Shapes: H entries of a layer.

Some columns of a key source, as a view of a layer reads them. Shapes: n rows asked for.

Views as layers: what is asked by a name of its own, and stored as a part of another layer.

Shapes: d_in and d_out of the stored layer, G of its groups.

A view is one group of a layer whose weight is block-diagonal, asked by its number. It has the slots of its layer; its
keys and values are the group's columns of the layer's. Nothing is stored for it: a convolution of many groups is one
layer on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import NotFound
from dualform.store.files.durable_files import damaged
from dualform.store.files.segment import Segment
from dualform.store.layer import Layer, Parameter, Range
from dualform.store.manifest import Manifest
from dualform.store.reading.merged_tables import Products
from dualform.store.reading.opening import FolderContents, Sources, row_count
from dualform.store.reading.shard_tables import Tables, whole
from dualform.store.rows import Entries, Keys, OrderedRows, Rows
from dualform.store.sources import KeyFormat
from dualform.store.sources.key_format import KeySource
from dualform.store.sources.patches import PatchRows


@dataclass(frozen=True)
class ViewedLayer(Layer):
    """A view: all that a question needs to know of a layer. Logs and statuses are those of the stored one."""

    whole: Layer = field(kw_only=True)
    """The stored layer that it is a part of."""
    key_columns: Range = field(kw_only=True)
    """Of the stored layer's keys, the last one excluded."""
    value_columns: Range = field(kw_only=True)
    """Of its values."""

    @property
    def stored(self) -> Layer:
        return self.whole

    @property
    def own_keys(self) -> slice:
        return slice(*self.key_columns)

    @property
    def own_values(self) -> slice:
        return slice(*self.value_columns)

    @property
    def key_format(self) -> KeyFormat:
        return self.whole.key_format

    def log_name(self, block: str) -> str:
        names = zip(self.parameters, self.whole.parameters, strict=True)
        return next((whole.block_name for own, whole in names if own.block_name == block), block)


def view_named(layers: Mapping[str, Layer], name: str) -> ViewedLayer | None:
    """The view of that name of one of some stored layers; None where there is none."""
    of, _, own = name.rpartition(".")
    layer = layers.get(of)
    columns = None if layer is None else _columns(layer, own)
    if layer is None or columns is None:
        return None
    keys, values = columns
    return ViewedLayer(
        name,
        layer.space,
        keys[1] - keys[0],
        values[1] - values[0],
        tuple(_part(layer, place, keys, values) for place in layer.parameters),
        source=layer.source,
        repeats=layer.repeats,
        values=layer.values,
        dtype=layer.dtype,
        reason=layer.reason,
        whole=layer,
        key_columns=keys,
        value_columns=values,
    )


def _columns(layer: Layer, name: str) -> tuple[Range, Range] | None:
    """The columns of keys and of values that a view has; None where the layer has no view of that name."""
    if layer.groups == 1 or not name.isdecimal() or name != str(int(name)) or int(name) >= layer.groups:
        return None
    number, wide, high = int(name), layer.d_in // layer.groups, layer.d_out // layer.groups
    return (number * wide, (number + 1) * wide), (number * high, (number + 1) * high)


def _part(layer: Layer, place: Parameter, keys: Range, values: Range) -> Parameter:
    """The block of a view that lies in a block of its layer: some of its outputs."""
    first = ((place.columns if place.transposed else place.rows) or (0, 0))[0]
    own = first + values[0], first + values[1]
    part = replace(place, columns=own) if place.transposed else replace(place, rows=own)
    if place.start < layer.d_in:
        return part
    width = keys[1] - keys[0]
    return replace(part, start=width, stop=width + 1)


def some_columns(source: KeySource, start: int, stop: int) -> KeySource:
    """The rows of a source, of which only the columns from `start` on are there, `stop` excluded."""
    if (start, stop) == (0, source.width):
        return source
    if isinstance(source, PatchRows) and (narrow := source.of_channels(start, stop)) is not None:
        return narrow
    return SomeColumns(source, start, stop)


@dataclass(frozen=True, eq=False)
class SomeColumns:
    """A key source (key_format.py)."""

    source: KeySource
    start: int
    stop: int
    made: ClassVar[bool] = True

    @property
    def identity(self) -> Hashable:
        return self.source.identity, self.start, self.stop

    @property
    def first_row(self) -> int:
        return self.source.first_row

    @property
    def rows(self) -> int:
        return self.source.rows

    @property
    def width(self) -> int:
        return self.stop - self.start

    @property
    def segment(self) -> Segment | None:
        return self.source.segment

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.source.read(start, stop)[:, self.start : self.stop])

    def holding(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        matrix, places = self.source.holding(rows)
        return np.ascontiguousarray(matrix[places, self.start : self.stop]), np.arange(len(rows))

    def shifted(self, rows: int) -> SomeColumns:
        return replace(self, source=self.source.shifted(rows))

    def passing(self, *, first: bool = False) -> SomeColumns:
        return replace(self, source=self.source.passing(first=first))

    def verify(self) -> None:
        self.source.verify()


class StoredLayers(ABC):
    """Those of one memory, or of several runs read as one."""

    def __init__(
        self, path: Path, manifest: Manifest, tables: Tables, sources: Sources, contents: FolderContents | None
    ) -> None:
        """`contents`: what was found in a folder; None for what memory holds."""
        self.path, self.manifest, self.sources = path, manifest, sources
        self.layers: dict[str, Layer] = {layer.name: layer for layer in manifest.layers}
        self._tables, self._contents = tables, contents
        self._entries: dict[str, Entries] = {}

    @abstractmethod
    def count(self, space: str) -> int:
        """Slots of a space."""

    def layer(self, name: str) -> Layer:
        """A layer, or a view of one. Raises NotFound, listing the layers that exist."""
        if name in self.layers:
            return self.layers[name]
        view = view_named(self.layers, name)
        if view is None:
            reason = self.manifest.skipped.get(name)
            raise NotFound(
                f"There is no layer {name!r}" + (f": it was not recorded ({reason})." if reason else "."),
                hint=f"Layers: {', '.join(map(_named, self.layers.values()))}.",
                field="layer",
            )
        return view

    def entries(self, layer: str) -> Entries:
        """The slots that a layer has."""
        found = self.layer(layer).stored
        if found.name not in self._entries:
            table = whole(self._tables, "entries")
            own = table.filter(pa.compute.equal(table["layer"], found.name))
            first, slots = (np.asarray(own[name], dtype=np.int64) for name in ("first_slot", "slots"))
            self._entries[found.name] = Entries(first, slots, self.count(found.space))
        return self._entries[found.name]

    def products(self, layer: str) -> Products:
        """The products of the layer's errors and keys that the training rounded."""
        return Products.of(self._tables, layer, self.entries(layer))

    def keys(self, layer: str) -> Keys:
        """Raises NotFound where the recorder kept no keys, Damaged where there are more or fewer than entries."""
        found = self.layer(layer)
        if not found.keys:
            raise NotFound(
                f"The keys of layer {layer!r} were not stored: the training was recorded with keys=False.",
                hint="Rerun the training with this query: dualform.Rerun(model, optimizer, path, [query]).",
                field="layer",
            )
        entries = self.entries(layer).count
        of_entry = self._row_of_entry(found.stored)
        keys = Keys(self._sources_of(found, "keys"), found.d_in, entries, of_entry)
        self._require(found, "keys", keys.rows if of_entry is None else len(of_entry))
        return keys

    def values(self, layer: str) -> Rows:
        """Row e is entry e. Raises as `keys`, where the recorder kept no values."""
        found = self.layer(layer)
        if not found.values:
            raise NotFound(
                f"Layer {layer!r} was recorded without values.", hint="Record the training with values=True."
            )
        sources = self._sources_of(found, "values")
        if (order := self._row_of_value(found.stored)) is not None:
            return OrderedRows(sources, found.d_out, order)
        values = Rows(sources, found.d_out)
        self._require(found, "values", values.rows)
        return values

    def shard_rows(self, layer: str, kind: str) -> Sequence[int]:
        """How many rows of a stored layer's "keys" or "values" each shard has, in the order of `sources`."""
        if self._contents is None:
            return [row_count(self.sources.get((layer, kind), []))]
        return self._contents.rows.get((layer, kind), [0] * len(self.manifest.shards))

    def _sources_of(self, layer: Layer, kind: Literal["keys", "values"]) -> Sequence[KeySource]:
        stored = self.sources.get((layer.stored.name, kind), [])
        if layer.stored is layer:
            return stored
        columns = layer.own_keys if kind == "keys" else layer.own_values
        return [some_columns(source, columns.start, columns.stop) for source in stored]

    def check_counts(self) -> None:
        """Raises Damaged where a layer has not as many rows as entries; of repeated keys, this reads the whole list."""
        for layer in self.layers.values():
            if layer.keys and not layer.repeats:
                self.keys(layer.name)
            if layer.keys and layer.values:
                self.values(layer.name)

    def _require(self, layer: Layer, kind: str, rows: int) -> None:
        entries = self.entries(layer.name).count
        if rows != entries:
            shard = self.path / self.manifest.shards[0].folder
            raise damaged(shard, f"is incomplete: layer {layer.name!r} has {rows} {kind} for {entries} slots")

    def _row_of_entry(self, layer: Layer) -> NDArray[np.int64] | None:
        """int64[H]: the row of each entry's key; None where row and entry are the same."""
        order = self._tables.entry_order(layer.name)
        if not layer.repeats:
            return order
        rows = self._contents.rows.get((layer.name, "keys"), []) if self._contents else []
        of_entry = self._tables.key_rows(layer.name, rows)
        return of_entry if order is None else of_entry[order]

    def _row_of_value(self, layer: Layer) -> NDArray[np.int64] | None:
        """As `_row_of_entry`, of the layer's values."""
        return self._tables.entry_order(layer.name)


def _named(layer: Layer) -> str:
    """A layer's name, and those of its groups in short."""
    return f"{layer.name} ({layer.view_names[0]} … {layer.view_names[-1]})" if layer.view_names else layer.name
