"""What an update rule says: how one optimizer turns gradients into weights, while training and afterwards.

A rule is pure arithmetic on float64 arrays. It knows neither torch nor the store, so the recorder, which runs it
beside the training, and the engine, which runs it again from the stored slots, use the same one.

What is nonlinear in an update is put into its scale, which the whole gradient decides. Given the scale, an update is
linear in (weight, buffers, gradient), so that the gradient of some slots can take its share through the same scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]
Arrays: TypeAlias = Mapping[str, Doubles]
Settings: TypeAlias = Mapping[str, float | bool]
"""A parameter group's settings at one update, under the optimizer's own names."""
ImageKind: TypeAlias = Literal["directions", "entries", ""]
"""What numbers of a parameter are looked at in place of all of it."""


@dataclass(frozen=True, eq=False)
class State:
    """A parameter, or an image of it, and what the optimizer keeps of it."""

    weight: Doubles
    buffers: Arrays = field(default_factory=dict)
    """By the optimizer's own names, arrays that broadcast to the weight's shape; those that it does not have are
    missing. Statistics are among them where the state is that of the whole gradient."""


@dataclass(frozen=True, eq=False)
class Scale:
    """What an update makes of the whole gradient."""

    factors: Doubles
    """What `advance` needs of it."""
    statistics: Arrays
    """The whole gradient's own buffers after the update."""
    kept: Doubles | float = 1.0
    """What is left of each number of the weight where the update multiplies it, rounded as the training rounded it."""


@dataclass(frozen=True)
class Update:
    """One update of one parameter."""

    first_step: int
    """The update used the gradients of the recorded steps first_step to last_step, both included."""
    last_step: int
    factor: float
    """The measured gradient factor c."""
    settings: Settings


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The weights of everything that a parameter is a sum of."""

    initial: float
    """a_0(T), of W_0."""
    buffers: Mapping[str, float]
    """Of each buffer that existed before recording began."""
    per_step: Doubles
    """float64[T]: by recorded step, gradient factor included; 0.0 for gradients that no update up to T used."""

    @property
    def nbytes(self) -> int:
        return self.per_step.nbytes


class UpdateRule(Protocol):
    """One optimizer's update. A rule derives from this and says what differs from the defaults."""

    name: str
    """What the manifest calls it."""
    settings: Mapping[str, str]
    """The settings that decide an update, with their DuckDB types, DOUBLE or BOOLEAN; `lr` comes first."""
    buffers: tuple[str, ...] = ()
    """What the optimizer keeps of a parameter that is linear in its gradients, so that every slot has its share."""
    statistics: tuple[str, ...] = ()
    """What it keeps that belongs to the whole gradient."""
    commutes_with: ImageKind = ""
    """What a parameter may be looked at through while training: "directions", W times a fixed matrix, for rules without
    a scale; "entries" for rules that treat each number of a parameter on its own; "" for those that need all of it."""

    of_matrices: bool = False
    """Whether the update takes rows and columns apart, so that a parameter of more than two axes, which a layer sees as
    a matrix, is none that the rule can follow."""
    precision: Literal["", "bfloat16"] = ""
    """What the update itself computes in, where that is coarser than the weights: no record does better."""

    def read(self, group: Mapping[str, Any]) -> Settings:
        """The settings of a parameter group as they stand; what the optimizer does not have is 0 or False."""
        return {name: setting(group.get(name), kind) for name, kind in self.settings.items()}

    def refusal(self, group: Mapping[str, Any]) -> str:
        """Why the rule cannot follow a parameter group with these settings; empty where it can."""
        for name, value in self.read(group).items():
            if not math.isfinite(value):
                return f"its {name} is {value}"
        return ""

    def why_not_block(self, part: bool, axes: int) -> str:
        """Why the rule cannot run again what a layer holds of a parameter, behind the optimizer's name; empty where it
        can. `part`: whether that is not all of it; `axes`: how many the parameter has.
        """
        if part and not self.commutes_with:
            return "is run again on whole parameters, of which this layer stands for a part"
        if self.of_matrices and axes > 2:
            return f"treats the last two axes of a parameter of {axes} as a matrix, and this layer all of them"
        return ""

    def keeps(self, settings: Settings) -> bool:
        """Whether an update with these settings depends on what the updates before it left in the buffers."""
        return True

    def error_settings(self, settings: Settings) -> Settings:
        """The settings with which `advance` carries the size of a gradient's error, which has no sign: those that only
        turn the sign of a gradient are left out. Asked of rules that commute with directions.
        """
        return settings

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale | None:
        """What an update makes of the whole gradient; None where it is linear. `state`: before the update."""
        return None

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        """The state after one update with this gradient, without statistics. Linear in weight, buffers and gradient.

        A buffer that it does not give is left as it is.
        """
        ...

    def advance_both(
        self, whole: State, remaining: State, gradient: Doubles, stays: Doubles | None, settings: Settings
    ) -> tuple[State, State] | None:
        """The whole, and what a mask leaves of it, after one update, for a rule that is faster at once: to the bit as
        `scale` and `advance` would have them. None where it is to be done by those.

        `stays` is the part of the gradient that the mask leaves, None for all of it, and then `remaining` is as it was.
        Arrays of the states are contiguous, and may be written to.
        """
        return None


@runtime_checkable
class LinearRule(UpdateRule, Protocol):
    """A rule that gives each gradient one coefficient, so that no trajectory needs to be run again."""

    def coefficients(self, updates: Sequence[Update], steps: int, has_buffers: bool = False) -> Coefficients:
        """Coefficients after `updates`, in order, of a training of `steps` recorded steps.

        `has_buffers`: the optimizer had buffers of the parameter when recording began.
        """
        ...


def advanced(rule: UpdateRule, state: State, gradient: Doubles, settings: Settings, scale: Scale | None) -> State:
    """The state after one update, with the buffers that it left as they were."""
    after = rule.advance(state, gradient, settings, scale)
    return State(after.weight, {**state.buffers, **after.buffers})


def updated(rule: UpdateRule, state: State, gradient: Doubles, settings: Settings) -> tuple[State, Scale | None]:
    """The state of the whole after one update, statistics included, and the scale that the update took."""
    scale = rule.scale(state, gradient, settings)
    after = advanced(rule, state, gradient, settings, scale)
    if scale is None:
        return after, None
    statistics = {kind: np.asarray(own, dtype=np.float64) for kind, own in scale.statistics.items()}
    return State(after.weight, {**after.buffers, **statistics}), scale


def setting(value: Any, kind: str) -> float | bool:
    """A setting as it is logged; 0 or False for None and for what is no number."""
    if kind == "BOOLEAN":
        return bool(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
