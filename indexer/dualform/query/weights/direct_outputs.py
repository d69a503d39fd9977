"""Outputs of a query under a mask, from scores and values, without the weights that the slots make.

Shapes: n queries, m selected slots, d_in and d_out of a layer.

    y = (a_0 W_0) q + sum_t a_t (x_t . q) delta_t + b        n products a number of keys and values, not d_out of them

What is reported is the float32 rounding of what the weights answer (output.py), to the last bit: both sums are bounded
by how many roundings a term goes through, times the sum of the terms' absolute values, and where those bounds leave a
doubt about the rounding, that output's weights are made. So this answers as the weights do, and sooner where a mask is
asked of once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.bound import FLOAT64
from dualform.query.score.canonical import as_float32, canonical_scores
from dualform.query.score.rescoring import score_every
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.output import outputs
from dualform.query.weights.rebuilt import RebuiltWeights
from dualform.query.weights.recorded_blocks import initial_block
from dualform.query.weights.slot_products import TILE, SlotCoefficients, blocks, roundings
from dualform.query.weights.slot_sum import is_at_hand, outputs_of_slot_sum, slot_coefficients
from dualform.query.where.mask import Selection
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.part import shard_names
from dualform.store.rows import Keys, Rows

MOST_QUERIES = 1
"""Each further one leaves as many outputs in doubt again."""
LEAST_PRODUCT = 1 << 33
"""Multiplications of the weights' sum: a smaller one takes some tenths of a second, and answers all further queries."""
_ROWS, _TERMS = 4096, 64
"""Slots whose values are weighed at once, and terms that are added in any order before they join a sum."""
_SLACK = 1 + 2.0**-10
"""For products of roundings, and for the roundings of their bounds."""


def direct_outputs(
    view: View, layer: Layer, selection: Selection, at_step: int | None, queries: NDArray[np.float32], check: Check
) -> NDArray[np.float32] | None:
    """float32[n, d_out], of a record that has no standing term.

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


def _slots_alone(view: View, layer: Layer) -> bool:
    """Whether a linear rule makes the layer's one weight, and one bias, of its own slots in one shard."""
    memory = view.snapshot
    one = layer.stored.name == layer.name and layer.groups == 1 and len(layer.weights) == 1 >= len(layer.biases)
    here = view.shards is None and len(shard_names(memory)) == 1 and not memory.forgotten
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
    keys, values = memory.keys(layer.name), memory.values(layer.name)
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
    scores, sizes = score_every(keys, rows, queries, check), _sizes(keys, rows, queries, check)
    found, lost, terms = np.zeros((3, len(queries), values.width))
    of_bias = slots.biases.sum(axis=0)
    for start, stop, part in blocks(slots.slots, values.rows, _ROWS):
        check()
        own = values.block(start, stop)[slots.slots[part] - start].astype(np.float64)
        of_rows = part if number is None else number[part]
        coefficients, biases = slots.weights[0, part], of_bias[part]
        weights = coefficients * scores[:, of_rows] + biases
        for first in range(0, len(own), _TERMS):
            term = weights[:, first : first + _TERMS] @ own[first : first + _TERMS]
            # What a sum loses to rounding is known exactly (Knuth, The Art of Computer Programming, 4.2.2).
            summed = found + term
            taken = summed - found
            lost += (found - (summed - taken)) + (term - taken)
            found = summed
        terms += (np.abs(coefficients) * sizes[:, of_rows] + np.abs(biases)) @ np.abs(own)
    return found + lost, terms


def _sizes(keys: Keys, rows: NDArray[np.int64], queries: NDArray[np.float32], check: Check) -> Doubles:
    """float64[n, r]: at least sum_i |x_i q_i| of some stored rows, ascending."""
    lengths = np.abs(queries).T
    found = np.empty((len(queries), len(rows)))
    for start, stop, part in blocks(rows, keys.rows, _TERMS * 16):
        check()
        found[:, part] = (np.abs(keys.block(start, stop)[rows[part] - start]) @ lengths).T
    # Float32 sums of positive numbers, in any order; denormal ones are lost beside the rest.
    return found * (1 + 2.0**-20 * keys.width) + 1e-30 * keys.width
