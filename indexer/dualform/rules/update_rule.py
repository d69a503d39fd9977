"""What an update rule says: how one optimizer turns gradients into weights, while training and afterwards.

A rule is pure arithmetic on float64 arrays. It knows neither torch nor the store, so the recorder, which runs it
forward beside the training, and the engine, which runs it backwards from a step, use the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = Mapping[str, float | bool]
"""A parameter group's settings at one update, under the optimizer's own names."""


@dataclass(frozen=True, eq=False)
class State:
    """A parameter, or a linear image of it, and the optimizer's buffer for it. Arrays of one shape."""

    weight: Doubles
    buffer: Doubles | None = None
    """None while the optimizer has none."""


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
    momentum: float
    """Of the buffer that existed before recording began; 0.0 where there was none."""
    per_step: Doubles
    """float64[T]: by recorded step, gradient factor included; 0.0 for gradients that no update up to T used."""


class UpdateRule(Protocol):
    """One optimizer's update."""

    @property
    def name(self) -> str:
        """What the manifest calls it."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that decide an update, with their DuckDB types; the learning rate comes first."""

    @property
    def buffer(self) -> str:
        """Under which name the optimizer keeps its buffer of a parameter."""

    def refusal(self, group: Mapping[str, Any]) -> str:
        """Why the rule cannot follow a parameter group with these settings; empty where it can."""

    def advance(self, state: State, gradient: Doubles, settings: Settings) -> State:
        """The state after one update with this gradient."""

    def coefficients(self, updates: Sequence[Update], steps: int, has_buffer: bool = False) -> Coefficients:
        """Coefficients after `updates`, in order, of a training of `steps` recorded steps.

        `has_buffer`: the optimizer had a buffer of the parameter when recording began.
        """
