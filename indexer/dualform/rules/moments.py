"""Running averages of the descent and of its squares, as Adam and its kin keep them; missing ones begin at zero.

`AveragedRule` is what those rules share: they differ in their scale, and NAdam in what it adds to the average.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.descent import descent
from dualform.rules.rounding import factor, float32_corrections, rounds_factors
from dualform.rules.update_rule import Doubles, ImageKind, Scale, Settings, State, UpdateRule


class AveragedRule(UpdateRule):
    """A rule that moves each number of a parameter on its own, along an average of what it descends along."""

    buffers = ("exp_avg",)
    commutes_with: ImageKind = "entries"
    counts: tuple[str, ...] = ("capturable",)
    """Settings under which torch counts updates in a tensor; as float32_corrections takes them."""

    def read(self, group: Mapping[str, Any]) -> Settings:
        """Rates and betas may be tensors."""
        beta1, beta2 = group["betas"]
        corrections = float32_corrections(group, *self.counts)
        rounded = {"rounds_factors": rounds_factors(group), "float32_corrections": corrections}
        return super().read({**group, "beta1": beta1, "beta2": beta2, **rounded})

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        moved = average(state, gradient, settings)
        return State(scale.kept * state.weight - scale.factors * moved, {"exp_avg": moved})


def counted(state: State) -> Doubles:
    """The number of this update, the first one being 1."""
    return np.asarray(state.buffers.get("step", 0.0) + 1.0)


def average(state: State, gradient: Doubles, settings: Settings) -> Doubles:
    """exp_avg after the update."""
    share = factor(1 - settings["beta1"], settings)
    found = share * descent(state, gradient, settings)
    if "exp_avg" in state.buffers:
        found += (1 - share) * state.buffers["exp_avg"]
    return found


def mean_square(state: State, gradient: Doubles, settings: Settings, name: str, beta: float) -> Doubles:
    """The statistic of that name after the update, an average of squares."""
    own = descent(state, gradient, settings)
    found = factor(1 - beta, settings) * own * own
    if name in state.buffers:
        found += factor(beta, settings) * state.buffers[name]
    return found
