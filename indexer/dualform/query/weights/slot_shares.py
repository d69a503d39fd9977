"""What each slot brought to outputs under a rule that scales all gradients of a step together, such as Adam.

The scales of an update, which the whole gradient makes, are what they were whoever is left out. Given them, a rule that
treats each number of a weight on its own is linear there, so that each number of a step's gradient is multiplied by one
factor until the end:

    W  =  what no slot brought + sum_t F_t * (delta_t x_t^T)        *: number by number; F_t: of the step of slot t

    c_t(q, o)  =  delta_t[o] ((F_t[o] * q) . x_t)                   o: one output

F is made as factors.py says; then every slot costs one product, however many groups there are. Only the rows of W that
are asked for are run again.

Shapes: n queries, m entries, U updates, r outputs that are asked for, w columns of a block of W, B entries at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.errors import EmptyMask, Inexact
from dualform.query import needs
from dualform.query.search.cells import best_of_cells
from dualform.query.sums.grouping import BATCH
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.coefficients import updates
from dualform.query.weights.factors import Factors, Kept, Run, backward, run
from dualform.query.weights.group_weights import rounds_nothing
from dualform.query.weights.recorded_blocks import holders_of
from dualform.query.weights.requirement import require
from dualform.query.weights.slot_products import block_size
from dualform.query.weights.trajectory import start_of
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.questions import Contribution, Distribution, GroupSum, TopK
from dualform.rules import State, Update
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

if TYPE_CHECKING:
    from dualform.query.resolved import Resolved
    from dualform.query.search.searcher import Ranked

_KEPT = 3
"""Arrays of F's size at once: two of the scales, and F. More outputs than have room are run again in several passes."""


def why_no_slot_shares(view: View, layer: Layer) -> str:
    """Empty if each number of the layer's weight is moved on its own, unrounded, and no other layer holds it; otherwise
    which of these fails, as a clause. Groups of channels have shares one at a time.
    """
    if layer.groups > 1:
        return f"it is asked as {layer.groups} groups of channels at once"
    every = {name: mask.selection(view, other, None) for name, other in view.snapshot.layers.items()}
    for block in layer.stored.weights:
        holders = holders_of(view, layer.stored, block, every[layer.stored.name], every)
        if len(holders) > 1:
            others = ", ".join(repr(other.name) for other, _, _ in holders if other.name != layer.stored.name)
            return f"it shares its weight with {others or 'another use of it'}, whose slots moved it, too"
        if not BlockRules(view.snapshot, block).first.commutes_with:
            return "its optimizer moves the numbers of a weight together"
        if not rounds_nothing(view, block, holders):
            return "its weight was rounded at each step"
    return ""


class Terms(NamedTuple):
    """What some entries brought to some outputs of one query."""

    places: NDArray[np.int64]
    """int64[B]: of the entries, among those of the selection."""
    query: int
    outputs: NDArray[np.int64]
    """int64[r]."""
    brought: Doubles
    """float64[B, r]."""


@dataclass(frozen=True, eq=False)
class SlotShares:
    """Of the entries that a mask leaves and whose gradient an update before `at_step` used, of a layer that
    `why_no_slot_shares` allows.
    """

    view: View
    layer: Layer
    selection: Selection
    """Those entries, at least one."""
    at_step: int | None
    status: Status

    @classmethod
    def of(
        cls, view: View, layer: Layer, selection: Selection, at_step: int | None, allow_inexact: bool, check: Check
    ) -> SlotShares:
        """Raises Inexact as `require` says, and EmptyMask where no update before `at_step` used a slot's gradient."""
        status = require(view, layer.stored, at_step, allow_inexact, check)
        used = np.zeros(view.snapshot.steps, dtype=bool)
        for block in layer.stored.weights:
            for update in updates(view.snapshot, block.block_name, _stop(view, at_step)):
                used[update.first_step : update.last_step + 1] = True
        stays = selection.stays & used[view.slot_steps(layer)]
        if not stays.any():
            raise EmptyMask(
                f"No update before step {at_step} used the gradient of a slot that where keeps.",
                hint="Pass a larger at_step, or leave it out for the end of the training.",
                field="at_step",
            )
        if not np.array_equal(stays, selection.stays):
            # No SQL reads like this, so no mask has this identity.
            identity = f"used of {layer.name!r} before step {at_step}: {selection.identity}"
            selection = Selection(identity, stays, stored=False)
        return cls(view, layer, replace(selection, source=None), at_step, status)

    def along(
        self, queries: NDArray[np.float32], directions: Doubles, outputs: NDArray[np.int64], check: Check
    ) -> Doubles:
        """float64[n, m]: the contributions along the directions float64[n, d_out], which have some outputs only.

        Raises Inexact where one is not finite.
        """
        found = np.zeros((len(queries), self.selection.count))
        for terms in self.terms(queries, outputs, check):
            for number, output in enumerate(terms.outputs.tolist()):
                if worth := directions[terms.query, output]:
                    found[terms.query, terms.places] += terms.brought[:, number] * worth
        if not np.isfinite(found).all():
            entry = self.selection.entries[~np.isfinite(found).all(axis=0)].min(keepdims=True)
            slot = int(self.view.snapshot.entries(self.layer.name).slots_of(entry)[0])
            raise Inexact(
                f"Layer {self.layer.name!r} has contributions with NaN or infinity, first at slot {slot}.",
                hint=f'The training diverged there. Ask about an earlier step, or leave those slots out: where="slot < '
                f'{slot}".',
                field="where",
            )
        return found

    def terms(self, queries: NDArray[np.float32], outputs: NDArray[np.int64], check: Check) -> Iterator[Terms]:
        """Of every entry, query and output; entries of a weight of several blocks come once for each block."""
        view, entries = self.view, self.selection.entries
        steps = view.slot_steps(self.layer)[entries]
        keys, values = view.snapshot.keys(self.layer.name), view.snapshot.values(self.layer.name)
        size = block_size(max(self.layer.d_in, self.layer.d_out))
        for rows in self._passes(outputs):
            for block in self.layer.stored.weights:
                columns = slice(block.start, block.stop)
                own = queries[:, columns].astype(np.float64)
                for first, last, factors in self._factors(block, rows, check):
                    begin, end = np.searchsorted(steps, [first, last + 1]).tolist()
                    for start in range(begin, end, size):
                        check()
                        places = np.arange(start, min(start + size, end))
                        low, high = int(entries[places[0]]), int(entries[places[-1]]) + 1
                        some = entries[places] - low
                        keyed = keys.entry_block(low, high)[some][:, columns].astype(np.float64)
                        errors = values.block(low, high)[some][:, rows].astype(np.float64)
                        for query in range(len(queries)):
                            yield Terms(places, query, rows, keyed @ (factors * own[query]).T * errors)

    def _passes(self, outputs: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """The outputs, as many at once as there is room for."""
        each = 8 * _KEPT * self.view.snapshot.steps * self.layer.weight_width
        size = max(1, needs.SHARES // max(1, each))
        for start in range(0, len(outputs), size):
            yield outputs[start : start + size]

    def _factors(self, block: Parameter, rows: NDArray[np.int64], check: Check) -> Sequence[Factors]:
        key = ("slot shares", self.layer.name, block.block_name, self.at_step, rows.tobytes())
        return self.view.cache.get(key, lambda: Kept(self._made(block, rows, check)), check).factors

    def _made(self, block: Parameter, rows: NDArray[np.int64], check: Check) -> list[Factors]:
        """F of some rows of a block, update by update."""
        view, rules = self.view, BlockRules(self.view.snapshot, block)
        weight, buffers = start_of(view, block)
        of_view = np.arange(self.layer.stored.d_out)[self.layer.own_values][rows]

        def own(array: Doubles) -> Doubles:
            return (array.T if block.transposed else array)[of_view] if array.ndim else array

        whole = State(own(weight), {kind: own(array) for kind, array in buffers.items()})
        runs = list[Run]()
        for update in updates(view.snapshot, block.block_name, _stop(view, self.at_step)):
            whole, passed = run(rules, whole, update, self._gradient(block, rows, update, check))
            runs.append(passed)
        return backward(runs, {"": np.ones_like(whole.weight)}, check)[::-1]

    def _gradient(self, block: Parameter, rows: NDArray[np.int64], update: Update, check: Check) -> Doubles:
        """float64[r, w]: the whole gradient that an update used, of some rows."""
        keys = self.view.snapshot.keys(self.layer.name)
        values = self.view.snapshot.values(self.layer.name)
        own = [update.first_step, update.last_step + 1]
        begin, end = np.searchsorted(self.view.slot_steps(self.layer), own).tolist()
        found = np.zeros((len(rows), block.stop - block.start))
        size = block_size(max(self.layer.d_in, self.layer.d_out))
        for start in range(begin, end, size):
            check()
            stop = min(start + size, end)
            errors = values.block(start, stop)[:, rows].astype(np.float64)
            found += errors.T @ keys.entry_block(start, stop)[:, block.start : block.stop].astype(np.float64)
        found *= update.factor
        return found


def sums_of_shares(resolved: Resolved[Contribution], numbers: NDArray[np.int64], groups: int, check: Check) -> Doubles:
    """float64[n, G, d_out]: what each group brought to every output. `numbers`: int64[m], the group of each entry."""
    question, layer, queries = resolved.question, resolved.layer, resolved.queries
    shares = SlotShares(resolved.view, layer, resolved.selection, question.at_step, Status("exact"))
    found = np.zeros((len(queries), groups, layer.d_out))
    for terms in shares.terms(queries, np.arange(layer.d_out), check):
        np.add.at(found[terms.query], (numbers[terms.places][:, None], terms.outputs), terms.brought)
    return found


def best_of_shares(resolved: Resolved[TopK], check: Check) -> list[Ranked]:
    """By query, the best entries, group after group, with their contributions."""
    entries, groups = resolved.selection.entries, resolved.groups
    cells = np.zeros(len(entries), dtype=np.int64) if groups is None else groups.numbers
    found = []
    for scores in every_share(resolved, 0, len(resolved.queries), check):
        kept = best_of_cells(cells, scores, entries, resolved.question.k)
        found.append((entries[kept], scores[kept]))
    return found


def every_share(
    resolved: Resolved[TopK] | Resolved[GroupSum] | Resolved[Distribution], start: int, stop: int, check: Check
) -> Iterator[Doubles]:
    """By query, float64[m]: the contributions of all entries along its direction, of the queries from start to stop."""
    shares, target, queries = resolved.shares, resolved.question.target, resolved.queries
    assert shares is not None, "others have no contributions"
    assert target is not None, "a contribution has a direction"
    directions = target.rows(len(queries), resolved.layer.d_out).astype(np.float64)
    # All outputs of vectors, also those where they are 0: a query has the same bits alone and beside others.
    outputs = np.flatnonzero(directions[0]) if target.joins else np.arange(resolved.layer.d_out)
    for first in range(start, stop, BATCH):
        part = slice(first, min(first + BATCH, stop))
        yield from shares.along(queries[part], directions[part], outputs, check)


def _stop(view: View, at_step: int | None) -> int:
    return view.snapshot.steps if at_step is None else at_step
