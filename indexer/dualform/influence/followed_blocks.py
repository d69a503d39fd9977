"""A parameter block on its way through a training, from the record: what each update did to it, and whose it was.

Given its scale, an update is linear in weight, buffer and gradient (rules/update_rule.py), number by number:

    D  =  a o gradient  +  b o buffer  +  what the weight itself brings (decay)        o: of each number
    buffer'  =  k o gradient  +  m o buffer

Under SGD a, b, k and m are numbers, so that each step's gradient has one coefficient in an update.

Shapes: T recorded steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Inexact
from dualform.influence.linear_updates import LinearUpdate
from dualform.influence.matmul import matmul
from dualform.influence.slot_window import SlotWindow
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.coefficients import updates
from dualform.query.weights.rounding_gradients import RoundingGradients, rounding_gradients
from dualform.query.weights.slot_gradients import Holder, SlotGradients
from dualform.query.weights.trajectory import start_of
from dualform.rules import LinearRule, Scale, State, Update, UpdateRule, updated
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


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
    """The part that gradients brought which are only rounding (rounding_gradients.py); None if the block has none."""
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
