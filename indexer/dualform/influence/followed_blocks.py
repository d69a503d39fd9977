"""A parameter block on its way through a training, from the record: what each update did to it, and whose it was.

Shapes: T recorded steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualform.errors import Inexact
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.coefficients import updates
from dualform.query.weights.rounding_gradients import rounding_gradients
from dualform.query.weights.slot_gradients import Holder, SlotGradients
from dualform.query.weights.trajectory import start_of
from dualform.rules import Settings, State, Update, UpdateRule, updated
from dualform.rules.update_rule import Doubles
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter


@dataclass(frozen=True, eq=False)
class BlockUpdate:
    """What one update did to a block, as it is stored."""

    before: Doubles
    """The block before it."""
    way: Doubles
    """What it added."""
    of_slots: Doubles
    """The part of that which recorded gradients brought, those of earlier steps through the momentum among them."""
    coefficients: Doubles
    """float64[T]: `of_slots` is the sum of these times the outer products of each step."""


class FollowedBlock:
    """A block that all slots move."""

    def __init__(self, view: View, holders: Sequence[Holder]) -> None:
        """`holders`: the layers that hold it, each with its place there and every slot of it. Raises Inexact for a rule
        that gives a slot no coefficient.
        """
        self.holders: list[tuple[Layer, Parameter]] = [(layer, place) for layer, place, _ in holders]
        self.block = holders[0][1]
        self._rules = BlockRules(view.snapshot, self.block)
        if not self._rules.linear:
            optimizer = view.snapshot.optimizer_of(self.block.block_name).name
            raise Inexact(
                f"under {optimizer} what a step's update makes of one gradient depends on all of them: "
                f"{self.block.block_name!r} is not followed yet.",
                hint="Ask for contributions of a layer, which follow every rule.",
                field="influence",
            )
        self._state = State(*start_of(view, self.block))
        shared = {kind: own for kind, own in self._state.buffers.items() if kind in self._rules.first.buffers}
        self._of_slots = State(np.zeros_like(self._state.weight), {k: np.zeros_like(own) for k, own in shared.items()})
        steps = view.snapshot.steps
        self._weighed = State(np.zeros(steps), {kind: np.zeros(steps) for kind in shared})
        self._gradients = SlotGradients(view, holders, self._state.weight.shape)
        self._alone = rounding_gradients(view, self.block.block_name)
        self._updates = {u.last_step: u for u in updates(view.snapshot, self.block.block_name, steps)}

    @property
    def weight(self) -> Doubles:
        """As it stands, as it is stored."""
        return self._state.weight

    def advance(self, step: int, check: Check) -> BlockUpdate | None:
        """What the update at a step did; None where there was none. Called for each step, in order."""
        update = self._updates.get(step)
        if update is None:
            return None
        rule, before = self._rules.at(step), self._state.weight
        gradient, _ = self._gradients.of(update.first_step, update.last_step, None, check)
        gradient = gradient * update.factor
        self._state, _ = updated(rule, self._state, self._alone.put(step, gradient.copy()), update.settings)
        of_slots, weighed = self._of_slots.weight, self._weighed.weight
        settings = _without_decay(update.settings)
        self._of_slots = self._advanced(rule, self._of_slots, gradient, settings)
        self._weighed = self._advanced(rule, self._weighed, self._used(update), settings)
        return BlockUpdate(
            before, self._state.weight - before, self._of_slots.weight - of_slots, self._weighed.weight - weighed
        )

    def _used(self, update: Update) -> Doubles:
        """float64[T]: how much of each step's gradient the update took in."""
        used = np.zeros_like(self._weighed.weight)
        used[update.first_step : update.last_step + 1] = update.factor
        return used

    @staticmethod
    def _advanced(rule: UpdateRule, state: State, gradient: Doubles, settings: Settings) -> State:
        after = rule.advance(state, gradient, settings)
        return State(after.weight, {**state.buffers, **after.buffers})


def _without_decay(settings: Settings) -> Settings:
    """Decay is of the weights, whoever made them: it is no slot's doing, and a line of its own."""
    return {name: 0.0 if name == "weight_decay" else value for name, value in settings.items()}
