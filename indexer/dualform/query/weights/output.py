"""The outputs of a layer under a filter, or as of an earlier step.

Outputs of a query under a mask, from scores and values, without the weights that the slots make.

Shapes: n queries, m selected slots, d_in and d_out of a layer.

    y = (a_0 W_0) q + sum_t a_t (x_t . q) delta_t + b        n products a number of keys and values, not d_out of them

What is reported is the float32 rounding of what the weights answer, to the last bit: both sums are bounded
by how many roundings a term goes through, times the sum of the terms' absolute values, and where those bounds leave a
doubt about the rounding, that output's weights are made. So this answers as the weights do, and sooner where a mask is
asked of once. Likewise of weights by difference, where no output is in doubt.

What stays under a mask, from what it leaves out, where that is less: one pass over few slots, not over most.

    sum of the slots that stay  =  sum of all slots  -  sum of those left out

The sum of all slots is the same for every mask, and kept. In exact numbers both sides are equal; in float64 they differ
by what rounding does to their terms, whose sizes tell how much that is at most.

Shapes: m slots, d_out of a layer.

What a layer answers when only some slots speak, or as of an earlier step.

Shapes: n queries, d_in, d_out.

    y = W q + b        with the weights of reconstruction.py

The weights do not depend on the query, so a question gives the same answer alone or in a batch: the float32 that is
returned is the rounding of the canonical float64 sum. A matrix product finds it wherever its error bound leaves no
doubt about the rounding; the few other numbers are added canonically.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels.workers import divide
from dualform.query.score.canonical import FLOAT64, as_float32, canonical_scores, norms, score_rows
from dualform.query.score.key_rows import key_norms
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import BlockRules
from dualform.query.weights.reconstruction import RebuiltWeights, rebuild, require, tied
from dualform.query.weights.slot_products import (
    TILE,
    SlotCoefficients,
    block_size,
    blocks,
    is_at_hand,
    most_roundings,
    outputs_of_slot_sum,
    places,
    roundings,
    slot_coefficients,
    slot_sum,
)
from dualform.query.weights.trajectory import Selections, every_slot, initial_block
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions.arguments import check_step
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.reading.snapshot import shard_names
from dualform.store.rows import Keys, Rows

_BATCH = 1024
"""Queries that are answered at once."""


def outputs(
    weights: RebuiltWeights, queries: NDArray[np.float32], check: Check, groups: int = 1
) -> NDArray[np.float32]:
    """float32[n, d_out]; `groups`: how many blocks the weight has along its diagonal."""
    if groups > 1:
        parts = zip(weights.blocks(groups), np.split(queries, groups, axis=1), strict=True)
        return np.concatenate([outputs(own, np.ascontiguousarray(part), check) for own, part in parts], axis=1)
    found = np.empty((len(queries), len(weights.weight)), dtype=np.float32)
    lengths = np.sqrt(np.einsum("oi,oi->o", weights.weight, weights.weight))
    for start in range(0, len(queries), _BATCH):
        check()
        found[start : start + _BATCH] = _batch(weights, lengths, queries[start : start + _BATCH])
    return found


def products(
    weights: RebuiltWeights, queries: NDArray[np.float32], check: Check, groups: int = 1
) -> NDArray[np.float64]:
    """float64[n, d_out]: W q, canonical, without a bias; `groups` as `outputs` has it."""
    if groups > 1:
        parts = zip(weights.blocks(groups), np.split(queries, groups, axis=1), strict=True)
        return np.concatenate([products(own, np.ascontiguousarray(part), check) for own, part in parts], axis=1)
    found = np.empty((len(queries), len(weights.weight)))
    for start in range(0, len(queries), _BATCH):
        check()
        found[start : start + _BATCH] = score_rows(weights.weight, queries[start : start + _BATCH])
    return found


def certain_outputs(
    weights: RebuiltWeights, off: NDArray[np.float64], queries: NDArray[np.float32]
) -> NDArray[np.float32] | None:
    """float32[n, d_out]: the `outputs` of all weights that are near these, or None where those are not the same bits.

    `off`: float64[d_out], how far a row of the weight, as a vector, and its bias may be off.
    """
    lengths = np.sqrt(np.einsum("oi,oi->o", weights.weight, weights.weight))
    bias = np.zeros(len(weights.weight)) if weights.bias is None else weights.bias
    summed, error = _bounded(weights.weight, bias, lengths + off, queries)
    error += (norms(queries)[:, None] + 1) * off
    low, high = as_float32(summed - error), as_float32(summed + error)
    return low if low.tobytes() == high.tobytes() and np.isfinite(low).all() else None


def _bounded(
    weight: NDArray[np.float64], bias: NDArray[np.float64], lengths: NDArray[np.float64], queries: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64[n, d_out] twice: the outputs, and how far they are from canonical ones at most. `lengths`: of rows."""
    # Twice, for the canonical sum has an error of its own, and twice again for the norms'.
    unit = 4 * (queries.shape[1] + 3) * FLOAT64
    summed = queries.astype(np.float64) @ weight.T + bias
    return summed, unit * (norms(queries)[:, None] * lengths + np.abs(bias))


def _batch(weights: RebuiltWeights, lengths: NDArray[np.float64], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    bias = np.zeros(len(weights.weight)) if weights.bias is None else weights.bias
    summed, error = _bounded(weights.weight, bias, lengths, queries)
    rounded = as_float32(summed)
    query, output = np.nonzero(as_float32(summed - error) != as_float32(summed + error))
    exact = canonical_scores(weights.weight[output], queries[query]) + bias[output]
    rounded[query, output] = as_float32(exact)
    return rounded


_MOST = 1000.0
"""How much larger the terms that are left out may be than those that stay, in any output: three digits are lost."""


def left_out(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Selection | None:
    """The entries that a mask leaves out of a stored layer, where they are fewer than those that stay and the
    difference keeps the digits of what stays. None of a mask that leaves out nothing, and where the slots of this layer
    alone do not make its blocks by a linear rule.
    """
    out = len(selection.stays) - selection.count
    if not 0 < out < selection.count or not own_sums(view, layer, check):
        return None
    found = complement(selection)
    gone, every = (
        term_sizes(view, layer, own, at_step, check) for own in (found, mask.selection(view, layer, None, check))
    )
    with np.errstate(invalid="ignore"):  # of a training that diverged
        near = bool((gone <= _MOST * (every - gone)).all()) and bool(np.isfinite(every).all())
    return found if near else None


def complement(selection: Selection) -> Selection:
    """What a selection leaves out."""
    # No SQL reads like this, so no mask has this identity: NOT (...) would leave out what is NULL.
    return Selection(f"all but: {selection.identity}", ~selection.stays)


def rebuilt_by_difference(
    view: View, layer: Layer, selection: Selection, at_step: int | None, allow_inexact: bool, check: Check
) -> RebuiltWeights | None:
    """As `rebuild`, but for the last digits, of a stored layer; None where `left_out` is. Raises as `rebuild`."""
    check_step(at_step, view.snapshot.steps)
    require(view, layer, at_step, allow_inexact, check)
    gone = left_out(view, layer, selection, at_step, check)
    if gone is None:
        return None
    whole = rebuild(view, layer, every_slot(view), at_step, allow_inexact, check)
    less = slot_sum(view, layer, gone, at_step, check)
    bias = None if whole.bias is None else whole.bias - less.biases.sum(axis=0)
    return replace(whole, weight=whole.weight - less.weight, bias=bias, parameters={})


def rebuilt_under(
    view: View, layer: Layer, selections: Selections, at_step: int | None, allow_inexact: bool, check: Check
) -> RebuiltWeights:
    """By the difference where there is one, else as `rebuild`; for answers that promise no last digits."""
    found = rebuilt_by_difference(view, layer, selections[layer.name], at_step, allow_inexact, check)
    return rebuild(view, layer, selections, at_step, allow_inexact, check) if found is None else found


def term_sizes(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> Doubles:
    """float64[d_out]: the sum of the absolute values of what the selected slots bring to each row of [W | b], at most:
    |a_t| ||x_t|| |delta_t|, where x_t is 1 of a bias.
    """

    def summed() -> Doubles:
        slots = slot_coefficients(view, layer, selection, at_step)
        keys, values = view.snapshot.keys(layer.name), view.snapshot.values(layer.name)
        rows = slots.slots if keys.row_of_entry is None else keys.row_of_entry[slots.slots]
        sizes = np.abs(slots.biases).sum(axis=0)
        for place, coefficients in zip(layer.weights, slots.weights, strict=True):
            sizes += np.abs(coefficients) * key_norms(view, layer.name, check, place.start, place.stop)[rows]
        found = np.zeros(layer.d_out)
        for start, stop, part in blocks(slots.slots, values.rows, block_size(values.width)):
            check()
            found += sizes[part] @ np.abs(values.block(start, stop)[places(slots.slots[part], start, stop)])
        return found

    return view.cache.get(("term sizes", layer.name, selection.identity, at_step), summed, check)


def own_sums(view: View, layer: Layer, check: Check) -> bool:
    """Whether each block of a layer is a sum over its slots alone, by a linear rule."""
    names = {block.block_name for block in layer.parameters}
    alone = len(names) == len(layer.parameters) and not tied(view, layer, None, check)
    return alone and all(BlockRules(view.snapshot, block).linear for block in layer.parameters)


MOST_QUERIES = 1
"""Each further one leaves as many outputs in doubt again."""
LEAST_PRODUCT = 1 << 33
"""Multiplications of the weights' sum: a smaller one takes some tenths of a second, and answers all further queries."""
_ROWS, _NEAR, _TASKS, _TERMS = 4096, 512, 64, 64
"""Slots that a worker takes at once, keys that stay in its cache, sums that workers make, and terms that are added in
any order before they join one."""
_SLACK = 1 + 2.0**-10
"""For products of roundings, and for the roundings of their bounds."""


def direct_outputs(
    view: View, layer: Layer, selection: Selection, at_step: int | None, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float32] | None:
    """float32[n, d_out], of a record that has no unrecorded change.

    None where the weights answer: they are at hand, were asked for before, take no longer, or leave less in doubt; and
    where the slots of this layer alone do not make them.
    """
    product = selection.count * layer.d_in * layer.d_out
    if len(queries) > MOST_QUERIES or product < LEAST_PRODUCT or not _slots_alone(view, layer):
        return None
    key = ("outputs asked", layer.name, selection.identity, at_step)
    again = view.cache.holds(key)
    view.cache.get(key, lambda: True)
    slots = slot_coefficients(view, layer, selection, at_step)
    if again or is_at_hand(view, layer, selection, at_step, slots):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # such outputs are in doubt
        return _outputs(view, layer, at_step, slots, queries, check)


def outputs_by_difference(
    view: View,
    layer: Layer,
    selection: Selection,
    at_step: int | None,
    allow_inexact: bool,
    queries: NDArray[np.float32],
    check: Check,
) -> NDArray[np.float32] | None:
    """float32[n, d_out], of a record that has no unrecorded change; None where a rounding is in doubt, where a mask
    leaves out more than it leaves, and where the slots of this layer alone do not make its weights.
    """
    if not _slots_alone(view, layer):
        return None
    weights = rebuilt_by_difference(view, layer, selection, at_step, allow_inexact, check)
    if weights is None:
        return None
    own = initial_block(view, layer, layer.weights[0], at_step)
    sizes = term_sizes(view, layer, mask.selection(view, layer, None, check), at_step, check)
    sizes = sizes + np.sqrt(np.einsum("oi,oi->o", own, own))
    if layer.biases:
        sizes += np.abs(initial_block(view, layer, layer.biases[0], at_step))
    # Of three sums, each of which is at most the sum of all terms, and of what is added to them.
    each = most_roundings(view.snapshot.keys(layer.name), view.snapshot.values(layer.name))
    return certain_outputs(weights, _SLACK * FLOAT64 * (3 * each + 12) * sizes, queries)


def _slots_alone(view: View, layer: Layer) -> bool:
    """Whether a linear rule makes the layer's one weight, and one bias, of its own slots in one shard."""
    memory = view.snapshot
    one = layer.stored.name == layer.name and layer.groups == 1 and len(layer.weights) == 1 >= len(layer.biases)
    here = view.shards is None and len(shard_names(memory)) == 1 and not memory.deleted
    return one and here and all(BlockRules(memory, block).linear for block in layer.parameters)


def _outputs(
    view: View,
    layer: Layer,
    at_step: int | None,
    slots: SlotCoefficients,
    queries: NDArray[np.float32],
    check: Check,
) -> NDArray[np.float32] | None:
    memory = view.snapshot
    # Freshly taken memory would cost more than reading again does what the next question needs.
    keys, values = memory.keys(layer.name).passing(), memory.values(layer.name).passing()
    weight = initial_block(view, layer, layer.weights[0], at_step)
    bias = initial_block(view, layer, layer.biases[0], at_step) if layer.biases else np.zeros(layer.d_out)
    found, terms = _sums(keys, values, slots, queries, check)
    found += np.stack([canonical_scores(weight, query) for query in queries]) + bias
    terms += np.abs(queries.astype(np.float64)) @ np.abs(weight).T + np.abs(bias)
    levels = layer.d_in.bit_length() + 1  # of a canonical sum
    # The last ones: of coefficients, biases, and what no slot brought, in either sum.
    errors = _SLACK * FLOAT64 * (roundings(keys, values, slots) + _TERMS + 3 * levels + 12) * terms
    low, high, rounded = (as_float32(sums) for sums in (found - errors, found + errors, found))
    # By their bits: a zero of the other sign is another number here.
    doubtful = (low.view(np.int32) != high.view(np.int32)) | ~np.isfinite(errors)
    own = np.flatnonzero(doubtful.any(axis=0))
    if 2 * len(np.unique(own // TILE)) > -(-layer.d_out // TILE):
        return None
    if len(own):
        made = outputs_of_slot_sum(memory, layer, slots, own, check)
        biases = made.biases[0, own] + bias[own] if layer.biases else None
        exact = outputs(RebuiltWeights(made.weight[own] + weight[own], biases), queries, check)
        rounded[:, own] = np.where(doubtful[:, own], exact, rounded[:, own])
    return rounded


def _sums(
    keys: Keys, values: Rows, slots: SlotCoefficients, queries: NDArray[np.float32], check: Check
) -> tuple[Doubles, Doubles]:
    """float64[n, d_out] twice: what the slots brought to the outputs, and the sum of its terms' absolute values."""
    rows, number = slots.slots, None
    if keys.row_of_entry is not None:
        rows, number = np.unique(keys.row_of_entry[slots.slots], return_inverse=True)
    scores, sizes = _scores(keys, rows, queries, check)
    of_bias = slots.biases.sum(axis=0)
    size = _ROWS * -(-len(slots.slots) // (_ROWS * _TASKS))
    firsts = range(0, len(slots.slots), max(size, 1))
    summed = np.zeros((len(firsts), 3, len(queries), values.width))

    def add(_: int, task: int) -> None:
        for start in range(firsts[task], min(firsts[task] + size, len(slots.slots)), _ROWS):
            check()
            part = slice(start, min(start + _ROWS, firsts[task] + size))
            of_rows = part if number is None else number[part]
            coefficients, biases = slots.weights[0, part], of_bias[part]
            weights = coefficients * scores[:, of_rows] + biases
            magnitudes = np.abs(coefficients) * sizes[:, of_rows] + np.abs(biases)
            _weigh(values, slots.slots[part], weights, magnitudes, summed[task])

    divide(range(len(firsts)), add)
    # In slot order, whichever worker came first.
    found, lost, terms = np.zeros((3, len(queries), values.width))
    for own in summed:
        found = _add(found, own[0], lost)
        lost += own[1]
        terms += own[2]
    return found + lost, terms


def _scores(keys: Keys, rows: NDArray[np.int64], queries: NDArray[np.float32], check: Check) -> tuple[Doubles, Doubles]:
    """float64[n, r] twice, of some stored rows, ascending: the canonical scores, and at least sum_i |x_i q_i|."""
    scores, sizes = np.empty((2, len(queries), len(rows)))

    def score(_: int, start: int) -> None:
        check()
        part = slice(start, start + _ROWS)
        if kernels.library() is None:
            taken = keys.take(rows[part])
            scores[:, part] = [canonical_scores(taken, query) for query in queries]
            sizes[:, part] = (np.abs(taken) @ np.abs(queries).T).T
            return
        addresses = keys.addresses(rows[part])
        for at in range(0, len(addresses), _NEAR):
            near = slice(start + at, start + min(at + _NEAR, len(addresses)))
            own = addresses[at : at + _NEAR]
            for i, query in enumerate(queries):
                scores[i, near] = kernels.canonical(own, np.zeros(len(own), np.int64), query[None])
                sizes[i, near] = kernels.sizes(own, query)

    divide(range(0, len(rows), _ROWS), score)
    # Float32 sums of positive numbers, in any order; denormal ones are lost beside the rest.
    return scores, sizes * (1 + 2.0**-20 * keys.width) + 1e-30 * keys.width


def _weigh(values: Rows, entries: NDArray[np.int64], weights: Doubles, magnitudes: Doubles, sums: Doubles) -> None:
    """Add to float64[3, n, d_out] what some entries bring, what rounding lost of it, and its terms' absolute values.

    `weights` and `magnitudes` are float64[n, m].
    """
    if kernels.library() is None:
        own = values.take(entries).astype(np.float64)
        for first in range(0, len(own), _TERMS):
            term = weights[:, first : first + _TERMS] @ own[first : first + _TERMS]
            sums[0] = _add(sums[0], term, sums[1])
        sums[2] += magnitudes @ np.abs(own)
        return
    addresses = values.addresses(entries)
    for i in range(len(weights)):
        kernels.weigh(addresses, *map(np.ascontiguousarray, (weights[i], magnitudes[i])), *sums[:, i])


def _add(found: Doubles, term: Doubles, lost: Doubles) -> Doubles:
    """The sum. What it loses to rounding, which is known exactly (Knuth, The Art of Computer Programming, 4.2.2), is
    added to `lost`.
    """
    summed = found + term
    taken = summed - found
    lost += (found - (summed - taken)) + (term - taken)
    return summed
