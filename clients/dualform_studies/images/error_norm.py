"""Attention weights times the norm of what they bring: the variant in the side note of the paper's section 5.2.

    sum_t |alpha_t| ||e_t||        over the slots t of a class; e_t = a_s c_s delta_t is the value at a step

Shapes: T slots, R stored rows, G classes, n queries, d_in, d_out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.weights.coefficients import coefficients
from dualform.store.rows import Keys
from dualform.store.snapshot import Snapshot

_ROWS = 4096


def error_norms(memory: Snapshot, layer: str, at_step: int | None = None) -> NDArray[np.float64]:
    """float64[T]: ||e_t|| of each slot, as the layer's weight has it after `at_step` updates, None for all of them.

    A slot of a later step has brought nothing yet: 0. Raises NotFound where no values were recorded.
    """
    found = memory.layer(layer)
    by_step = np.zeros(memory.steps)
    known = coefficients(memory, found.weights[0].name, at_step).per_step
    by_step[: len(known)] = np.abs(known)
    norms: NDArray[np.float64] = by_step[np.asarray(memory.column(found.space, "step"))]
    for start, errors in memory.values(layer).blocks(_ROWS):
        norms[start : start + len(errors)] *= np.linalg.norm(errors.astype(np.float64), axis=1)
    return norms


def error_norm_sums(
    memory: Snapshot, layer: str, probe: str, at_step: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """int64[G], the labels in ascending order, and float64[n, G], the sums of each row of a probe.

    Raises NotFound where the layer, its values or the probe are missing.
    """
    keys, queries = memory.keys(layer), memory.probe(probe).queries(layer)
    classes, numbers = np.unique(np.asarray(memory.column(memory.layer(layer).space, "label")), return_inverse=True)
    weights = _by_row(keys, numbers, error_norms(memory, layer, at_step), len(classes))
    sums = _of_one_sign(keys, weights, queries)
    return classes, _scanned(keys, weights, queries) if sums is None else sums


def _by_row(keys: Keys, numbers: NDArray[np.int64], norms: NDArray[np.float64], classes: int) -> NDArray[np.float64]:
    """float64[R, G]: the norms of the slots of each class that share a stored key, added."""
    rows = np.arange(keys.slots) if keys.row_of_slot is None else keys.row_of_slot
    cells = np.bincount(rows * classes + numbers, norms, minlength=keys.rows * classes).astype(np.float64)
    return cells.reshape(keys.rows, classes)


def _of_one_sign(keys: Keys, weights: NDArray[np.float64], queries: NDArray[np.float32]) -> NDArray[np.float64] | None:
    """Where neither keys nor queries are negative, no score is: weighted key sums, and one product. Else None."""
    if queries.min() < 0:
        return None
    sums = np.zeros((weights.shape[1], keys.width))
    for start, block in keys.blocks(_ROWS):
        if block.min() < 0:
            return None
        sums += weights[start : start + len(block)].T @ block
    products: NDArray[np.float64] = queries @ sums.T
    return products


def _scanned(keys: Keys, weights: NDArray[np.float64], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """Every score, in float32, and what they add up to in float64."""
    sums = np.zeros((len(queries), weights.shape[1]))
    for start, block in keys.blocks(_ROWS):
        scores = queries @ block.T
        sums += np.abs(scores, out=scores) @ weights[start : start + len(block)]
    return sums
