"""What each layer was fed at one step, in a few bytes: enough to tell another training from the same one run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from dualform.store.batch import Array, Batch, Extent, LayerRows
from dualform.store.durable_files import checksum_pieces
from dualform.store.tables import SAMPLES, arrow_table, duckdb_type, table_digest


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
