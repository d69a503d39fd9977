"""What a layer answers when a softmax weighs its slots (paper, remarks 2.3 and 3.2).

    a_0 W_0 q  +  b  +  sum_t p_t e_t        p_t  =  exp(x_t . q / temperature)  /  sum_s exp(x_s . q / temperature)

Shapes: n queries, m slots that attend, c of a block, r stored rows, d_in, d_out.

Only the sum of equation 13 changes. Its values e_t are those of the linear kernel, and so is what stands beside it: W_0
and the optimizer's first buffers, what moved outside the record, and the bias b that the same mask leaves, whose key is
1 in every slot and would shift all scores alike. The sums run over the slots that the mask leaves and whose gradient an
update before `at_step` used; a slot counts as often as it was recorded, whether or not its key is stored once for many.
With none left they are 0.

Scores are canonical. Slots come in blocks of a fixed size, in slot order, and the sums of a query are kept relative to
its greatest score so far; no operation on one query has a shape that depends on the others, so that it has the same
bits alone or in a batch. For each query each slot costs d_out products and each stored key d_in, for slots that share
a key share its score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.kernels.workers import divide
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import as_float32, divisors, score_every, score_rows
from dualform.query.score.key_rows import KeyRows, key_rows
from dualform.query.view import Check
from dualform.query.weights.reconstruction import rebuild_without_slots, require, tied
from dualform.query.weights.slot_products import (
    Remedy,
    SlotValues,
    bias_sum,
    block_size,
    blocks,
    places,
    refuse_without_values,
    slot_values,
)
from dualform.questions import Output
from dualform.questions.arguments import check_step
from dualform.store.rows import Keys, Rows

_BATCH = 128
"""Queries that share one pass over keys and values."""
_HELD_BYTES = 256 << 20
"""Of scores of stored rows that slots share."""
_REMEDY = Remedy(hint='Pass kernel="linear".', field="kernel")


def softmax(resolved: Resolved[Output], check: Check) -> tuple[NDArray[np.float32], Status, float, NDArray[np.float64]]:
    """The outputs, float32[n, d_out]; the layer's status; the unrecorded change as RebuiltWeights has it, 0.0 without
    W_0; and effective slots, float64[n]: 1 / sum_t p_t^2, 0.0 where no slot attends.

    Raises Inexact as `require` says, where a key is not finite, and where a slot has no value of its own.
    """
    question, view, layer = resolved.question, resolved.view, resolved.layer
    selection, queries = resolved.selection, resolved.queries
    at_step, temperature = question.at_step, question.temperature
    assert temperature is not None, "a softmax has one"
    check_step(at_step, view.snapshot.steps)
    refuse_without_values(view, layer.stored, _REMEDY)
    status = require(view, layer.stored, at_step, question.allow_inexact, check)
    unrecorded_change, beside = 0.0, np.zeros(1)
    slots = slot_values(view, layer, selection, at_step, status, check, _REMEDY)
    if question.initial:
        initial = rebuild_without_slots(view, layer.stored, at_step, question.allow_inexact, check).of(layer)
        beside, unrecorded_change = score_rows(initial.weight, queries), initial.unrecorded_change
        if initial.bias is not None:
            beside += initial.bias + bias_sum(view, layer, selection, at_step, check)
        # No weight is shared: that was refused.
        for name, kept in tied(view, layer.stored, question.where, check).items():
            other = view.snapshot.layer(name)
            beside += bias_sum(view, other, kept, at_step, check, shared_with=layer.stored)[layer.own_values]
    rows = _Rows.of(key_rows(view, layer.name, selection, check), slots.entries)
    sums, effective = np.empty((len(queries), layer.d_out)), np.empty(len(queries))
    for start in range(0, len(queries), rows.batch):
        part = slice(start, start + rows.batch)
        weighed = _Weighed(queries[part], temperature, layer.d_out)
        weighed.add_all(rows, view.snapshot.values(layer.name), slots, check)
        sums[part], effective[part] = weighed.means(), weighed.effective_slots()
    return as_float32(beside + sums), status, unrecorded_change, effective


@dataclass(frozen=True, eq=False)
class _Rows:
    """The stored keys of the slots that attend."""

    keys: Keys
    of_slots: NDArray[np.int64]
    """int64[m]: the row of each."""
    distinct: NDArray[np.int64] | None
    """int64[r]: the rows that those slots share, each to be scored once; None where few are shared."""
    numbers: NDArray[np.int64]
    """int64[m]: where the row of each slot stands in `distinct`; empty without."""

    @classmethod
    def of(cls, rows: KeyRows, entries: NDArray[np.int64]) -> _Rows:
        own = rows.rows_of(entries)
        distinct, numbers = np.unique(own, return_inverse=True)
        if 2 * len(distinct) > len(own):
            return cls(rows.keys, own, None, np.empty(0, dtype=np.int64))
        return cls(rows.keys, own, distinct, numbers)

    @property
    def batch(self) -> int:
        """Queries whose scores of shared rows take HELD_BYTES at most."""
        held = 0 if self.distinct is None else 8 * len(self.distinct)
        return int(np.clip(_HELD_BYTES // max(1, held), 1, _BATCH))

    def scores(self, queries: NDArray[np.float32], check: Check) -> Callable[[slice], NDArray[np.float64]]:
        """What tells the scores float64[n, c] of some of the slots."""
        if self.distinct is None:
            return lambda part: score_every(self.keys, self.of_slots[part], queries, check)
        every = score_every(self.keys, self.distinct, queries, check)
        return lambda part: every[:, self.numbers[part]]


class _Weighed:
    """The sums of some queries over the slots that have come so far."""

    def __init__(self, queries: NDArray[np.float32], temperature: float, d_out: int) -> None:
        self._queries, self._temperature = queries, temperature
        self._greatest = np.full(len(queries), -np.inf)
        self._totals, self._squares = np.zeros(len(queries)), np.zeros(len(queries))
        self._sums = np.zeros((len(queries), d_out))

    def add_all(self, rows: _Rows, values: Rows, slots: SlotValues, check: Check) -> None:
        size, scores_of = block_size(max(rows.keys.width, values.width)), rows.scores(self._queries, check)
        for start, stop, part in blocks(slots.entries, values.rows, size):
            check()
            entries = slots.entries[part]
            scores = scores_of(part)
            own = values.block(start, stop)[places(entries, start, stop)].astype(np.float64)
            own *= slots.coefficients[part, None]

            def work(_: int, query: int, scores: NDArray[np.float64] = scores, own: NDArray[np.float64] = own) -> None:
                self._add(query, scores[query], own)

            divide(range(len(self._queries)), work)

    def _add(self, query: int, scores: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """One block: its scores float64[c] and its values float64[c, d_out]."""
        greatest = max(self._greatest[query], scores.max())
        with np.errstate(over="ignore", under="ignore"):  # a small temperature leaves the greatest scores alone
            weights = np.exp((scores - greatest) / self._temperature)
            fade = np.exp((self._greatest[query] - greatest) / self._temperature)
        self._greatest[query] = greatest
        self._totals[query] = self._totals[query] * fade + weights.sum()
        self._squares[query] = self._squares[query] * fade**2 + np.square(weights).sum()
        # One row after the other: a matrix product takes an order that depends on the number of threads.
        self._sums[query] = self._sums[query] * fade + np.einsum("c,co->o", weights, values)

    def means(self) -> NDArray[np.float64]:
        """float64[n, d_out]: sum_t p_t e_t."""
        return self._sums / divisors(self._totals)[:, None]

    def effective_slots(self) -> NDArray[np.float64]:
        return np.square(self._totals) / divisors(self._squares)
