"""Queries orthogonal to all keys of a layer (paper, remark 3.3).

Such a query draws no attention, so the layer answers W_0 q and its bias: nothing that was learned from keys speaks.
Shapes: d_in, m directions orthogonal to all keys, n queries, b keys of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.pages.folder import Report

_UNSEEN = 1e-13
"""Of the keys' summed squares: a direction with less of a block of keys is orthogonal to them, as far as float32 goes
(the mean squared cosine; its root is 3e-7)."""
_KEYS_AT_ONCE = 8192


def orthogonal_directions(blocks: Iterable[NDArray[np.float32]], width: int) -> NDArray[np.float64]:
    """float64[d_in, m]: an orthonormal basis of what is orthogonal to every key; m is 0 where keys span everything.

    Each block leaves fewer directions, so that all blocks behind the first are projected onto few.
    """
    basis = np.eye(width)
    for block in blocks:
        if not basis.shape[1]:
            break
        keys = block.astype(np.float64)
        projected = keys @ basis
        squares, directions = np.linalg.eigh(projected.T @ projected)
        basis = basis @ directions[:, squares <= _UNSEEN * np.square(keys).sum()]
    return basis


def key_blocks(memory: Engine, layer: str) -> Iterator[NDArray[np.float32]]:
    """float32[b, d_in]: every distinct stored key of a layer once."""
    rows = memory.key_rows(layer, np.arange(sum(memory.info().slots.values())))
    _, first = np.unique(rows, return_index=True)
    for start in range(0, len(first), _KEYS_AT_ONCE):
        yield memory.keys(layer, np.sort(first)[start : start + _KEYS_AT_ONCE])


def ask_span(memory: Engine, layer: str, query_set: str, initial: NDArray[np.float64]) -> Report:
    """How much of the test queries lies outside the keys' span, and what a query wholly outside is answered.

    `initial` is the layer's weight before training with its bias as the last column, float64[d_out, d_in + 1]. The
    query is the outside part of the test query that has most of it, made as long as that test query is.
    """
    queries = memory.query_set(query_set, layer).queries
    assert queries is not None, "the layer was named"
    basis = orthogonal_directions(key_blocks(memory, layer), queries.shape[1])
    parts = queries.astype(np.float64) @ basis
    lengths = np.square(queries.astype(np.float64)).sum(axis=1)
    shares = np.square(parts).sum(axis=1) / lengths
    report: Report = {
        "width": queries.shape[1],
        "rank": queries.shape[1] - basis.shape[1],
        "outside_mean": float(shares.mean()),
        "outside_most": float(shares.max()),
    }
    if basis.shape[1]:
        row = int(shares.argmax())
        # Where no test query leaves the span, any direction outside will do.
        part = basis @ parts[row] if shares[row] > 0 else basis[:, 0]
        outside = part * np.sqrt(lengths[row]) / np.linalg.norm(part)
        report["query"] = _ask_outside(memory, layer, outside.astype(np.float32), queries[row], initial)
        report["query"]["row"] = row
    return report


def _ask_outside(
    memory: Engine,
    layer: str,
    outside: NDArray[np.float32],
    inside: NDArray[np.float32],
    initial: NDArray[np.float64],
) -> Report:
    """The answer to a query outside the span beside W_0 q and the bias, and the same for the test query itself; and how
    far the bias moved. All are lengths relative to that of W_0 q.
    """
    both = np.stack([outside, inside])
    answers = np.asarray(memory.output(layer, both), dtype=np.float64)
    bias = np.asarray(memory.weights()[f"{layer}.bias"], dtype=np.float64)
    untrained = both.astype(np.float64) @ initial[:, :-1].T
    lengths = np.linalg.norm(untrained, axis=1)
    added = np.linalg.norm(answers - bias - untrained, axis=1) / lengths
    best = memory.topk(layer, both, k=1, score="abs")
    return {
        "added": float(added[0]),
        "bias_moved": float(np.linalg.norm(bias - initial[:, -1]) / lengths[0]),
        "added_test_query": float(added[1]),
        "greatest_weight": float(best.scores[0][0]),
        "greatest_weight_test_query": float(best.scores[1][0]),
    }
