"""The sum of attention weights of each group.

Shapes: n queries, G groups, d dimensions.

A signed sum is one inner product with the group's sum of keys, sum_{t in g} x_t . q = (sum_{t in g} x_t) . q, and the
sums of keys do not depend on the query. Both are canonical: keys are added as in key_sums.py, and the product as in
canonical.py. Where there are so many groups that their sums would be about as large as the keys, as token positions may
be, the canonical scores of their slots are added instead, in slot order.

Where neither the group's keys nor the query change sign, as after a relu, no score changes sign either, and the sum of
absolute values is the absolute value of the signed sum. Other groups need every score: absolute_sum.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.key_rows import key_rows
from dualform.query.score.rescoring import score_every, score_rows
from dualform.query.sums.absolute_sum import AbsoluteScan
from dualform.query.sums.key_sums import KeySums, key_sums
from dualform.query.view import Check, View
from dualform.query.where.mask import Selection

BUDGET = 256 << 20
"""Bytes of key sums that are worth keeping."""
_BATCH = 16
"""Queries whose scores of every slot are held at once."""


def signed_sums(
    view: View, layer: str, groups: Groups, selection: Selection, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, G]. Raises Inexact where a key is not finite."""
    if many(view.layer(layer).d_in, len(groups.counts)):
        return _by_slot(view, layer, groups, selection, queries, check, absolute=False)
    return score_rows(_key_sums(view, layer, groups, selection, check).sums, queries)


def absolute_sums(
    view: View, layer: str, groups: Groups, selection: Selection, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float64]:
    """float64[n, G]: sums of |score|, to 1e-6 relative. Raises Inexact where a key is not finite."""
    if many(view.layer(layer).d_in, len(groups.counts)):
        return _by_slot(view, layer, groups, selection, queries, check, absolute=True)
    own = _key_sums(view, layer, groups, selection, check)
    sums = score_rows(own.sums, queries)
    same = (queries.min(axis=1, initial=0) >= 0) | (queries.max(axis=1, initial=0) <= 0)
    if not (same.all() and own.one_sign.all()):
        mixed = np.flatnonzero(~own.one_sign | ~same.all())
        asked = np.flatnonzero(~same | ~own.one_sign.all())
        scan = AbsoluteScan(view, layer, key_rows(view, layer, selection, check), groups, check)
        cells = np.ix_(asked, mixed)
        sums[cells] = scan.sums(mixed, own.sums[mixed], sums[cells], queries[asked])
    return np.abs(sums, out=sums)


def many(width: int, groups: int) -> bool:
    """Whether key sums would take more room than they are worth: a matter of this alone, for it decides bits."""
    return 8 * width * groups > BUDGET


def _key_sums(view: View, layer: str, groups: Groups, selection: Selection, check: Check) -> KeySums:
    made = view.cache.get(
        ("key sums", layer, selection.identity, groups.by), lambda: key_sums(view.snapshot.keys(layer), groups, check)
    )
    if not made.finite:
        key_rows(view, layer, selection, check)  # refuses, naming the slot
    return made


def _by_slot(
    view: View,
    layer: str,
    groups: Groups,
    selection: Selection,
    queries: NDArray[np.float32],
    check: Check,
    *,
    absolute: bool,
) -> NDArray[np.float64]:
    """float64[n, G]: canonical scores of all slots, added in slot order."""
    rows = key_rows(view, layer, selection, check)
    own, index = rows.rows_of(groups.entries), None
    if rows.keys.row_of_entry is not None:
        own, index = np.unique(own, return_inverse=True)
    sums = np.empty((len(queries), len(groups.counts)))
    for start in range(0, len(queries), _BATCH):
        scores = score_every(rows.keys, own, queries[start : start + _BATCH], check)
        for i, score in enumerate(np.abs(scores, out=scores) if absolute else scores, start):
            check()
            weights = score if index is None else score[index]
            sums[i] = np.bincount(groups.numbers, weights, minlength=len(groups.counts))
    return sums
