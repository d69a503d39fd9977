"""Contributions along a direction: the best slots by them, and their sums by group.

Sums of contributions by group.

Shapes: n queries, G groups, d dimensions of a key.

    sum_t v_t(u) (x_t . q)  =  (sum_t v_t(u) x_t) . q

Where all queries have one direction and groups are few, the right side: keys times the worth of their slots' values,
added as key_sums.py adds keys, are made once for all queries. Else the canonical contributions are added in slot order.

Where slots have no contributions of their own, as under Muon, a group still has weights, which the trajectory is run
again for: its sum is what they make of the query, along the direction (query/weights/contributions.py).

The best slots by their contributions along a direction.

Shapes: n queries, m entries whose gradient an update used, d of a key, c candidates.

The screen of keys leaves out rows all of whose entries k others beat, by the codes of the keys and by what the values
are worth. What it cannot decide is scanned: every product of keys in float32, with its bound, times
the canonical worth of every value. Either way canonical contributions rank.

What the screen of keys multiplies a row's inner product by: the worth of its entries' values, in float32.

Shapes: n queries, m entries whose gradient an update used, H entries of the layer, R stored rows.

Where all queries have one direction, that worth is known. Along vectors of their own it is what the codes of the values
say of it (query/search/screen.py), and how far off that may be goes along as the spread. Either is divided by
what it is at most, so that float32 holds it.

What the value of each slot is worth along a direction: the second factor of its contribution.

    c_t(q, u)  =  (x_t . q) v_t(u)        v_t(u)  =  a_t (delta_t . u)        u: the direction

Shapes: m entries whose gradient an update used, n queries, d_out outputs of the layer.

Both factors are canonical: (delta_t . u) is summed in the order of canonical.py, and rounded before the coefficient
a_t of the slot's step multiplies it. A direction that is one output, or one less another, has the bits of the vector
that names it, but reads a column of the values in place of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Status
from dualform.errors import BadInput, EmptyMask, Inexact
from dualform.query.groups import group_entries
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import canonical_scores, norms, score_block, score_pairs, score_rows
from dualform.query.score.key_rows import KeyRows, value_norms
from dualform.query.score.kinds import Dot
from dualform.query.search.codes import WIDEST, CodesCache, RowFactors, can_quantise
from dualform.query.search.scan import ProductScorer, Ranked, Search, best_of_cells, best_of_groups
from dualform.query.search.screen import Request, Screen, code_products, request_of
from dualform.query.sums.grouping import Grouping
from dualform.query.view import Check, View
from dualform.query.weights.contributions import contributions
from dualform.query.weights.reconstruction import require
from dualform.query.weights.slot_products import Remedy, block_size, blocks, places, refuse_without_values, slot_values
from dualform.query.where.mask import Selection
from dualform.questions import Contribution, GroupSum, Target
from dualform.questions.arguments import check_step
from dualform.store.layer import Layer
from dualform.store.rows import Rows

_REMEDY = Remedy(hint='Sum over groups of slots instead: group_sum(…, by="label").', field="score")


@dataclass(frozen=True, eq=False)
class DirectedValues:
    """Of the entries that a mask leaves and whose gradient an update before `at_step` used."""

    view: View
    layer: Layer
    selection: Selection
    """Those entries, at least one. No other process makes them, as `source` says."""
    target: Target
    status: Status
    coefficients: NDArray[np.float64]
    """float64[m]."""

    def of(self, query: int, check: Check) -> NDArray[np.float64]:
        """float64[m]: for the direction of one query, in the order of the entries.

        Raises Inexact where a value is not finite: such a contribution has no place in any order.
        """
        target, vectors = self.target, self.target.vectors
        if vectors is not None:
            return self._made(vectors.rows[query if vectors.count > 1 else 0], check)
        asked = target.at_step, target.allow_inexact, target.output, target.minus
        key = ("directed", self.layer.name, self.selection.identity, *asked)
        return self.view.cache.get(key, lambda: self._made(None, check), check)

    def of_entries(self, queries: NDArray[np.int64], entries: NDArray[np.int64], check: Check) -> NDArray[np.float64]:
        """float64[c]: the same of some of the m entries, int64[c], each for the direction of its query."""
        own = np.searchsorted(self.selection.entries, entries)
        if self.target.vectors is None:
            return self.of(0, check)[own]
        vectors, values = self.target.vectors.rows, self.view.snapshot.values(self.layer.name)
        rows = entries if values.order is None else values.order[entries]
        number = queries if len(vectors) > 1 else np.zeros(len(queries), dtype=np.int64)
        found = score_pairs(Rows(values.sources, values.width), rows, number, vectors, check)
        found *= self.coefficients[own]
        if not np.isfinite(found).all():
            self._refuse(found, entries)
        return found + 0.0  # -0.0 becomes 0.0

    @property
    def shared(self) -> bool:
        """Whether all queries have the same."""
        return self.target.vectors is None

    def _made(self, direction: NDArray[np.float32] | None, check: Check) -> NDArray[np.float64]:
        values, entries = self.view.snapshot.values(self.layer.name), self.selection.entries
        found = np.empty(len(entries))
        for start, stop, part in blocks(entries, values.rows, block_size(values.width)):
            check()
            own = values.block(start, stop)[places(entries[part], start, stop)]
            found[part] = self._output(own) if direction is None else score_block(own, direction)
        with np.errstate(over="ignore", invalid="ignore"):
            found *= self.coefficients
        found += 0.0  # -0.0 becomes 0.0
        if not np.isfinite(found).all():
            self._refuse(found, entries)
        return found

    def _output(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        output, minus = self.target.output, self.target.minus
        assert output is not None, "a direction without vectors names an output"
        found = values[:, output].astype(np.float64)
        return found if minus is None else found - values[:, minus]

    def _refuse(self, found: NDArray[np.float64], entries: NDArray[np.int64]) -> None:
        first = entries[~np.isfinite(found)].min(keepdims=True)
        slot = int(self.view.snapshot.entries(self.layer.name).slots_of(first)[0])
        raise Inexact(
            f"Layer {self.layer.name!r} has values with NaN or infinity, first at slot {slot}.",
            hint=f'The training diverged there. Leave those slots out: where="slot < {slot}".',
            field="where",
        )


def directed_values(
    view: View, layer: Layer, selection: Selection, target: Target, queries: int, check: Check
) -> DirectedValues:
    """Raises BadInput where the layer has no such output, vectors are not as wide as it or not as many as the queries;
    Inexact as `require` says; WithoutValues where slots have no values of their own; EmptyMask where no update before
    `at_step` used a slot's gradient.
    """
    _check_width(layer, target, queries)
    check_step(target.at_step, view.snapshot.steps)
    status = require(view, layer.stored, target.at_step, target.allow_inexact, check)
    refuse_without_values(view, layer.stored, _REMEDY)

    def made() -> _UsedEntries:
        slots = slot_values(view, layer, selection, target.at_step, status, check, _REMEDY)
        used = replace(selection, source=None)
        if len(slots.entries) < selection.count:
            stays = np.zeros_like(selection.stays)
            stays[slots.entries] = True
            # No SQL reads like this, so no mask has this identity. Layers are updated when their optimizers are.
            identity = f"used of {layer.name!r} before step {target.at_step}: {selection.identity}"
            used = Selection(identity, stays, stored=False)
        return _UsedEntries(used, slots.coefficients)

    key = ("used entries", layer.name, selection.identity, target.at_step, target.allow_inexact)
    used_entries = view.cache.get(key, made, check)
    if not used_entries.selection.count:
        raise EmptyMask(
            f"No update before step {target.at_step} used the gradient of a slot that where keeps.",
            hint="Pass a larger at_step, or leave it out for the end of the training.",
            field="at_step",
        )
    return DirectedValues(view, layer, used_entries.selection, target, status, used_entries.coefficients)


@dataclass(frozen=True, eq=False)
class _UsedEntries:
    """Entries with their coefficients, float64[m]."""

    selection: Selection
    coefficients: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        return self.selection.nbytes + self.coefficients.nbytes


def _check_width(layer: Layer, target: Target, queries: int) -> None:
    """Raises BadInput where a direction does not fit a layer's outputs or the number of queries."""
    for number in (target.output, target.minus):
        if number is not None and number >= layer.d_out:
            raise BadInput(
                f"target must name an output from 0 to {layer.d_out - 1} of layer {layer.name!r}, not {number}.",
                field="target",
            )
    if target.vectors is None:
        return
    count, width = target.vectors.rows.shape
    if width != layer.d_out:
        raise BadInput(
            f"target must have {layer.d_out} columns, one for each output of layer {layer.name!r}, not {width}.",
            field="target",
        )
    if count not in (1, queries):
        raise BadInput(
            f"target must have 1 row, or {queries}, one for each query, not {count}.",
            field="target",
        )


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


def directed_best(search: Search, values: DirectedValues, queries: NDArray[np.float32]) -> list[Ranked]:
    """By query, the best entries of float32[n, d], group after group. `search` is among the entries of `values`."""
    found: dict[int, Ranked] = {}
    screen: Screen | None = getattr(search.view.backend, "screen", None)
    request = None if screen is None or not screen.weighs else request_of(search, screen, absolute=False)
    if screen is not None and request is not None:
        able = np.flatnonzero(can_quantise(queries))
        size = min(request.batch, most_queries(values))
        for start in range(0, len(able), size):
            batch = able[start : start + size]
            found.update(_screened(search, values, queries, batch, screen, request))
    left = [query for query in range(len(queries)) if query not in found]
    found.update(zip(left, _scanned(search, values, queries, left), strict=True))
    search.view.tally.add(queries=len(queries), fallbacks=0 if request is None else len(left))
    return [found[query] for query in range(len(queries))]


def _screened(
    search: Search,
    values: DirectedValues,
    queries: NDArray[np.float32],
    batch: NDArray[np.int64],
    screen: Screen,
    request: Request,
) -> dict[int, Ranked]:
    """Of some of the queries, int64[n], those that the screen can decide."""
    rows, own = search.rows, queries[batch]
    factors = row_factors(search, values, batch, screen.codes)
    if factors is None:
        return {}
    near = screen.candidates(rows.keys, own, replace(request, factors=factors), search.check, rows.norms)
    search.check()
    scores = score_pairs(rows.keys, near.rows, near.query, own, search.check)
    search.view.tally.add(candidates=len(scores))
    entries, index = rows.entries_of(near.rows)
    query = near.query[index]
    scores = scores[index] * values.of_entries(batch[query], entries, search.check) + 0.0  # -0.0 becomes 0.0
    cells = query * request.groups + (0 if request.group is None else request.group[near.rows[index]])
    kept = best_of_cells(cells, scores, entries, search.k)
    entries, cells, scores = entries[kept], cells[kept], scores[kept]
    cuts = np.searchsorted(cells, np.arange(len(batch) + 1) * request.groups)
    return {
        number: (entries[cuts[i] : cuts[i + 1]], scores[cuts[i] : cuts[i + 1]])
        for i, number in enumerate(batch.tolist())
        if not near.crowded[i]
    }


def _scanned(search: Search, values: DirectedValues, queries: NDArray[np.float32], left: Sequence[int]) -> list[Ranked]:
    """Of the queries with these numbers."""
    if not left:
        return []
    if search.groups is None:
        groups = group_entries(search.view, values.layer, values.selection, (), search.check)
        search = replace(search, groups=groups)
    score = Dot()
    return best_of_groups(
        search,
        queries[left],
        lambda own, some: ProductScorer.of(own, some, score),
        lambda query: values.of(left[query], search.check),
    )


def directed_sums(
    grouping: Grouping, values: DirectedValues, queries: NDArray[np.float32], first: int
) -> NDArray[np.float64]:
    """float64[n, G] of some queries, from the `first` of the question on. `grouping` is of the entries of `values`.

    Raises Inexact where a key or value is not finite.
    """
    check = grouping.check
    if grouping.many or not values.shared:
        return grouping.by_slot(queries, factors_of=lambda query: values.of(first + query, check))
    name = ("target", *astuple(values.target))
    return score_rows(grouping.scaled_key_sums(name, values.of(0, check)), queries)


def sums_of_group_weights(resolved: Resolved[GroupSum], check: Check) -> GroupSums:
    """Raises as `contributions`."""
    question = resolved.question
    target = question.target
    assert target is not None, "a contribution has a direction"
    at_step, inexact = target.at_step, target.allow_inexact
    asked = Contribution(question.layer, question.queries, question.by, question.where, at_step, inexact)
    view, layer, selection, groups = resolved.view, resolved.layer, resolved.selection, resolved.groups
    whole = Resolved(asked, view, layer, resolved.queries, selection, groups, began=resolved.began)
    found = contributions(whole, check)
    directions = target.rows(*found.initial.shape)
    sums = [canonical_scores(own, row) for own, row in zip(found.sums, directions, strict=True)]
    return GroupSums(found.groups, np.stack(sums), found.counts, found.by, resolved.scan(), found.space, found.status)
