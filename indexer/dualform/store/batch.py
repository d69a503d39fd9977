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

    settings: Mapping[str, float | bool]
    """Those that the update rule names, in its order; the learning rate first."""


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
class WatchLog:
    """How far one parameter was from its record when it was looked at.

    Distances are norms of float64[d_out, 8] / sqrt(8), projected along eight random directions: estimates of the
    Frobenius norms of whole weights. A bias is not projected, so its norms are its own.
    """

    step: int
    """The last recorded step whose end, and update, the weights had behind them."""
    parameter: str
    one_step: float
    """From what the update rule makes of the weights that were seen last."""
    accumulated: float
    """From what the record alone makes of the initial weights."""
    way: float
    """From the initial weights."""
    rounding: float
    """What rounding the weights to their own precision, update after update, may account for in `accumulated`."""
    noise: float = 0.0
    """What rounding of weights and gradients may account for in `one_step`."""


@dataclass(frozen=True)
class Defect:
    """Something at `step` that may be why a layer is not exact."""

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
    watch: list[WatchLog] = field(default_factory=list)
