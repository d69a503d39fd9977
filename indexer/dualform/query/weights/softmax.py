"""What a layer answers when a softmax weighs its slots (paper, remarks 2.3 and 3.2).

    a_0 W_0 q  +  b  +  sum_t p_t e_t        p_t  =  exp(x_t . q / temperature)  /  sum_s exp(x_s . q / temperature)

Shapes: n queries, m slots that attend, c of a block, d_in, d_out.

Only the sum of equation 13 changes. Its values e_t are those of the linear kernel, and so is what stands beside it: W_0
and the optimizer's first buffers, what moved outside the record, and the bias b that the same mask leaves, whose key is
1 in every slot and would shift all scores alike. The sums run over the slots that the mask leaves and whose gradient an
update before `at_step` used; a slot counts as often as it was recorded, whether or not its key is stored once for many.
With none left they are 0.

Scores are canonical. Slots come in blocks of a fixed size, in slot order, and the sums of a query are kept relative to
its greatest score so far; no operation on one query has a shape that depends on the others, so that it has the same
bits alone or in a batch. For each query each slot costs d_in + d_out products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Grade
from dualform.errors import Inexact
from dualform.kernels.workers import share
from dualform.query.score.canonical import as_float32, divisors
from dualform.query.score.key_rows import KeyRows, key_rows
from dualform.query.score.rescoring import score_every, score_rows
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import updates
from dualform.query.weights.rebuilt import rebuild_without_slots
from dualform.query.weights.requirement import require
from dualform.query.weights.slot_sum import bias_sum, block_size, blocks, places
from dualform.query.where.mask import Selection
from dualform.questions import Output
from dualform.questions.arguments import check_step
from dualform.rules import LinearRule, named
from dualform.store.layer import Layer
from dualform.store.rows import Rows

_BATCH = 128
"""Queries that share one pass over keys and values."""
_ALIKE = 1e-6
"""Relative: what coefficients of two parts of a weight may differ by, since their gradient factors are measured."""


@dataclass(frozen=True, eq=False)
class SoftmaxOutputs:
    values: NDArray[np.float32]
    """float32[n, d_out]."""
    effective_slots: NDArray[np.float64]
    """float64[n]: 1 / sum_t p_t^2, 0.0 where no slot attends."""
    grade: Grade
    standing: float
    """As RebuiltWeights has it; 0.0 without the initial weights."""


def softmax(
    view: View, layer: Layer, selection: Selection, question: Output, queries: NDArray[np.float32], check: Check
) -> SoftmaxOutputs:
    """Raises Inexact as `require` says, where a key is not finite, and where a slot has no value of its own."""
    at_step, temperature = question.at_step, question.temperature
    assert temperature is not None, "a softmax has one"
    check_step(at_step, view.snapshot.steps)
    _refuse(view, layer)
    grade, standing, beside = require(view, layer, at_step, question.allow_inexact, check), 0.0, np.zeros(1)
    slots = _slots(view, layer, selection, at_step)
    if question.initial:
        initial = rebuild_without_slots(view, layer, at_step, question.allow_inexact, check)
        beside, standing = score_rows(initial.weight, queries), initial.standing
        if initial.bias is not None:
            beside += initial.bias + bias_sum(view, layer, selection, at_step, check)
    rows = key_rows(view, layer.name, selection, check)
    sums, effective = np.empty((len(queries), layer.d_out)), np.empty(len(queries))
    for start in range(0, len(queries), _BATCH):
        part = slice(start, start + _BATCH)
        weighed = _Weighed(queries[part], temperature, layer.d_out)
        weighed.add_all(rows, view.snapshot.values(layer.name), slots, check)
        sums[part], effective[part] = weighed.means(), weighed.effective_slots()
    return SoftmaxOutputs(as_float32(beside + sums), effective, grade, standing)


@dataclass(frozen=True, eq=False)
class _Slots:
    """The slots that attend."""

    entries: NDArray[np.int64]
    """int64[m], ascending."""
    coefficients: NDArray[np.float64]
    """float64[m]: what makes a value of each slot's error signal."""


def _refuse(view: View, layer: Layer) -> None:
    """Raises Inexact where slots have no values of their own. What was not recorded `require` refuses."""
    rule = named(view.snapshot.rule)
    hint = 'Ask with kernel="linear".'
    if rule is not None and not isinstance(rule, LinearRule):
        raise Inexact(
            f"under {view.snapshot.optimizer} the slots of layer {layer.name!r} have no values of their own: what one "
            "gradient brings depends on all of them.",
            hint=hint,
            field="kernel",
        )
    own = {block.block_name for block in layer.parameters}
    for other in view.snapshot.layers.values():
        if other.name != layer.name and not own.isdisjoint(block.block_name for block in other.parameters):
            raise Inexact(
                f"layer {layer.name!r} shares a parameter with layer {other.name!r}: its weight is a sum over the "
                "slots of both, and a softmax has one set of keys.",
                hint=hint,
                field="kernel",
            )


def _slots(view: View, layer: Layer, selection: Selection, at_step: int | None) -> _Slots:
    """Raises Inexact where the parts of the layer's weight moved differently."""
    names = [block.block_name for block in layer.weights]
    first, *others = (view.coefficients(layer, name, at_step).per_step for name in names)
    used, *used_by_others = (_used_steps(view, name, at_step) for name in names)
    alike = all(np.allclose(first, one, rtol=_ALIKE, atol=0.0) for one in others)
    if not (alike and all(np.array_equal(used, one) for one in used_by_others)):
        raise Inexact(
            f"the parts of the weight of layer {layer.name!r}, {', '.join(names)}, moved differently: its slots "
            "have no one value for all of it.",
            hint='Ask with kernel="linear".',
            field="kernel",
        )
    steps = view.slot_steps(layer)[selection.entries]
    chosen = used[steps]
    return _Slots(selection.entries[chosen], first[steps[chosen]])


def _used_steps(view: View, block: str, at_step: int | None) -> NDArray[np.bool_]:
    """bool[recorded steps]: those whose gradients an update of a block before `at_step` used, whatever came of it."""
    used = np.zeros(view.snapshot.steps, dtype=np.bool_)
    for update in updates(view.snapshot, block, view.snapshot.steps if at_step is None else at_step):
        used[update.first_step : update.last_step + 1] = True
    return used


class _Weighed:
    """The sums of some queries over the slots that have come so far."""

    def __init__(self, queries: NDArray[np.float32], temperature: float, d_out: int) -> None:
        self._queries, self._temperature = queries, temperature
        self._greatest = np.full(len(queries), -np.inf)
        self._totals, self._squares = np.zeros(len(queries)), np.zeros(len(queries))
        self._sums = np.zeros((len(queries), d_out))

    def add_all(self, rows: KeyRows, values: Rows, slots: _Slots, check: Check) -> None:
        size = block_size(max(rows.keys.width, values.width))
        for start, stop, part in blocks(slots.entries, values.rows, size):
            check()
            entries = slots.entries[part]
            scores = score_every(rows.keys, rows.rows_of(entries), self._queries, check)
            own = values.block(start, stop)[places(entries, start, stop)].astype(np.float64)
            own *= slots.coefficients[part, None]

            def work(_: int, query: int, scores: NDArray[np.float64] = scores, own: NDArray[np.float64] = own) -> None:
                self._add(query, scores[query], own)

            share(range(len(self._queries)), work)

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
