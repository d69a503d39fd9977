"""What each layer was fed at one step, in a few bytes: enough to tell another training from the same one run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.batch import Batch
from dualform.store.durable import checksum
from dualform.store.tables import SLOTS, arrow_table, duckdb_type, running_digest


@dataclass(frozen=True)
class Digest:
    """XXH3 of 128 bits, in hexadecimal."""

    keys: str
    """Of the float32 keys, in slot order."""
    columns: str
    """Of the slot columns: their names, types and entries, and how many slots there are."""


def digests(batch: Batch, layers: Mapping[str, str]) -> dict[str, Digest]:
    """By layer, of those of `layers` (layer -> space) that the batch holds rows of."""
    wanted = {name: rows.keys for name, rows in batch.layers.items() if name in layers}
    columns = {space: _of_columns(batch.slots[space]) for space in {layers[name] for name in wanted}}
    return {
        name: Digest(checksum(keys.reshape(-1).view(np.uint8).data), columns[layers[name]])
        for name, keys in wanted.items()
    }


def _of_columns(columns: Mapping[str, NDArray[Any]]) -> str:
    types = {name: SLOTS.get(name) or duckdb_type(columns[name]) or "" for name in sorted(columns)}
    return running_digest(repr(types), arrow_table(columns, types))
