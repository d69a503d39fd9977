"""The answers to GradientTopK and GradientSum.

The answers to GradientTopK and GradientSum, from the scores of all slots that a mask leaves.

Shapes: n examples, T slots of a space, G groups.

Which slots can be among the k best of an example, by the codes of their keys and values alone.

Of a layer of its own the score is a sum over the example's rows j of (x . q_j + number of biases) (delta . e_j). What
codes say of either factor is off by a known bound (query/search/screen.py), and so is their product:

    |p v - p' v'|  <=  |p'| e_v + (|v'| + e_v) e_p

Slots whose upper bound lies below the k-th greatest lower bound are beaten by k others, whatever the exact scores are.
All of it is float32, and relative to the most that a score of the example could be: the sum over layers and rows of
(|x| |q_j| + number of biases) |delta| |e_j|, with the longest key and value of the layer. So no number is above 1 but
by its error, and what float32 rounds is known beforehand.

Shapes: n examples, T slots of the space, R stored keys, r rows of an example, d of a key or value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.answers import GroupSums, Hits
from dualform.answers.scores import largest
from dualform.errors import BadInput
from dualform.kernels.workers import divide
from dualform.query.bounds import COUNT_BYTES, HIT_BYTES, SUM_BYTES
from dualform.query.gradients.scores import GradientScores, gradient_scores
from dualform.query.groups import Groups, check_spaces, group, joined_keys
from dualform.query.score.canonical import as_float32, norms
from dualform.query.score.key_rows import key_norms, value_norms
from dualform.query.search.codes import WIDEST, Codes, can_quantise
from dualform.query.search.scan import best_of_cells
from dualform.query.search.screen import Screen, code_products
from dualform.query.view import Check, View
from dualform.query.where.mask import Selection
from dualform.questions.gradients import ExampleGradients, GradientSum, GradientTopK, LayerGradients
from dualform.store.layer import Layer
from dualform.store.rows import Entries, Rows

_BLOCK = 1 << 15
"""Entries whose products are added up at once: of the rows of an example, while the cache holds the sums."""
_FEW = 64
"""Slots of which the best is looked at for the floor."""
_BYTES = 96 << 20
"""Of the products of some rows of examples that are held at once."""
_UNIT = 2.0**-23
"""Twice what float32 may round of a number that is at most 1."""
_NORMAL = float(np.finfo(np.float32).tiny)
"""The smallest number that float32 has whole."""
_Products: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64] | None]
"""float32[2, r, R]: what codes say of products of stored rows with some rows, each relative to a number of its own, and
how far off they may be; and int64[H], where each entry stands in them, None where it stands in its own place."""
_STEPS = 8
"""Operations of a row's term and of its bound, with those that made their factors."""


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
        if bounds is None:
            continue

        def judge(_: int, place: int, part: range = part, bounds: NDArray[np.float32] = bounds) -> None:
            middle, off = bounds[:, place] if len(stays) == bounds.shape[2] else bounds[:, place, stays]
            with np.errstate(invalid="ignore"):
                floor = _floor(middle - off, k)
                found[part[place]] = stays[~(middle + off < floor)]  # what is not a number is kept

        divide(range(len(part)), judge)
        check()
    return found


def _floor(lows: NDArray[np.float32], k: int) -> np.float32:
    """What at least k of float32[m] reach; -inf where there are fewer."""
    lows[np.isnan(lows)] = -np.inf
    # The k-th greatest of the maxima of short runs is at most the k-th greatest of all.
    whole = len(lows) // _FEW * _FEW
    best = np.append(lows[:whole].reshape(-1, _FEW).max(axis=1), lows[whole:])
    if k > len(best):
        best = lows
    return np.partition(best, len(best) - k)[len(best) - k] if k <= len(best) else np.float32(-np.inf)


def _bounds(
    scores: GradientScores, space: str, examples: range, screen: Screen, check: Check
) -> NDArray[np.float32] | None:
    """float32[2, examples, T], relative to the most that a score could be: as codes have it, and how far off.

    None where something leaves the range of codes or of float32.
    """
    view, count = scores.view, len(examples)
    bounds = np.zeros((2, count, view.snapshot.space(space).count), dtype=np.float32)
    most, parts = np.zeros(count), list[tuple[Layer, LayerGradients, NDArray[np.float64], NDArray[np.float64]]]()
    terms = np.zeros(count)
    for name, layer in scores.layers.items():
        given = scores.examples.layers.get(name)
        rows = None if given is None else given.chosen(examples)
        if rows is None:
            continue
        # The most that x . q_j + number of biases could be, and delta . e_j.
        of_keys = float(key_norms(view, name, check).max(initial=0.0)) * norms(rows.keys) + len(layer.biases)
        of_values = float(value_norms(view, name, check).max(initial=0.0)) * norms(rows.errors)
        most += np.bincount(rows.examples, of_keys * of_values, count)
        terms += np.bincount(rows.examples, minlength=count)
        parts.append((layer, rows, of_keys, of_keys * of_values))
    if not np.isfinite(most).all():
        return None
    for layer, rows, of_keys, own in parts:
        # Rows whose products are all zero, those of zeros first of all, are left out.
        key_scale, value_scale = np.zeros((2, len(own)))
        np.divide(1.0, of_keys, out=key_scale, where=own > 0)
        np.divide(of_keys, most[rows.examples], out=value_scale, where=own > 0)
        keys, values = view.snapshot.keys(layer.name), view.snapshot.values(layer.name)
        left = _products(keys, rows.keys, key_scale, screen, check)
        right = _products(values, rows.errors, value_scale, screen, check)
        if left is None or right is None:
            return None
        shifts = (len(layer.biases) * key_scale).astype(np.float32)
        divide(range(count), partial(_add, bounds, view.snapshot.entries(layer.name), rows, left, right, shifts))
    rounding = ((_STEPS + terms) * _UNIT).astype(np.float32)[:, None]
    bounds[1] += rounding * (1 + bounds[1])
    return bounds


def _add(
    bounds: NDArray[np.float32],
    own: Entries,
    rows: LayerGradients,
    left: _Products,
    right: _Products,
    shifts: NDArray[np.float32],
    _worker: int,
    place: int,
) -> None:
    """Add one layer's part to the score of one example, some entries at a time, which the cache holds. `shifts`
    float32[r]: what the biases bring, relative as the products of keys are.
    """
    middle, off = bounds[:, place]
    numbers = rows.of(place).tolist()
    for start in range(0, own.count, _BLOCK):
        part = slice(start, min(start + _BLOCK, own.count))
        sums = (middle[part], off[part]) if own.slots is None else np.zeros((2, part.stop - start), np.float32)
        for row in numbers:
            (a, a_error), (b, b_error) = (_of_entries(products, row, part) for products in (left, right))
            kernels.add_pairs(a, a_error, b, b_error, float(shifts[row]), *sums)
        if own.slots is not None:
            middle[own.slots[part]] += sums[0]
            off[own.slots[part]] += sums[1]


def _of_entries(products: _Products, row: int, part: slice) -> NDArray[np.float32]:
    """float32[2, entries]."""
    found, order = products
    return found[:, row, part] if order is None else np.take(found[:, row], order[part], axis=1)


def _products(
    stored: Rows, rows: NDArray[np.float32], scales: NDArray[np.float64], screen: Screen, check: Check
) -> _Products | None:
    """Products of stored rows and float32[r, d], times float64[r]; of rows of zeros, and for scales of zero, zero.

    None for rows that cannot be coded.
    """
    asked = (scales != 0) & rows.any(axis=1)
    count, of_query = stored.stored_rows, scales.astype(np.float32)[asked]
    if not can_quantise(rows[asked]).all() or not ((of_query >= _NORMAL) & (of_query < np.inf)).all():
        return None
    found = np.zeros((2, len(rows), count), dtype=np.float32)
    if asked.any():
        ones = np.ones(count, np.float32)
        found[:, asked] = code_products(stored, screen.codes, rows[asked], ones, of_query, check)
    return found, stored.order


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


_ONE_IN = 4
"""If more than one slot in so many were to be found, the screen would keep nearly all of them."""
BYTES = 128 << 20
"""Of the scores of some examples that are held at once."""


def gradient_top_k(view: View, question: GradientTopK, examples: ExampleGradients, check: Check) -> Hits:
    """Raises as `gradient_scores`, and BadInput for layers of several slot spaces."""
    began = time.perf_counter()
    scores = gradient_scores(view, question.layers, question.where, examples, check)
    if len(scores.spaces) > 1:
        raise BadInput(
            f"The layers have slots of several spaces, {', '.join(scores.spaces)}, which cannot be ranked together.",
            hint='Pass layers of one space, or sum by sample: memory.group_sum(…, by="sample").',
            field="layer",
        )
    (space,) = scores.spaces
    stays, count = scores.stays(space), examples.count
    slots = np.flatnonzero(stays)
    each = min(question.k, len(slots))
    view.bounds.require(
        count, COUNT_BYTES + HIT_BYTES * each, "Ask with at most {} examples at a time, or a smaller k.", "k"
    )
    ids, found = np.empty((count, each), dtype=np.int64), np.empty((count, each))
    left, screened = [], _screened(scores, space, each, check)
    for example, near in enumerate(screened or [None] * count):
        if near is None:
            left.append(example)
        else:
            (own,) = scores.of(space, [example], near, check)
            ids[example], found[example] = _best(own, near, each)
    for part in parts(len(left), len(stays)):
        chosen = [left[place] for place in part]
        for example, own in zip(chosen, scores.of(space, chosen, slots, check), strict=True):
            ids[example], found[example] = _best(own, slots, each)
    view.tally.add(queries=count, fallbacks=0 if screened is None else len(left))
    counts = np.full((count, 1), each, dtype=np.int64)
    scan = view.scan(began, len(stays), len(slots), view.backend.name, space)
    return Hits(ids.ravel(), as_float32(found.ravel()), counts, None, (), scan, space)


def _screened(scores: GradientScores, space: str, k: int, check: Check) -> Sequence[NDArray[np.int64] | None] | None:
    """By example, the slots that can be among its k best; None where all have to be scored, or no screen could help."""
    screen: Screen | None = getattr(scores.view.backend, "screen", None)
    if screen is None or k * _ONE_IN > scores.view.snapshot.space(space).count:
        return None
    return candidates(scores, space, k, screen, check)


def _best(
    scores: NDArray[np.float64], slots: NDArray[np.int64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The k best of some slots, by score descending and then by slot."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    near = np.flatnonzero(scores >= least)
    kept = near[best_of_cells(np.zeros(len(near), dtype=np.int64), scores[near], slots[near], k)]
    return slots[kept], scores[kept]


def gradient_sum(view: View, question: GradientSum, examples: ExampleGradients, check: Check) -> GroupSums:
    """Raises as `gradient_scores`, and BadInput for layers of several slot spaces unless `by` names columns of the
    sample alone.
    """
    began = time.perf_counter()
    scores = gradient_scores(view, question.layers, question.where, examples, check)
    count, k = examples.count, question.k
    most = inf if k is not None else view.bounds.answer_bytes // (SUM_BYTES * (count + 1))
    grouped = {space: _groups(scores, space, question.by, check, most) for space in scores.spaces}
    check_spaces(view, grouped.keys(), question.by)
    keys, places = joined_keys({space: groups.keys for space, groups in grouped.items()})
    counts = np.zeros(len(keys), dtype=np.int64)
    for space, groups in grouped.items():
        counts[places[space]] += groups.counts
    each = SUM_BYTES * (len(keys) if k is None else 3 * min(k, len(keys)))
    view.bounds.require(count, each, "Ask with at most {} examples at a time, or by fewer groups.", "by")
    sums, numbers = [], []
    for part in parts(count, max(view.snapshot.space(space).count for space in grouped)):
        found = np.zeros((len(part), len(keys)))
        for space, groups in grouped.items():
            for total, own in zip(found, scores.of(space, part, groups.entries, check), strict=True):
                total[places[space]] += np.bincount(groups.numbers, own, len(groups.keys))
        if k is not None:
            found, chosen = largest(found, k)
            numbers.append(chosen)
        sums.append(found)
    spaces = list(grouped)
    space = spaces[0] if len(spaces) == 1 else ""
    slots = sum(view.snapshot.space(one).count for one in spaces)
    scan = view.scan(began, slots, int(counts.sum()), view.backend.name, space or None)
    answer = GroupSums(keys, np.concatenate(sums), counts, question.by, scan, space)
    if k is None:
        return answer
    whole = GroupSums(keys, answer.sums, counts, question.by, scan, space, None, np.concatenate(numbers), len(keys))
    return whole.part(0, count)


def parts(examples: int, slots: int) -> Iterator[range]:
    """Examples whose scores of all slots take BYTES."""
    size = max(1, BYTES // (8 * max(1, slots)))
    return (range(start, min(start + size, examples)) for start in range(0, examples, size))


def _groups(scores: GradientScores, space: str, by: tuple[str, ...], check: Check, most: float) -> Groups:
    """Of the slots of a space that stay, at most so many."""
    stays = scores.stays(space)
    return group(scores.view.snapshot.space(space), None, Selection("", stays), by, check, most)
