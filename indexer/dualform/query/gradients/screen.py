"""Which slots can be among the k best of an example, by the codes of their keys and values alone.

Of a layer of its own the score is a sum over the example's rows j of (x . q_j + number of biases) (delta . e_j). What
codes say of either factor is off by a known bound (query/search/code_products.py), and so is their product:

    |p v - p' v'|  <=  |p'| e_v + (|v'| + e_v) e_p

Slots whose upper bound lies below the k-th greatest lower bound are beaten by k others, whatever the exact scores are.

Shapes: n examples, T slots of the space, R stored keys, r rows of an example, d of a key or value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dualform.kernels.workers import divide
from dualform.query.gradients.scores import GradientScores
from dualform.query.score.bound import norms
from dualform.query.score.key_rows import key_norms, value_norms
from dualform.query.search.code_products import code_products
from dualform.query.search.codes import WIDEST, Codes, can_quantise
from dualform.query.search.screen import Screen
from dualform.query.view import Check
from dualform.questions.gradients import LayerGradients
from dualform.store.layer import Layer
from dualform.store.rows import Rows

_BLOCK = 1 << 13
"""Entries whose products are multiplied together at once."""
_BYTES = 96 << 20
"""Of the products of some rows of examples that are held at once."""
_TINY = 2.0**-100
"""Of products that are relative to the greatest that there may be: far above what float32 has no room for."""
_ROUNDING, _SLACK = 2.0**-40, 1 + 2.0**-30
"""Far above what float64 rounds of a term and of its bound."""


@dataclass(frozen=True, eq=False)
class _Factor:
    """What codes say of the products of all entries of a layer with some rows."""

    products: NDArray[np.float32]
    """float32[r, R]."""
    errors: NDArray[np.float32]
    scales: NDArray[np.float64]
    """float64[r]: by which both are to be multiplied."""
    order: NDArray[np.int64] | None
    """int64[H]: where each entry stands in them; None where it stands in its own place."""

    def of(self, row: int, entries: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """float64 of some entries, twice: the products of a row, and how far off they may be."""
        chosen = entries if self.order is None else self.order[entries]
        products, errors = (array[row, chosen].astype(np.float64) for array in (self.products, self.errors))
        products *= self.scales[row]
        errors += _TINY
        errors *= self.scales[row]
        return products, errors


def candidates(
    scores: GradientScores, space: str, k: int, screen: Screen, check: Check
) -> list[NDArray[np.int64] | None]:
    """By example, the slots that can be among its k best, ascending; None where codes cannot tell.

    All layers are of one space.
    """
    count = scores.examples.count
    found: list[NDArray[np.int64] | None] = [None] * count
    if not all(_alone(layer, scores) and _coded(layer, scores, screen) for layer in scores.layers.values()):
        return found
    stays = np.flatnonzero(scores.stays(space))
    for part in _parts(scores):
        bounds = _bounds(scores, space, part, screen, check)
        if bounds is not None:
            divide(range(len(part)), partial(_judge, bounds, stays, k, part, found))
        check()
    return found


@dataclass(frozen=True, eq=False)
class _Bounds:
    """float64[examples, T] each: scores as codes have them, and how far off they may be."""

    middle: NDArray[np.float64]
    off: NDArray[np.float64]


def _judge(
    bounds: _Bounds,
    stays: NDArray[np.int64],
    k: int,
    part: range,
    found: list[NDArray[np.int64] | None],
    _worker: int,
    place: int,
) -> None:
    """Enter the candidates of one example of a part."""
    middle, off = bounds.middle[place], bounds.off[place]
    if len(stays) < len(middle):
        middle, off = middle[stays], off[stays]
    with np.errstate(invalid="ignore"):
        low = middle - off
        low[np.isnan(low)] = -np.inf
        floor = np.partition(low, len(low) - k)[len(low) - k] if k < len(low) else -np.inf
        found[part[place]] = stays[~(middle + off < floor)]  # what is not a number is kept


def _bounds(scores: GradientScores, space: str, examples: range, screen: Screen, check: Check) -> _Bounds | None:
    view = scores.view
    bounds = _Bounds(*np.zeros((2, len(examples), view.snapshot.space(space).count)))
    for name, layer in scores.layers.items():
        given = scores.examples.layers.get(name)
        rows = None if given is None else given.chosen(examples)
        if rows is None:
            continue
        keys, values = view.snapshot.keys(name), view.snapshot.values(name)
        of_keys = _factor(keys, key_norms(view, name, check), rows.keys, screen, check)
        of_values = _factor(values, value_norms(view, name, check), rows.errors, screen, check)
        if of_keys is None or of_values is None:
            return None
        own = view.snapshot.entries(name)
        added = partial(_add, bounds, rows, of_keys, of_values, len(layer.biases), own.slots, own.count)
        divide(range(len(examples)), added)
    return bounds


def _add(
    bounds: _Bounds,
    rows: LayerGradients,
    of_keys: _Factor,
    of_values: _Factor,
    biases: int,
    slots: NDArray[np.int64] | None,
    entries: int,
    _worker: int,
    place: int,
) -> None:
    """Add one layer's part to the score of one example, some entries at a time, which the cache holds."""
    middle, off = bounds.middle[place], bounds.off[place]
    own = rows.of(place).tolist()
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, entries, _BLOCK):
            part = slice(start, min(start + _BLOCK, entries))
            chosen = part if slots is None else slots[part]
            for row in own:
                p, e_p = of_keys.of(row, part)
                v, e_v = of_values.of(row, part)
                p += biases
                term = p * v
                middle[chosen] += term
                # |p'| e_v + (|v'| + e_v) e_p, in the arrays that are there
                np.abs(v, out=v)
                v += e_v
                v *= e_p
                np.abs(p, out=p)
                p *= e_v
                p += v
                p *= _SLACK
                off[chosen] += p
                np.abs(term, out=term)
                term *= _ROUNDING
                off[chosen] += term


def _factor(
    stored: Rows, lengths: NDArray[np.float64], rows: NDArray[np.float32], screen: Screen, check: Check
) -> _Factor | None:
    """`lengths`: float64[R], the norms of the stored rows. None for rows that cannot be coded, of all zeros apart."""
    empty = ~rows.any(axis=1)
    longest = float(lengths.max(initial=0.0))
    if not can_quantise(rows[~empty]).all() or not 0 < longest < np.inf:
        return None
    scales = longest * norms(rows)
    of_row, of_query = np.ones(len(lengths), np.float32), (1.0 / scales[~empty]).astype(np.float32)
    if not (np.isfinite(of_query) & (of_query > 0)).all():
        return None
    if not empty.any():
        found = code_products(stored, screen.codes, rows, of_row, of_query, check)
        return _Factor(*found, scales, stored.order)
    products, errors = np.zeros((2, len(rows), len(lengths)), dtype=np.float32)
    if not empty.all():
        products[~empty], errors[~empty] = code_products(stored, screen.codes, rows[~empty], of_row, of_query, check)
    return _Factor(products, errors, scales, stored.order)


def _parts(scores: GradientScores) -> Sequence[range]:
    """Examples whose rows' products take _BYTES together, one at least."""
    count = scores.examples.count
    most = max(len(own.keys) for own in scores.examples.layers.values()) / count
    entries = max(scores.view.snapshot.entries(name).count for name in scores.layers)
    size = max(1, int(_BYTES / (max(1.0, most) * 16 * max(1, entries))))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _alone(layer: Layer, scores: GradientScores) -> bool:
    """Whether a layer's score is the product of two: it shares no block with another one that is asked, and its weights
    take each number of its keys once.
    """
    own = {place.block_name for place in layer.parameters}
    for other in scores.layers.values():
        if other.name != layer.name and not own.isdisjoint(place.block_name for place in other.parameters):
            return False
    columns = sorted((place.start, place.stop) for place in layer.weights)
    follows = [0, *(stop for _, stop in columns)]
    whole = [start for start, _ in columns] == follows[:-1] and follows[-1] == layer.d_in
    return whole and layer.groups == 1 and not any(place.transposed for place in layer.weights)


def _coded(layer: Layer, scores: GradientScores, screen: Screen) -> bool:
    """Whether there may be codes of its keys and values, and they are worth being made."""
    if not (0 < layer.d_in <= WIDEST and 0 < layer.d_out <= WIDEST):
        return False
    sources = scores.view.snapshot.keys(layer.name).sources
    return sum(Codes.bytes_of(own.rows, own.width) for own in sources if own.made) <= screen.codes.most_bytes
