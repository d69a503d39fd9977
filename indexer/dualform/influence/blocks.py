"""Parameter blocks on their way through a training, and their slots.

Matrix products by torch, whose threads run the network, too.

The threads of another library would wait for its next product while the network runs, and keep torch's from working.

Keys and error signals of a layer's slots, read once for all that a walk does with them.

Shapes: m slots, d_in and d_out of the layer.

Updates that are sums of weight, buffers and gradient, each times one number for all of it.

The numbers are what the rule itself makes of a one in each of their places. The sums are torch's, whose threads run the
network, too, and are written into arrays that are there already: both matter for blocks that no cache of a core holds.

A parameter block on its way through a training, from the record: what each update did to it, and whose it was.

Given its scale, an update is linear in weight, buffer and gradient (rules/update_rule.py), number by number:

    D  =  a o gradient  +  b o buffer  +  what the weight itself brings (decay)        o: of each number
    buffer'  =  k o gradient  +  m o buffer

Under SGD a, b, k and m are numbers, so that each step's gradient has one coefficient in an update.

Shapes: T recorded steps.

Dot products of gradients: of slots, of examples, and of a matrix with those of examples.

The gradient that a row brings to a block is an outer product of two vectors, left and right: error signal and key of a
weight [d_out, columns], key and error signal of one that is stored transposed, error signal and 1 of a bias. The dot
product of two such gradients is that of their left vectors times that of their right ones; of a weight with blocks
along its diagonal it is the sum of that over the blocks.

Shapes: m slots, r rows of examples, n examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from dualform.errors import Inexact
from dualform.query.view import Check, View
from dualform.query.weights.coefficients import BlockRules, updates
from dualform.query.weights.slot_gradients import Holder, RoundingGradients, SlotGradients, rounding_gradients
from dualform.query.weights.trajectory import start_of
from dualform.rules import LinearRule, Scale, Settings, State, Update, UpdateRule, updated
from dualform.rules.update_rule import Arrays, Doubles
from dualform.store.layer import Layer, Parameter
from dualform.store.rows import Keys, Rows


def matmul(left: Doubles, right: Doubles, out: Doubles | None = None) -> Doubles:
    """As numpy.matmul, of arrays that may be written to."""
    into = None if out is None else torch.from_numpy(out)
    found: Doubles = torch.matmul(torch.from_numpy(left), torch.from_numpy(right), out=into).numpy()
    return found


_READ_AHEAD = 4 << 20
"""Numbers that are read behind those that are asked for, and a quarter of them before."""


class SlotRows(NamedTuple):
    keys: NDArray[np.float32]
    """float32[m, d_in]."""
    errors: NDArray[np.float32]
    """float32[m, d_out]: as they were recorded."""
    steps: NDArray[np.int64]
    """int64[m], ascending."""
    groups: NDArray[np.int64]
    """int64[m]."""


class _Window(NamedTuple):
    """A range of a layer's entries."""

    start: int
    stop: int
    keys: NDArray[np.float32]
    errors: NDArray[np.float32]

    def has(self, start: int, stop: int) -> bool:
        return self.start <= start and stop <= self.stop


class SlotWindow:
    """Of one layer, asked for step by step; holds what was read last, while what follows is read. It has the rows by
    entry, as Keys and Rows do.
    """

    def __init__(self, view: View, layer: Layer, groups: NDArray[np.int64], reader: Executor) -> None:
        """`groups`: int64[H], the group of each entry. `reader`: reads while the walk computes."""
        keys = view.snapshot.keys(layer.name)
        # What is gone through once is not held. Rows that several slots share come back, in any order.
        self._keys: Keys = keys.passing() if keys.order is None else keys
        self._values: Rows = view.snapshot.values(layer.name).passing()
        self._steps, self._groups = view.slot_steps(layer), groups
        self._ahead = _READ_AHEAD // (layer.d_in + layer.d_out)
        self._reader = reader
        self._held = self._read(0, 0)
        self._following: Future[_Window] | None = None

    def between(self, first_step: int, last_step: int) -> SlotRows:
        """Those of some steps, both included; there may be none."""
        start, stop = np.searchsorted(self._steps, [first_step, last_step + 1]).tolist()
        return SlotRows(
            self.entry_block(start, stop), self.block(start, stop), self._steps[start:stop], self._groups[start:stop]
        )

    def entry_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_in]: the keys of some entries."""
        held = self._holding(start, stop)
        return held.keys[start - held.start : stop - held.start]

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, d_out]: their error signals."""
        held = self._holding(start, stop)
        return held.errors[start - held.start : stop - held.start]

    def _holding(self, start: int, stop: int) -> _Window:
        if self._held.has(start, stop):
            return self._held
        following = None if self._following is None else self._following.result()
        # Blocks of one layer ask for steps in turn, some for earlier ones than others.
        before = self._ahead // 4
        if following is None or not following.has(start, stop):
            following = self._read(start - before, stop + self._ahead)
        self._held, self._following = following, None
        if (end := following.stop) < len(self._steps):
            self._following = self._reader.submit(self._read, end - before - (stop - start), end + self._ahead)
        return following

    def _read(self, start: int, stop: int) -> _Window:
        """A range of entries, or what there is of it."""
        start, stop = max(start, 0), min(stop, len(self._steps))
        return _Window(start, stop, self._keys.entry_block(start, stop), self._values.block(start, stop))


class LinearUpdate:
    """What it makes of a state and `factor` times a gradient, in float64."""

    def __init__(self, rule: LinearRule, held: Sequence[str], settings: Settings) -> None:
        """`held`: the buffers that there are before it."""
        ones = np.eye(2 + len(held))
        self._held = held
        before = dict(zip(held, ones[1:-1], strict=True))
        made = rule.advance(State(ones[0], before), ones[-1], settings)
        self._weight = made.weight - ones[0]
        """What is added to the weight: shares of weight, buffers and gradient, in that order."""
        self._buffers = {kind: own - before.get(kind, 0.0) for kind, own in made.buffers.items()}
        """What is added to each buffer, or makes one that there was not."""

    def way(self, state: State, gradient: NDArray[Any], factor: float = 1.0) -> Doubles:
        """What is added to the weight, which may be one number for all of it."""
        return self._sum(_NONE, self._weight, state, gradient, factor)

    def buffers(self, state: State, gradient: NDArray[Any], factor: float = 1.0) -> Arrays:
        """After it."""
        made = {
            kind: self._sum(state.buffers.get(kind, _NONE), shares, state, gradient, factor)
            for kind, shares in self._buffers.items()
        }
        return {**state.buffers, **made}

    def add_way(self, state: State, gradient: NDArray[Any], factor: float = 1.0) -> None:
        """To the weight itself."""
        self._sum(state.weight, self._weight, state, gradient, factor, state.weight)

    def _sum(
        self,
        before: Doubles,
        shares: Doubles,
        state: State,
        gradient: NDArray[Any],
        factor: float,
        out: Doubles | None = None,
    ) -> Doubles:
        """An array, and shares of the others added to it, into `out`."""
        out = np.empty(gradient.shape) if out is None else out
        total, made = torch.from_numpy(out), torch.from_numpy(before).expand(out.shape)
        parts = [state.weight, *(state.buffers[kind] for kind in self._held), gradient]
        for share, part in zip([*shares[:-1].tolist(), factor * float(shares[-1])], parts, strict=True):
            if share:
                made = torch.add(made, torch.from_numpy(part), alpha=share, out=total)
        if made is not total:
            total.copy_(made)
        return out


_NONE = np.zeros(1)


@dataclass(frozen=True, eq=False)
class Gains:
    """What an update makes of a gradient and of the buffer before it: a, b, k and m, of the block's shape or one number
    for all of it.
    """

    of_gradient: Doubles
    of_buffer: Doubles
    kept_gradient: Doubles
    kept_buffer: Doubles

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes for own in (self.of_gradient, self.of_buffer, self.kept_gradient, self.kept_buffer))


@dataclass(frozen=True, eq=False)
class BlockUpdate:
    """What one update did to a block, as it is stored."""

    update: Update
    way: Doubles | None
    """What it added to the block; None where each slot moves it in one update alone, and nothing else does."""
    of_slots: Doubles | None
    """The part of its way that recorded gradients brought, those of earlier steps through the buffer among them."""
    of_rounding: Doubles | None
    """The part that gradients brought which are only rounding (slot_gradients.py); None if the block has none."""
    coefficients: Doubles | None
    """float64[T]: `of_slots` is the sum of these times the outer products of each step. None where no number does."""
    gains: Gains | None
    """None where there are coefficients."""


class FollowedBlock:
    """A block that all slots move."""

    def __init__(self, view: View, holders: Sequence[Holder], windows: Mapping[str, SlotWindow]) -> None:
        """`holders`: the layers that hold it, each with its place there and every slot of it; `windows`: by layer, what
        its slots are read through. Raises Inexact for a rule
        that takes the numbers of a parameter together, or rounds them.
        """
        self.holders: list[tuple[Layer, Parameter]] = [(layer, place) for layer, place, _ in holders]
        self.block = holders[0][1]
        self._rules = BlockRules(view.snapshot, self.block)
        self.linear = self._rules.linear
        """Whether updates have coefficients."""
        if not self.linear and (any(self._rules.halves) or not _by_numbers(self._rules.first)):
            optimizer = view.snapshot.optimizer_of(self.block.block_name).name
            raise Inexact(
                f"dualform.ledger does not support {optimizer}, which does not scale the gradient of "
                f"{self.block.block_name!r} number by number.",
                hint='Call memory.contributions(layer, queries, by="label"), which supports every update rule.',
                field="influence",
            )
        start = State(*start_of(view, self.block))
        self._steps = view.snapshot.steps
        # A linear rule has no denominators: what it makes of rounding is rounding.
        self._alone = RoundingGradients({}) if self.linear else rounding_gradients(view, self.block.block_name)
        self._updates = {u.last_step: u for u in updates(view.snapshot, self.block.block_name, self._steps)}
        rounded = any(len(view.products(layer).step) for layer, _ in self.holders)
        keeps = any(self._rules.at(step).keeps(update.settings) for step, update in self._updates.items())
        self.at_once = not (rounded or keeps)
        """Whether each slot moves the block in one update alone, by its own gradient."""
        narrow = self.linear and self.at_once and view.stored_weights("initial")[self.block.name].dtype == np.float32
        self.dtype: type[np.floating[Any]] = np.float32 if narrow else np.float64
        """Of products of its slots and examples: as the training had it, where no line of the ledger is the difference
        of what slots brought and of their products."""
        self._gradients = SlotGradients(view, holders, start.weight.shape, windows, matmul, self.dtype)
        shared = [kind for kind in self._rules.first.buffers if kind in start.buffers]
        self._standing = bool(shared or self._alone.by_step) or any(map(_decays, self._updates.values()))
        """Whether something else than recorded gradients moves the block, too."""
        moved_in_place = narrow and not self._standing  # as the training moved it, which rounded each update, too
        self._state = State(start.weight.astype(np.float32), start.buffers) if moved_in_place else start
        self._of_slots = State(np.zeros(1), {kind: np.zeros_like(start.buffers[kind]) for kind in shared})
        """What the buffers have of recorded gradients, beside a weight of zeros, of which nothing decays."""
        self._of_rounding = State(np.zeros(1), {kind: np.zeros_like(start.buffers[kind]) for kind in shared})
        """What they have of gradients that are only rounding."""
        self._weighed = State(np.zeros(1), {kind: np.zeros(self._steps) for kind in shared})
        """How much they have of each step's."""

    @property
    def weight(self) -> Doubles:
        """As it stands, as it is stored."""
        return self._state.weight

    def advance(self, step: int, check: Check) -> BlockUpdate | None:
        """What the update at a step did; None where there was none. Called for each step, in order."""
        update = self._updates.get(step)
        if update is None:
            return None
        rule = self._rules.at(step)
        gradient, _ = self._gradients.of(update.first_step, update.last_step, None, check)
        if self.linear:
            return self._advance_linear(cast("LinearRule", rule), update, gradient)
        gradient = gradient * update.factor  # which the rule may keep, where the next one is written over this one
        before, held, whole, rows = self._state.weight, self._held(rule), gradient, self._alone.rows_at(step)
        if self._alone.by_step:
            gradient[rows] = 0.0
            rounding = self._alone.put(step, np.zeros_like(gradient))
            whole = gradient + rounding
        self._state, scale = updated(rule, self._state, whole, update.settings)
        way = of_slots = self._state.weight - before
        of_rounding = None
        if self._standing:
            of_slots, self._of_slots = _part(rule, self._of_slots, gradient, update, scale)
        if self._alone.by_step:
            of_rounding, self._of_rounding = _part(rule, self._of_rounding, rounding, update, scale)
        return BlockUpdate(
            update, way, of_slots, of_rounding, None, _gains(rule, held, before.shape, update, scale, rows)
        )

    def _advance_linear(self, rule: LinearRule, update: Update, gradient: NDArray[Any]) -> BlockUpdate:
        """`gradient`: without the update's factor."""
        linear, state = LinearUpdate(rule, self._held(rule), update.settings), self._state
        factor = update.factor
        self._state = State(state.weight, linear.buffers(state, gradient, factor))
        way, of_slots = None, None
        if self.at_once and not self._standing:
            linear.add_way(state, gradient, factor)
        else:
            way = of_slots = linear.way(state, gradient, factor)
            state.weight[...] += way
        if self._standing:
            of_slots = linear.way(self._of_slots, gradient, factor)
            self._of_slots = State(self._of_slots.weight, linear.buffers(self._of_slots, gradient, factor))
        used = self._used(update)
        coefficients = linear.way(self._weighed, used)
        self._weighed = State(self._weighed.weight, linear.buffers(self._weighed, used))
        return BlockUpdate(update, way, of_slots, None, coefficients, None)

    def _held(self, rule: UpdateRule) -> list[str]:
        """The buffers of gradients that there are."""
        return [kind for kind in rule.buffers if kind in self._state.buffers]

    def _used(self, update: Update) -> Doubles:
        """float64[T]: how much of each step's gradient the update took in."""
        used = np.zeros(self._steps)
        used[update.first_step : update.last_step + 1] = update.factor
        return used


def _decays(update: Update) -> bool:
    """Whether an update takes something of the weight itself away."""
    return any(update.settings.get(name) for name in ("weight_decay", "lambd"))


def _by_numbers(rule: UpdateRule) -> bool:
    """Whether a rule treats each number of a parameter on its own, and keeps one buffer of gradients at most."""
    return rule.commutes_with == "entries" and len(rule.buffers) <= 1


def _part(
    rule: UpdateRule, part: State, gradient: Doubles, update: Update, scale: Scale | None
) -> tuple[Doubles, State]:
    """What an update makes of a part of the gradient, and that part of the buffers after it."""
    zeros = State(np.zeros_like(gradient), part.buffers)
    moved = rule.advance(zeros, gradient, update.settings, scale)
    return moved.weight, State(np.zeros(1), {**zeros.buffers, **moved.buffers})


def _gains(
    rule: UpdateRule,
    buffers: Sequence[str],
    shape: tuple[int, ...],
    update: Update,
    scale: Scale | None,
    rows: NDArray[np.int64],
) -> Gains:
    """What the rule makes of ones in place of a gradient, and of a buffer. Slots have no part in gradients of `rows`:
    its gain is 0 there.
    """
    none, ones = np.zeros(shape), np.ones(shape)
    taken = ones.copy()
    taken[rows] = 0.0
    of_gradient = rule.advance(State(none, dict.fromkeys(buffers, none)), taken, update.settings, scale)
    of_buffer = rule.advance(State(none, dict.fromkeys(buffers, ones)), none, update.settings, scale)
    kept_gradient, kept_buffer = (next(iter(own.buffers.values()), np.zeros(())) for own in (of_gradient, of_buffer))
    return Gains(*map(_narrow, (of_gradient.weight, of_buffer.weight, kept_gradient, kept_buffer)))


def _narrow(gain: Doubles) -> Doubles:
    """One number where all are the same: gains are held for many updates."""
    first = gain.reshape(-1)[0]
    return np.asarray(first) if bool((gain == first).all()) else gain


class Sides(NamedTuple):
    """The gradients of rows, each an outer product for each of g blocks along the diagonal."""

    left: NDArray[Any]
    """[g, rows, height of a block], in float32 or float64."""
    right: NDArray[Any] | None
    """[g, rows, width]; None of a bias, where it would be 1."""


def sides(
    layer: Layer, place: Parameter, keys: NDArray[Any], errors: NDArray[Any], dtype: DTypeLike = np.float64
) -> Sides:
    """The gradients of a layer's rows for a block in its place there, in `dtype`; `keys` and `errors` in float32 or
    float64.
    """
    errors = errors.astype(dtype, copy=False)
    if place in layer.biases:
        return Sides(errors[None], None)
    keys = keys.astype(dtype, copy=False)
    if layer.groups > 1:
        rows, parts = len(keys), layer.groups
        own = errors.reshape(rows, parts, -1).transpose(1, 0, 2)
        return Sides(own, keys.reshape(rows, parts, -1).transpose(1, 0, 2)[:, :, place.start : place.stop])
    columns = keys[None, :, place.start : place.stop]
    return Sides(columns, errors[None]) if place.transposed else Sides(errors[None], columns)


def pairs(slots: Sides, rows: Sides) -> Doubles:
    """float64[m, r]: the dot product of each slot's gradient with that of each row. Both are of one type."""
    left = matmul(slots.left, rows.left.transpose(0, 2, 1))
    if slots.right is None or rows.right is None:
        found: Doubles = left.sum(axis=0, dtype=np.float64)
        return found
    right = matmul(slots.right, rows.right.transpose(0, 2, 1))
    found = np.multiply(left[0], right[0], dtype=np.float64)
    for own, other in zip(left[1:], right[1:], strict=True):
        found += np.multiply(own, other, dtype=np.float64)
    return found


def along(matrix: Doubles, rows: Sides) -> Doubles:
    """float64[r]: the dot product of a matrix of the block's shape with each row's gradient."""
    if rows.right is None:
        return matmul(rows.left[0], matrix)
    parts = matrix.reshape(len(rows.left), -1, matrix.shape[1])
    of_weights: Doubles = np.einsum("grc,grc->r", matmul(rows.left, parts), rows.right)
    return of_weights


def by_example(products: Doubles, examples: NDArray[np.int64], count: int) -> Doubles:
    """float64[..., n]: the sums over the rows of each example; `examples` int64[r], `products` float64[..., r]."""
    if len(examples) == count and np.array_equal(examples, np.arange(count)):
        return products
    order = np.argsort(examples, kind="stable")
    present, starts = np.unique(examples[order], return_index=True)
    found = np.zeros((*products.shape[:-1], count))
    found[..., present] = np.add.reduceat(products[..., order], starts, axis=-1)
    return found
