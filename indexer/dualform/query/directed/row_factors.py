"""What the screen of keys multiplies a row's inner product by: the worth of its entries' values, in float32.

Shapes: n queries, m entries whose gradient an update used, H entries of the layer, R stored rows.

Where all queries have one direction, that worth is known. Along vectors of their own it is what the codes of the values
say of it (query/search/code_products.py), and how far off that may be goes along as the spread. Either is divided by
what it is at most, so that float32 holds it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.query.directed.directed_values import DirectedValues
from dualform.query.score.bound import norms
from dualform.query.score.key_rows import KeyRows, value_norms
from dualform.query.search.code_products import code_products
from dualform.query.search.codes import WIDEST, RowFactors, can_quantise
from dualform.query.search.codes_cache import CodesCache
from dualform.query.search.searcher import Search
from dualform.query.view import Check

BYTES = 128 << 20
"""Of the factors of some queries, at most."""


def most_queries(values: DirectedValues) -> int:
    """Whose factors take BYTES together."""
    entries = values.view.snapshot.entries(values.layer.name).count
    return 1 << 30 if values.shared else max(1, BYTES // (20 * max(1, entries)))


def row_factors(
    search: Search, values: DirectedValues, queries: NDArray[np.int64], codes: CodesCache
) -> RowFactors | None:
    """Of some queries of the question, int64[n]; None where codes cannot tell."""
    rows, check = search.rows, search.check
    if values.target.vectors is None:
        key = ("row factors", search.layer, rows.identity, values.target)
        return search.view.cache.get(key, lambda: _known(rows, values, check), check)
    vectors = values.target.vectors.rows
    directions = vectors[queries] if len(vectors) > 1 else vectors
    stored = values.view.snapshot.values(values.layer.name)
    if not 0 < stored.width <= WIDEST or not can_quantise(directions).all():
        return None
    used = values.selection.entries if stored.order is None else stored.order[values.selection.entries]
    lengths, greatest = value_norms(values.view, values.layer.name, check), np.abs(values.coefficients).max()
    longest = float(lengths[used].max(initial=0.0))
    if not (0 < longest < np.inf and greatest > 0):
        return None
    of_row = np.zeros(len(lengths), dtype=np.float32)
    of_row[used] = values.coefficients / greatest
    of_query = (1.0 / (longest * norms(directions))).astype(np.float32)
    if not (np.isfinite(of_query) & (of_query > 0)).all():
        return None
    worth, spread = code_products(stored, codes, directions, of_row, of_query, check)
    if stored.order is not None:
        worth, spread = (np.take(own, stored.order, axis=1) for own in (worth, spread))
    if rows.keys.row_of_entry is None:
        return RowFactors(worth, worth, spread)
    return RowFactors(
        *(_of_rows(rows, own, best) for own, best in ((worth, np.maximum), (worth, np.minimum), (spread, np.maximum)))
    )


def _known(rows: KeyRows, values: DirectedValues, check: Check) -> RowFactors:
    """Of the one direction of all queries."""
    worth = values.of(0, check)
    greatest = np.abs(worth).max(initial=0.0)
    of_entry = np.zeros((1, values.view.snapshot.entries(values.layer.name).count), dtype=np.float32)
    with np.errstate(under="ignore"):
        of_entry[0, values.selection.entries] = worth / (greatest or 1.0)
    if rows.keys.row_of_entry is None:
        return RowFactors(of_entry, of_entry)
    return RowFactors(_of_rows(rows, of_entry, np.maximum), _of_rows(rows, of_entry, np.minimum))


def _of_rows(rows: KeyRows, of_entry: NDArray[np.float32], best: np.ufunc) -> NDArray[np.float32]:
    """float32[n, R] of float32[n, H]: of the entries of each row that are used, the one that `best` takes; else 0."""
    found = np.zeros((len(of_entry), rows.keys.rows), dtype=np.float32)
    there = np.flatnonzero(rows.starts[1:] > rows.starts[:-1])
    if len(there):
        for query, own in zip(found, of_entry, strict=True):
            query[there] = best.reduceat(own[rows.order], rows.starts[there])
    return found
