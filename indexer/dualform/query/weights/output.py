"""What a layer answers when only some slots speak, or as of an earlier step.

Shapes: n queries, d_in, d_out.

    y = W q + b        with the weights of rebuilt_weights.py

The weights do not depend on the query, so a question gives the same answer alone or in a batch: the float32 that is
returned is the rounding of the canonical float64 sum. A matrix product finds it wherever its error bound leaves no
doubt about the rounding; the few other numbers are added canonically.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.score.bound import FLOAT64, norms
from dualform.query.score.canonical import as_float32, canonical_scores
from dualform.query.score.rescoring import score_rows
from dualform.query.view import Check
from dualform.query.weights.rebuilt_weights import RebuiltWeights

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
