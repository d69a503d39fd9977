"""What is left at the end of each number of an update's gradient, under a rule that treats each number on its own.

The scales of the updates, which the whole gradient makes, are what they were whoever is left out. Given them, an update
is linear, and so is all that comes after it:

    W  =  what no slot brought + sum_u F_u * G_u        *: number by number; G_u: the gradient of update u

F is made by running the updates forward, for their scales, and back, for what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dualform.query import needs
from dualform.query.view import Check, View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.coefficients import updates
from dualform.query.weights.slot_gradients import Holder, SlotGradients
from dualform.query.weights.trajectory import start_of
from dualform.rules import State, Update, UpdateRule, advanced, updated
from dualform.rules.update_rule import Doubles, Scale
from dualform.store.parameter import Parameter

_KEPT = 3
"""Arrays of the weight's size that are in hand for an update at once: two of its scale, and F."""


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
    stop = view.snapshot.steps if at_step is None else at_step
    every = list(updates(view.snapshot, block.block_name, stop))
    size = 8 * int(np.prod(start_of(view, block)[0].shape))
    length = max(1, needs.SHARES // (_KEPT * size))
    if len(every) * size > needs.SHARES:
        return _made(view, block, holders, [every[at : at + length] for at in range(0, len(every), length)], check)
    key = ("factors", block.block_name, at_step)
    return view.cache.get(key, lambda: Kept(list(_made(view, block, holders, [every], check))), check).factors


def _made(
    view: View, block: Parameter, holders: Sequence[Holder], stretches: list[list[Update]], check: Check
) -> Iterator[Factors]:
    rules, whole = BlockRules(view.snapshot, block), State(*start_of(view, block))
    gradients = SlotGradients(view, holders, whole.weight.shape)
    left = {"": np.ones_like(whole.weight)}

    def forward(whole: State, stretch: list[Update], runs: list[Run] | None) -> State:
        for update in stretch:
            gradient = gradients.of(update.first_step, update.last_step, None, check)[0] * update.factor
            whole, passed = run(rules, whole, update, gradient)
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


class Kept:
    """Factors, as the cache counts them."""

    def __init__(self, factors: list[Factors]) -> None:
        self.factors, self.nbytes = factors, sum(own.factors.nbytes for own in factors)


def _without_squares(scale: Scale | None) -> Scale | None:
    """Statistics of the weight's shape are needed by the update after, and no longer."""
    if scale is None:
        return None
    return replace(scale, statistics={kind: own for kind, own in scale.statistics.items() if not own.ndim})
