"""Which query sets hold an input that was deleted: a layer's query there is a key that no slot that stays has.

Inputs of the network tell, for they stay the same. Those of deeper layers change with the weights, those behind dropout
or of normalised batches were others in training, and without keys there is nothing to compare: so that every query set
that stays is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from dualform.query.view import Check, View
from dualform.query.weights.slot_products import block_size
from dualform.rules.half_precision import UNIT_ROUNDOFF, rounded
from dualform.store.entries import Integers
from dualform.store.layer import Layer


def query_sets_that_hold(view: View, entries: dict[str, Integers], check: Check) -> set[str]:
    """The names of query sets, of any run, with a key of some entries that no other entry of the layer has."""
    found = set[str]()
    names = dict.fromkeys(name for run in view.snapshot.runs for name in run.manifest.query_sets)
    for name in names:
        for layer, own in entries.items():
            if name not in found and view.snapshot.layer(layer).keys:
                rows = _queries(view, name, view.snapshot.layer(layer))
                if rows and _alone(view, layer, own, rows, check):
                    found.add(name)
    return found


def _queries(view: View, query_set: str, layer: Layer) -> set[bytes]:
    """The queries of a layer in a query set, of all runs that have one of the name, stored and in the key's type."""
    found = set[bytes]()
    for run in view.snapshot.runs:
        if query_set not in run.manifest.query_sets:
            continue
        for queries in run.query_set(query_set).keys(layer.name):
            found |= set(_digests(queries))
            if half := next((name for name in UNIT_ROUNDOFF if name in (layer.source, layer.dtype)), None):
                found |= set(_digests(rounded(queries.astype(np.float64), half).astype(np.float32)))
    return found


def _alone(view: View, layer: str, entries: Integers, rows: set[bytes], check: Check) -> bool:
    """Whether one of some rows is a key of those entries, and of no other."""
    theirs = rows & {digest for part in _keys(view, layer, entries, check) for digest in part}
    if not theirs:
        return False
    others = np.setdiff1d(np.arange(view.snapshot.entries(layer).count), entries, assume_unique=True)
    for part in _keys(view, layer, others, check):
        theirs -= set(part)
        if not theirs:
            return False
    return True


def _keys(view: View, layer: str, entries: Integers, check: Check) -> Iterator[list[bytes]]:
    """Digests of the distinct keys of some entries, piece by piece."""
    keys = view.snapshot.keys(layer)
    rows = entries if keys.row_of_entry is None else np.unique(keys.row_of_entry[entries])
    size = block_size(keys.width)
    for start in range(0, len(rows), size):
        check()
        yield _digests(keys.take(rows[start : start + size]))


def _digests(rows: NDArray[np.float32]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(row.tobytes()) for row in rows + np.float32(0)]  # -0.0 is 0.0
