"""What each group of slots, or each slot, brought to a layer's weights under rules that scale gradients.

What each slot brought to outputs under a rule that scales all gradients of a step together, such as Adam.

The scales of an update, which the whole gradient makes, are what they were whoever is left out. Given them, a rule that
treats each number of a weight on its own is linear there, so that each number of a step's gradient is multiplied by one
factor until the end:

    W  =  what no slot brought + sum_t F_t * (delta_t x_t^T)        *: number by number; F_t: of the step of slot t

    c_t(q, o)  =  delta_t[o] ((F_t[o] * q) . x_t)                   o: one output

F is made as below; then every slot costs one product, however many groups there are. Only the rows of W that
are asked for are run again.

Shapes: n queries, m entries, U updates, r outputs that are asked for, w columns of a block of W, B entries at once.

Under a linear rule it is the group's own sum. Under one that treats each number on its own, each part of an update's
gradient is multiplied by what is left of it at the end. Under any other the trajectory is run once with a
share for each group: the whole gradient makes each update's scale, and every group's part of the gradient goes through
it. Shares begin at zero, for no group has W_0. Where a training rounded gradients or weights, which cannot be shared
out, each group is rebuilt by itself, as a filter that leaves nothing else would be.

What is left at the end of each number of an update's gradient, under a rule that treats each number on its own.

The scales of the updates, which the whole gradient makes, are what they were whoever is left out. Given them, an update
is linear, and so is all that comes after it:

    W  =  what no slot brought + sum_u F_u * G_u        *: number by number; G_u: the gradient of update u

F is made by running the updates forward, for their scales, and back, for what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.errors import EmptyMask, Inexact
from dualform.query import needs
from dualform.query.groups import StoredArrays
from dualform.query.search.scan import best_of_cells
from dualform.query.sums.grouping import BATCH
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import BlockRules, updates
from dualform.query.weights.reconstruction import (
    RebuiltWeights,
    joined_blocks,
    recorded,
    require,
)
from dualform.query.weights.slot_gradients import Holder, SlotGradients, rounding_gradients
from dualform.query.weights.slot_products import block_size, used_steps
from dualform.query.weights.trajectory import every_slot, holders_of, no_slot, start_of
from dualform.query.where.mask import Selection
from dualform.questions import Contribution, Distribution, GroupSum, TopK
from dualform.rules import State, Update, UpdateRule, advanced, updated
from dualform.rules.half_precision_rule import HalfPrecisionRule
from dualform.rules.update_rule import Doubles, Scale
from dualform.store.layer import Layer, Parameter

if TYPE_CHECKING:
    from dualform.query.resolved import Resolved
    from dualform.query.search.scan import Ranked


class Factors(NamedTuple):
    """F of one update, whose gradient is that of the steps from `first` to `last`, both included."""

    first: int
    last: int
    factors: Doubles


@dataclass(frozen=True, eq=False)
class Run:
    """One update that was run, with the scale that the whole gradient made."""

    update: Update
    rule: UpdateRule
    scale: Scale | None
    kinds: tuple[str, ...]
    """The buffers that there were before, of those that each slot has its share of."""

    def back(self, left: dict[str, Doubles]) -> tuple[dict[str, Doubles], Doubles]:
        """By part of the state before the update, "" being the weight, how much of it is in the weight at the end; and
        how much of the gradient is. `left`: the same of the state after it. An update is linear, so that it is asked
        what it makes of a one in each place.
        """
        zeros, ones = np.zeros_like(left[""]), np.ones_like(left[""])

        def kept(part: str) -> Any:
            buffers = {kind: (ones if kind == part else zeros).copy() for kind in self.kinds}
            before = State((ones if part == "" else zeros).copy(), buffers)
            gradient = (ones if part == "gradient" else zeros).copy()
            after = advanced(self.rule, before, gradient, self.update.settings, self.scale)
            parts = {"": after.weight, **after.buffers}
            return np.sum([own * parts[kind] for kind, own in left.items() if kind in parts], axis=0)

        return {part: kept(part) for part in ("", *self.kinds)}, kept("gradient")


@np.errstate(all="ignore")  # as where eps is 0: what is not finite stays so in the answer
def run(rules: BlockRules, whole: State, update: Update, gradient: Doubles) -> tuple[State, Run]:
    """The state of all slots after an update with their gradient, which is the state's from then on."""
    rule = rules.at(update.last_step)
    kinds = tuple(kind for kind in rule.buffers if kind in whole.buffers)
    after, scale = updated(rule, whole, gradient, update.settings)
    return after, Run(update, rule, _without_squares(scale), kinds)


@np.errstate(all="ignore")
def backward(runs: list[Run], left: dict[str, Doubles], check: Check) -> list[Factors]:
    """F of some updates, the last one first; the runs are let go. `left` is what is left of the state after them, by
    its parts, and becomes that of the state before.
    """
    found = []
    while runs:
        check()
        passed = runs.pop()
        before, factors = passed.back(left)
        left.clear()
        left.update(before)
        factors *= passed.update.factor
        found.append(Factors(passed.update.first_step, passed.update.last_step, factors))
    return found


def factors_of(
    view: View, block: Parameter, holders: Sequence[Holder], at_step: int | None, check: Check
) -> Iterable[Factors]:
    """F of all updates of a block, as it is stored, the last one first: of all slots of those who hold it. Kept where
    there is room; else the updates are run in stretches, from the states that a first run left of the whole.
    """
    every = updates(view.snapshot, block.block_name, at_step)
    rules, whole = BlockRules(view.snapshot, block), State(*start_of(view, block))
    gradients = SlotGradients(view, holders, whole.weight.shape)

    def gradient(update: Update) -> Doubles:
        return gradients.of(update.first_step, update.last_step, None, check)[0]

    size = 8 * whole.weight.size
    length = max(1, needs.SHARES // (_KEPT * size))
    if len(every) * size > needs.SHARES:
        stretches = [every[at : at + length] for at in range(0, len(every), length)]
        return _made(rules, whole, gradient, stretches, check)
    key = ("factors", block.block_name, at_step)
    return view.cache.get(key, lambda: list(_made(rules, whole, gradient, [every], check)), check)


def _made(
    rules: BlockRules,
    whole: State,
    gradient: Callable[[Update], Doubles],
    stretches: list[list[Update]],
    check: Check,
) -> Iterator[Factors]:
    """`gradient`: the whole one of an update, before its factor."""
    left = {"": np.ones_like(whole.weight)}

    def forward(whole: State, stretch: list[Update], runs: list[Run] | None) -> State:
        for update in stretch:
            whole, passed = run(rules, whole, update, gradient(update) * update.factor)
            if runs is not None:
                runs.append(passed)
        return whole

    states = [whole]
    for stretch in stretches[:-1]:
        states.append(forward(states[-1], stretch, None))
    while stretches:
        runs = list[Run]()
        forward(states.pop(), stretches.pop(), runs)
        yield from backward(runs, left, check)


def _without_squares(scale: Scale | None) -> Scale | None:
    """Statistics of the weight's shape are needed by the update after, and no longer."""
    if scale is None:
        return None
    return replace(scale, statistics={kind: own for kind, own in scale.statistics.items() if not own.ndim})


Numbers = Mapping[str, NDArray[np.int64]]
"""By layer, int64[entries]: the group of each entry of the layer, and of others that hold a parameter of it; the number
of groups for an entry in none of them."""

_KIND = "group weights 3"


def group_weights(
    view: View, layer: Layer, numbers: Numbers, groups: int, at_step: int | None, check: Check
) -> list[RebuiltWeights]:
    """Weights and biases of each group of slots, without W_0; of a layer that is on disk."""
    every, blocks = every_slot(view), dict[str, Doubles]()
    for block in layer.parameters:
        holders = holders_of(view, block, every)
        rules = BlockRules(view.snapshot, block)
        if not rules.linear and not rounds_nothing(view, block, holders):
            return _one_by_one(view, layer, numbers, groups, at_step, check)
        made = _left if rules.linear or rules.first.commutes_with == "entries" else _shares
        found = made(view, block, holders, [numbers[own.name] for own, _, _ in holders], groups, at_step, check)
        blocks[block.block_name] = found.swapaxes(-1, -2) if block.transposed else found
    return [joined_blocks(layer, {name: own[group] for name, own in blocks.items()}) for group in range(groups)]


def kept_group_weights(
    view: View, layer: Layer, numbers: Numbers, groups: int, at_step: int | None, check: Check
) -> list[RebuiltWeights]:
    """As `group_weights`, from beside the keys where they were made before."""
    place = _place(view, layer, numbers, at_step)
    shape = (groups, layer.d_out, layer.weight_width)
    has_bias = bool(layer.biases)
    if place and (held := place.read((np.float64, shape), (np.float64, (groups, layer.d_out)))) is not None:
        weight, bias = held
        return [RebuiltWeights(weight[group], bias[group] if has_bias else None) for group in range(groups)]
    found = group_weights(view, layer, numbers, groups, at_step, check)
    if place:
        biases = [np.zeros(layer.d_out) if own.bias is None else own.bias for own in found]
        place.write(np.stack([own.weight for own in found]), np.stack(biases))
    return found


def _place(view: View, layer: Layer, numbers: Numbers, at_step: int | None) -> StoredArrays | None:
    """Where the weights of groups are kept. The tables say how the optimizer moved the weights."""
    said = view.snapshot.tables_digest
    if said is None or not layer.keys or not layer.values:
        return None
    text = f"{said} {layer.name} {at_step}".encode()
    rows = [view.snapshot.keys(layer.name), view.snapshot.values(layer.name)]
    return StoredArrays.of(view.snapshot, _KIND, rows, [np.frombuffer(text, np.uint8), *numbers.values()])


def rounds_nothing(view: View, block: Parameter, holders: Sequence[Holder]) -> bool:
    """Whether neither the block nor a gradient of it was rounded."""
    rules = BlockRules(view.snapshot, block)
    rounded = isinstance(rules.first, HalfPrecisionRule) or any(rules.halves)
    products = any(len(view.products(layer).first) for layer, _, _ in holders)
    return not rounded and not products and not rounding_gradients(view, block.block_name).by_step


def _one_by_one(
    view: View, layer: Layer, numbers: Numbers, groups: int, at_step: int | None, check: Check
) -> list[RebuiltWeights]:
    without = recorded(view, layer, no_slot(view), at_step, check)
    found = []
    digest = xxhash.xxh3_128_hexdigest(b"".join(own.tobytes() for own in numbers.values()))
    for group in range(groups):
        selections = {
            # No SQL reads like this, so no mask has this identity.
            name: Selection(f"group {group} of {digest}", own == group, stored=False)
            for name, own in numbers.items()
        }
        whole = recorded(view, layer, selections, at_step, check)
        bias = None if whole.bias is None or without.bias is None else whole.bias - without.bias
        found.append(RebuiltWeights(whole.weight - without.weight, bias))
    return found


def _shares(
    view: View,
    block: Parameter,
    holders: Sequence[Holder],
    numbers: Sequence[NDArray[np.int64]],
    groups: int,
    at_step: int | None,
    check: Check,
) -> Doubles:
    """float64[groups, …]: each group's share of a block, as it is stored, under a rule that moves numbers together."""
    # One more has all that is in no group, for all slots together make the scale of an update.
    wanted, groups = groups, groups + any(bool((own == groups).any()) for own in numbers)
    rules = BlockRules(view.snapshot, block)
    whole = State(*start_of(view, block))
    shape = whole.weight.shape
    held = [kind for kind in rules.first.buffers if kind in whole.buffers]
    shared = [State(np.zeros(shape), {kind: np.zeros(shape) for kind in held}) for _ in range(groups)]
    gradients = SlotGradients(view, holders, shape)
    with np.errstate(all="ignore"):  # as where eps is 0: what is not finite stays so in the answer
        for update in updates(view.snapshot, block.block_name, at_step):
            rule, parts = rules.at(update.last_step), np.zeros((groups, *shape))
            for group, part in gradients.of_groups(update.first_step, update.last_step, numbers, groups, check).items():
                parts[group] = part
            parts *= update.factor
            whole, scale = updated(rule, whole, parts.sum(axis=0), update.settings)
            shared = [
                advanced(rule, own, parts[group].copy(), update.settings, scale) for group, own in enumerate(shared)
            ]
    return np.stack([own.weight for own in shared[:wanted]])


def _left(
    view: View,
    block: Parameter,
    holders: Sequence[Holder],
    numbers: Sequence[NDArray[np.int64]],
    groups: int,
    at_step: int | None,
    check: Check,
) -> Doubles:
    """float64[groups, …]: each group's part of a block, as it is stored, under a linear rule, where each slot has its
    coefficient, or one that treats each number on its own, where each number of a gradient has its factor.
    """
    shape, coefficients = start_of(view, block)[0].shape, None
    gradients, found = SlotGradients(view, holders, shape), np.zeros((groups, *shape))
    passes: Iterable[Factors] = [Factors(0, view.snapshot.steps - 1, np.ones(()))]
    if BlockRules(view.snapshot, block).linear:
        coefficients = [
            view.coefficients(layer, place.block_name, at_step).per_step[view.slot_steps(layer)]
            for layer, place, _ in holders
        ]
    else:
        passes = factors_of(view, block, holders, at_step, check)
    with np.errstate(all="ignore"):
        for first, last, factors in passes:
            for group, part in gradients.of_groups(first, last, numbers, groups, check, coefficients).items():
                found[group] += np.multiply(part, factors, out=part)
    return found


_KEPT = 3
"""Arrays of F's size at once: two of the scales, and F. More outputs than have room are run again in several passes."""


def why_no_slot_shares(view: View, layer: Layer) -> str:
    """Empty if each number of the layer's weight is moved on its own, unrounded, and no other layer holds it; otherwise
    which of these fails, as a clause. Groups of channels have shares one at a time.
    """
    if layer.groups > 1:
        return f"it is asked as {layer.groups} groups of channels at once"
    for block in layer.stored.weights:
        holders = holders_of(view, block, every_slot(view))
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
        used = [used_steps(view, block.block_name, at_step) for block in layer.stored.weights]
        stays = selection.stays & np.any(used, axis=0)[view.slot_steps(layer)]
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
        return self.view.cache.get(key, lambda: self._made(block, rows, check), check)

    def _made(self, block: Parameter, rows: NDArray[np.int64], check: Check) -> list[Factors]:
        """F of some rows of a block, update by update."""
        view = self.view
        weight, buffers = start_of(view, block)
        of_view = np.arange(self.layer.stored.d_out)[self.layer.own_values][rows]

        def own(array: Doubles) -> Doubles:
            return (array.T if block.transposed else array)[of_view] if array.ndim else array

        whole = State(own(weight), {kind: own(array) for kind, array in buffers.items()})
        every = updates(view.snapshot, block.block_name, self.at_step)
        made = _made(
            BlockRules(view.snapshot, block), whole, lambda own: self._gradient(block, rows, own, check), [every], check
        )
        return list(made)[::-1]

    def _gradient(self, block: Parameter, rows: NDArray[np.int64], update: Update, check: Check) -> Doubles:
        """float64[r, w]: the whole gradient of an update, before its factor, of some rows."""
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
