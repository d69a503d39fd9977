"""Groups of all entries of a layer, kept beside its keys: their values and sizes, and a digest of their members.

A process that asks for kept sums by group need then read no column. The file is named by the manifests, which
vouch for every column, the keys' checksums, the layer and the columns: no other memory finds it.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.query.stored_arrays import StoredArrays
from dualform.store.layer import Layer
from dualform.store.snapshot import Snapshot

KIND = "groups 1"
_DIGEST_BYTES = 16
_VALUES = (str, int, float, bool, type(None))


class StoredGroups(NamedTuple):
    keys: tuple[GroupKey, ...]
    """One tuple of values per group, in value order."""
    counts: NDArray[np.int64]
    """int64[G]."""
    digest: bytes
    """Of the members."""


def place_of(memory: Snapshot, layer: Layer, by: tuple[str, ...]) -> StoredArrays | None:
    """Where the groups of all entries are; None where they are not worth a file, or might become others."""
    said = memory.tables_digest
    if said is None or not layer.keys:
        return None
    text = json.dumps([said, layer.space, layer.name, by])
    return StoredArrays.of(memory, KIND, [memory.keys(layer.name)], [np.frombuffer(text.encode(), np.uint8)])


def read(place: StoredArrays, columns: int, entries: int) -> StoredGroups | None:
    """Of so many columns and entries; None where they are not there, or do not fit."""
    found = place.read((np.uint8, (-1,)), (np.int64, (-1,)), (np.uint8, (_DIGEST_BYTES,)))
    if found is None:
        return None
    text, counts, digest = found
    try:
        keys = tuple(map(tuple, json.loads(text.tobytes())))
    except (ValueError, TypeError, RecursionError):
        return None
    alike = len(keys) == len(counts) and counts.min(initial=1) > 0 and counts.sum() == entries
    plain = all(len(key) == columns and all(isinstance(own, _VALUES) for own in key) for key in keys)
    return StoredGroups(keys, counts, digest.tobytes()) if alike and plain else None


def write(place: StoredArrays, groups: StoredGroups) -> None:
    text = json.dumps(groups.keys).encode()
    place.write(np.frombuffer(text, np.uint8), groups.counts, np.frombuffer(groups.digest, np.uint8))
