"""The sum of attention weights of each group.

Shapes: n queries, T slots, G groups, d dimensions.

A signed sum is one inner product with the group's sum of keys, sum_{t in g} x_t . q = (sum_{t in g} x_t) . q, and the
sums of keys do not depend on the query. Both are canonical: keys are added as in key_sums.py, and the product as in
canonical.py. Where neither the group's keys nor the query change sign, as after a relu, no score changes sign either,
and the sum of absolute values is the absolute value of that sum. Other groups need every score: absolute_sum.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dualform.query.absolute_sum import scanned
from dualform.query.canonical import canonical_scores, tree_sum
from dualform.query.groups import Groups
from dualform.query.key_rows import key_rows
from dualform.query.key_sums import KeySums, key_sums
from dualform.query.mask import Selection
from dualform.query.view import Check, View

BUDGET = 256 << 20
"""Bytes of key sums held at once; larger ones are made group range by group range, and not kept."""
_TERMS = 1 << 17
"""Products of several queries that the processor's cache holds together."""


def signed_sums(
    view: View, layer: str, groups: Groups, selection: Selection, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, G]. Raises Inexact where a key is not finite."""
    sums = np.empty((len(queries), len(groups.counts)))
    for first, last, own in _key_sums(view, layer, groups, selection, check):
        sums[:, first:last] = _products(own.sums, queries, check)
    return sums


def absolute_sums(
    view: View, layer: str, groups: Groups, selection: Selection, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, G]: sums of |score|, to 1e-6 relative. Raises Inexact where a key is not finite."""
    sums = np.empty((len(queries), len(groups.counts)))
    same = (queries.min(axis=1, initial=0) >= 0) | (queries.max(axis=1, initial=0) <= 0)
    for first, last, own in _key_sums(view, layer, groups, selection, check):
        sums[:, first:last] = _products(own.sums, queries, check)
        if not (same.all() and own.one_sign.all()):
            mixed = first + np.flatnonzero(~own.one_sign | ~same.all())
            asked = np.flatnonzero(~same | ~own.one_sign.all())
            rows = key_rows(view, layer, selection, check)
            cells, known = np.ix_(asked, mixed), own.sums[mixed - first]
            sums[cells] = scanned(view, rows, groups, layer, mixed, known, sums[cells], queries[asked], check)
    return np.abs(sums, out=sums)


def _key_sums(
    view: View, layer: str, groups: Groups, selection: Selection, check: Check
) -> Iterator[tuple[int, int, KeySums]]:
    """Key sums by ranges of groups; those that fit are one range, kept by mask."""
    count, width = len(groups.counts), view.layer(layer).d_in
    size = max(1, BUDGET // (8 * max(1, width)))
    for first in range(0, count, size):
        last = min(first + size, count)

        def make(first: int = first, last: int = last) -> KeySums:
            return key_sums(view.memory.keys(layer), groups, first, last, check)

        whole = (first, last) == (0, count)
        found = view.cache.get(("key sums", layer, selection.identity, groups.by), make) if whole else make()
        if not found.finite:
            key_rows(view, layer, selection, check)  # refuses, naming the slot
        yield first, last, found


def _products(sums: NDArray[np.float64], queries: NDArray[np.float32], check: Check) -> NDArray[np.float64]:
    """float64[n, G]: canonical."""
    result = np.empty((len(queries), len(sums)))
    together = max(1, _TERMS // max(1, sums.size))
    for start in range(0, len(queries), together):
        check()
        own = queries[start : start + together]
        if together == 1:
            result[start] = canonical_scores(sums, own[0].astype(np.float64))
        else:
            terms = np.multiply(own[:, None, :], sums, dtype=np.float64)
            result[start : start + together] = tree_sum(terms.reshape(-1, sums.shape[1])).reshape(len(own), -1)
    return result
