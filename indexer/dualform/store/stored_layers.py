"""The layers of a snapshot: which slots each has, and its keys and values. Shapes: H entries of a layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.errors import NotFound
from dualform.store.entries import Entries
from dualform.store.layer import Layer
from dualform.store.manifest import Manifest
from dualform.store.missing_files import damaged
from dualform.store.opening import FolderContents
from dualform.store.products import Products
from dualform.store.rows import Keys, OrderedRows, Rows
from dualform.store.shard_sources import Sources, row_count
from dualform.store.shard_tables import Tables, whole
from dualform.store.sources.key_source import KeySource
from dualform.store.sources.some_columns import some_columns
from dualform.store.viewed_layer import view_named


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
