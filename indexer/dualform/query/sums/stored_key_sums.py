"""Sums of keys by group, read from beside the keys where they were made before. G groups, d dimensions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.stored_arrays import StoredArrays
from dualform.query.sums.key_sums import BLOCK, KeySums, key_sums
from dualform.query.view import Check
from dualform.store.snapshot import Snapshot

KIND = f"key sums 2 of {BLOCK}"


def stored_key_sums(
    memory: Snapshot, layer: str, groups: Groups, check: Check, divisors: NDArray[np.float64] | None = None
) -> KeySums:
    """As `key_sums`, of the keys of a layer: the same bits, for a file holds what would be made."""
    keys, count = memory.keys(layer), len(groups.counts)
    members = np.frombuffer(groups.digest, np.uint8)
    place = StoredArrays.of(memory, KIND, [keys], [members, divisors, np.array(count)])
    held = place.read((np.float64, (count, keys.width)), (np.bool_, (count,))) if place else None
    if held is not None:
        sums, one_sign = held
        return KeySums(sums, one_sign, bool(np.isfinite(sums).all()))
    made = key_sums(keys.passing(first=True), groups, check, divisors)
    if place:
        place.write(made.sums, made.one_sign)
    return made
