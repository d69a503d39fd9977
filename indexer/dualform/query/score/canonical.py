"""The score that is reported: one number for one key and one query, whatever found the pair.

Shapes: m pairs, d dimensions, n queries, G groups.

A float32 product is exact in float64; the products are then added as a binary tree over the dimensions, padded with
zeros to a power of two: x[:h] + x[h:], halved until one number is left. Neither the batch, the block, the backend nor
the number of threads changes that order, so the same pair gives the same bits everywhere. A matrix product does not:
BLAS picks its order by the shape of the whole product.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_CHUNK_BYTES = 1 << 20
"""Products held at once, so that the tree is added within the processor's cache."""


def tree_sum(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each row of float64[m, d] in the canonical order, as float64[m]. Overwrites `terms`."""
    width = terms.shape[1]
    if width == 0:
        return np.zeros(len(terms))
    while width > 1:
        half = 1 << ((width - 1).bit_length() - 1)
        # The columns past `width` would be the padding: adding their zeros changes nothing.
        terms[:, : width - half] += terms[:, half:width]
        width = half
    return terms[:, 0] + 0.0  # -0.0 becomes 0.0


def canonical_scores(
    keys: NDArray[np.float32] | NDArray[np.float64], query: NDArray[np.float32] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """The score of each of [m, d] keys for one query [d], or for its own query [m, d], as float64[m]."""
    scores = np.empty(len(keys))
    for start, stop in chunks(len(keys), keys.shape[1]):
        own = query[start:stop] if query.ndim == 2 else query
        scores[start:stop] = tree_sum(np.multiply(keys[start:stop], own, dtype=np.float64))
    return scores


def divisors(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """What an inner product is divided by to take its key or query at length 1: 1.0 for a length of 0, where it is 0.

    Lengths are canonical too: the roots of the canonical scores of a key or a query with itself, which no float32 makes
    overflow or underflow.
    """
    return np.where(lengths == 0, 1.0, lengths)


def cosines(
    products: NDArray[np.float32] | NDArray[np.float64], keys: NDArray[np.float64], queries: NDArray[np.float64]
) -> NDArray[np.float64]:
    """x . q / (|x| |q|) in float64, 0.0 where either is of no length, for inner products of any shape.

    `keys` and `queries` are the lengths, and broadcast to that shape.
    """
    lengths = divisors(queries) * divisors(keys)
    return np.divide(products, lengths, out=lengths)


def chunks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose float64 products fit the cache."""
    size = max(1, _CHUNK_BYTES // (8 * max(1, width)))
    return ((start, min(start + size, rows)) for start in range(0, rows, size))


def as_float32(scores: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rounded to the float32 that is reported; what lies beyond float32 becomes infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return scores.astype(np.float32)
