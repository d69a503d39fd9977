"""What one recorded step brings to the store, as plain values. Shapes: n new slots of a layer's space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-4
"""Largest share of a gradient that may stay unexplained: float32 gradients come out at 1e-7 to 1e-5."""


@dataclass(frozen=True)
class LayerRows:
    """One layer's share of a batch. The arrays are C-contiguous, and nobody writes to them any more."""

    keys: NDArray[np.float32]
    """float32[n, d_in], finite."""
    values: NDArray[np.float32] | None
    """float32[n, d_out]: raw output gradients; None where the recorder keeps no values."""


@dataclass(frozen=True)
class ParameterGroup:
    """The optimizer's settings for one parameter group at one update."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False


@dataclass(frozen=True)
class Factor:
    """The measured gradient factor c_s of one parameter at one update."""

    parameter: str
    group: int
    """Index of the parameter's group in the optimizer."""
    factor: float | None
    """None where the optimizer skipped the parameter because it had no gradient."""
    residual: float
    """Relative share of the gradient that the recorded slots do not explain."""


@dataclass(frozen=True)
class StepLog:
    """What the optimizer did at one recorded step."""

    step: int
    updated: bool
    """False where the step only accumulated gradients."""
    first_step: int | None = None
    """The update used the gradients of the recorded steps first_step to step, both included."""
    groups: tuple[ParameterGroup, ...] = ()
    factors: tuple[Factor, ...] = ()


@dataclass(frozen=True)
class Defect:
    """A reason why a layer cannot be rebuilt exactly from `step` on."""

    step: int
    layer: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """The slots and logs of one recorded step."""

    step: int
    slots: Mapping[str, Mapping[str, NDArray[Any]]]
    """Slot columns by space, in slot order, without `slot` and `step`: row int32, position int64, dataset object,
    label int64, sample int64, then user columns (int64, float64, bool, or object holding texts). NULL is a masked
    entry, or None in an object array."""
    layers: Mapping[str, LayerRows]
    """By layer name."""
    logs: list[StepLog] = field(default_factory=list)
    """Logs of steps whose outcome is known by now; not only this step's."""
    defects: list[Defect] = field(default_factory=list)
