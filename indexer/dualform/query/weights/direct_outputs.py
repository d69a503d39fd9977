"""Outputs of a query under a mask, from scores and values, without the weights that the slots make.

Shapes: n queries, m selected slots, d_in and d_out of a layer.

    y = (a_0 W_0) q + sum_t a_t (x_t . q) delta_t + b        n products a number of keys and values, not d_out of them

What is reported is the float32 rounding of what the weights answer (output.py), to the last bit: both sums are bounded
by how many roundings a term goes through, times the sum of the terms' absolute values, and where those bounds leave a
doubt about the rounding, that output's weights are made. So this answers as the weights do, and sooner where a mask is
asked of once. Likewise of weights by difference (left_out.py), where no output is in doubt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels.workers import divide
from dualform.query.score.bound import FLOAT64
from dualform.query.score.canonical import as_float32, canonical_scores
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.left_out import rebuilt_by_difference, term_sizes
from dualform.query.weights.output import certain_outputs, outputs
from dualform.query.weights.rebuilt_weights import RebuiltWeights
from dualform.query.weights.recorded_blocks import initial_block
from dualform.query.weights.slot_products import TILE, SlotCoefficients, most_roundings, roundings
from dualform.query.weights.slot_sum import is_at_hand, outputs_of_slot_sum, slot_coefficients
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.part import shard_names
from dualform.store.rows import Keys, Rows

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
