"""Contributions along a direction: the weight that they give each slot, and their sums by group.

    c_t(q, u)  =  (x_t . q) v_t(u)        v_t(u)  =  a_t (delta_t . u)        u: the direction

Shapes: m entries whose gradient an update used, H entries of the layer, R stored rows, n queries, d_out outputs.

So a contribution is a score that weighs each slot by v_t, what its value is worth (query/score/algebra.py). Both
factors are canonical: (delta_t . u) is summed in the order of canonical.py, and rounded before the coefficient a_t of
the slot's step multiplies it. A direction that is one output, or one less another, has the bits of the vector that
names it, but reads a column of the values in place of all. The screen multiplies by v_t in float32, divided by what it
is at most: known where all queries have one direction, else what the codes of the values say of it, with its bound.

Sums by group follow from (sum_t v_t(u) x_t) . q where all queries have one direction and groups are few
(query/sums/grouping.py). Where slots have no contributions of their own, as under Muon, a group still has weights,
which the trajectory is run again for: its sum is what they make of the query, along the direction
(query/weights/contributions.py).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Status
from dualform.errors import BadInput, EmptyMask, Inexact
from dualform.query.resolved import Resolved
from dualform.query.score.canonical import canonical_scores, norms, score_block, score_pairs
from dualform.query.score.key_rows import KeyRows, value_norms
from dualform.query.search.codes import WIDEST, CodesCache, RowFactors, can_quantise
from dualform.query.search.screen import code_products
from dualform.query.sums.grouping import Grouping, KeyWeights
from dualform.query.view import Check, View
from dualform.query.weights.contributions import contributions
from dualform.query.weights.reconstruction import require
from dualform.query.weights.slot_products import Remedy, block_size, blocks, places, refuse_without_values, slot_values
from dualform.query.where.mask import Selection
from dualform.questions import Contribution, GroupSum, Target
from dualform.questions.arguments import check_step
from dualform.store.layer import Layer
from dualform.store.rows import Rows

BYTES = 128 << 20
"""Of the factors of some queries, at most."""
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
    by_row = False
    tiny = 2.0**-1020

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

    def weigh(
        self, products: NDArray[np.float64], query: NDArray[np.int64] | int, of: NDArray[np.int64] | None, check: Check
    ) -> NDArray[np.float64]:
        if of is None:
            assert isinstance(query, int), "all entries are weighed for one query"
            return products * self.of(query, check) + 0.0  # -0.0 becomes 0.0
        return products * self.at(query, of, check) + 0.0

    def at(self, query: NDArray[np.int64] | int, of: NDArray[np.int64], check: Check) -> NDArray[np.float64]:
        """float64[c]: of some of the m entries, int64[c], each for the direction of its query."""
        own = np.searchsorted(self.selection.entries, of)
        if self.target.vectors is None:
            return self.of(0, check)[own]
        vectors, values = self.target.vectors.rows, self.view.snapshot.values(self.layer.name)
        rows = of if values.order is None else values.order[of]
        number = np.broadcast_to(query if len(vectors) > 1 else 0, len(of)).astype(np.int64)
        found = score_pairs(Rows(values.sources, values.width), rows, number, vectors, check)
        found *= self.coefficients[own]
        if not np.isfinite(found).all():
            self._refuse(found, of)
        return found + 0.0  # -0.0 becomes 0.0

    @property
    def shared(self) -> bool:
        """Whether all queries have the same."""
        return self.target.vectors is None

    @property
    def most_queries(self) -> int:
        """Whose factors take BYTES together."""
        entries = self.view.snapshot.entries(self.layer.name).count
        return 1 << 30 if self.shared else max(1, BYTES // (20 * max(1, entries)))

    def row_factors(
        self, rows: KeyRows, queries: NDArray[np.int64], codes: CodesCache, check: Check
    ) -> RowFactors | None:
        if self.target.vectors is None:
            key = ("row factors", self.layer.name, rows.identity, self.target)
            return self.view.cache.get(key, lambda: self._known_factors(rows, check), check)
        vectors = self.target.vectors.rows
        directions = vectors[queries] if len(vectors) > 1 else vectors
        stored = self.view.snapshot.values(self.layer.name)
        if not 0 < stored.width <= WIDEST or not can_quantise(directions).all():
            return None
        used = self.selection.entries if stored.order is None else stored.order[self.selection.entries]
        lengths, greatest = value_norms(self.view, self.layer.name, check), np.abs(self.coefficients).max()
        longest = float(lengths[used].max(initial=0.0))
        if not (0 < longest < np.inf and greatest > 0):
            return None
        of_row = np.zeros(len(lengths), dtype=np.float32)
        of_row[used] = self.coefficients / greatest
        of_query = (1.0 / (longest * norms(directions))).astype(np.float32)
        if not (np.isfinite(of_query) & (of_query > 0)).all():
            return None
        worth, spread = code_products(stored, codes, directions, of_row, of_query, check)
        if stored.order is not None:
            worth, spread = (np.take(own, stored.order, axis=1) for own in (worth, spread))
        return _by_row(rows, worth, spread)

    def _known_factors(self, rows: KeyRows, check: Check) -> RowFactors:
        """Of the one direction of all queries."""
        worth = self.of(0, check)
        of_entry = np.zeros((1, self.view.snapshot.entries(self.layer.name).count), dtype=np.float32)
        with np.errstate(under="ignore"):
            of_entry[0, self.selection.entries] = worth / (np.abs(worth).max(initial=0.0) or 1.0)
        return _by_row(rows, of_entry, None)

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


def _by_row(rows: KeyRows, worth: NDArray[np.float32], spread: NDArray[np.float32] | None) -> RowFactors:
    """Factors of rows from float32[n, H] of entries: those of the entries of each row that are used, else 0."""
    if rows.keys.row_of_entry is None:
        return RowFactors(worth, worth, spread)
    there = np.flatnonzero(rows.starts[1:] > rows.starts[:-1])

    def taken(of_entry: NDArray[np.float32], best: np.ufunc) -> NDArray[np.float32]:
        found = np.zeros((len(of_entry), rows.keys.rows), dtype=np.float32)
        for query, own in zip(found, of_entry, strict=True):
            query[there] = best.reduceat(own[rows.order], rows.starts[there])
        return found

    return RowFactors(
        taken(worth, np.maximum), taken(worth, np.minimum), None if spread is None else taken(spread, np.maximum)
    )


def directed_sums(
    grouping: Grouping, values: DirectedValues, queries: NDArray[np.float32], first: int
) -> NDArray[np.float64]:
    """float64[n, G] of some queries, from the `first` of the question on. `grouping` is of the entries of `values`.

    Raises Inexact where a key or value is not finite.
    """
    name = ("target", *astuple(values.target))
    return grouping.sums(
        queries, KeyWeights(name, lambda query: values.of(first + query, grouping.check), shared=values.shared)
    )


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
