"""How much each recorded gradient weighs in a parameter at step T: the optimizer's recurrence, run backwards.

    W_T  =  initial * W_0  +  momentum * B_0  +  sum over s of per_step[s] * G_s

G_s is the sum of the recorded outer products of step s, B_0 a momentum buffer that existed before. SGD as PyTorch does
it (torch/optim/sgd.py) turns the pair z = (W, B) into A z + b c G, with c the measured gradient factor, so that a row
vector that starts as (1, 0) at T and is multiplied by A backwards in time meets every b once: O(T) for all steps. This
is done per parameter, since an update skips a parameter that has no gradient, momentum and weight decay included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput, NotFound
from dualform.store.layer import Layer
from dualform.store.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The weights of everything that a parameter is a sum of."""

    initial: float
    """a_0(T), of W_0."""
    momentum: float
    """Of B_0; 0.0 where there was none."""
    per_step: NDArray[np.float64]
    """float64[T]: by recorded step, gradient factor included; 0.0 for gradients that no update up to T used."""


@dataclass(frozen=True)
class Update:
    """One update of one parameter: its gradient factor, the steps whose gradients it used, its group's settings."""

    first_step: int
    last_step: int
    """Included."""
    factor: float
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False


_QUERY = """
    SELECT steps.first_step, steps.step, factors.factor, g.lr, g.momentum, g.dampening, g.weight_decay, g.nesterov,
           g.maximize
    FROM steps
    JOIN factors ON factors.step = steps.step AND factors.parameter = $parameter AND factors.factor IS NOT NULL
    JOIN parameter_groups g ON g.step = steps.step AND g."group" = factors."group"
    WHERE steps.updated AND steps.step < $stop
    ORDER BY steps.step
"""


def coefficients(memory: Snapshot, parameter: str, at_step: int | None = None) -> Coefficients:
    """Coefficients of a recorded weight or bias once `at_step` recorded steps were taken; None for all.

    Raises NotFound for a parameter that is not recorded, BadInput for a step that was not reached. Whether the memory's
    optimizer is linear and the layer exact is for the caller to ask.
    """
    layer = _layer_of(memory, parameter)
    stop = memory.steps if at_step is None else at_step
    if not 0 <= stop <= memory.steps:
        raise BadInput(f"at_step is {stop}.", hint=f"The memory holds steps 0 to {memory.steps}.", field="at_step")
    rows = memory.tables(layer.space).execute(_QUERY, {"parameter": parameter, "stop": stop}).fetchall()
    return recurrence([Update(*row) for row in rows], stop, has_buffer=parameter in memory.momentum())


def _layer_of(memory: Snapshot, parameter: str) -> Layer:
    for layer in memory.layers.values():
        if any(parameter == known.name for known in layer.parameters):
            return layer
    known = [parameter.name for layer in memory.layers.values() for parameter in layer.parameters]
    raise NotFound(f"{parameter!r} is no recorded parameter.", hint=f"Recorded are {', '.join(known)}.")


def recurrence(updates: Sequence[Update], steps: int, has_buffer: bool = False) -> Coefficients:
    """Coefficients after `updates`, in order, of a training of `steps` steps; `has_buffer`: B_0 exists."""
    per_step = np.zeros(steps)
    on_weight, on_buffer = 1.0, 0.0
    for update, fresh in reversed(list(_with_fresh(updates, has_buffer))):
        sign = -update.factor if update.maximize else update.factor
        decay, lr, m = update.weight_decay, update.lr, update.momentum
        if m == 0:  # B is left as it is
            weight, buffer = on_weight * (1 - lr * decay), on_buffer
            gain = -on_weight * lr
        else:
            # B' = m B + k G;  W' = W - lr U;  U = B', or G + m B' with Nesterov;  G = sign c grad + decay W
            k = 1.0 if fresh else 1 - update.dampening
            of_gradient, of_buffer = (1 + m * k, m * m) if update.nesterov else (k, m)
            gain = -on_weight * lr * of_gradient + on_buffer * k
            weight = on_weight + gain * decay
            buffer = -on_weight * lr * of_buffer + on_buffer * m
        per_step[update.first_step : update.last_step + 1] += gain * sign
        on_weight, on_buffer = weight, buffer
    return Coefficients(on_weight, on_buffer if has_buffer else 0.0, per_step)


def _with_fresh(updates: Iterable[Update], has_buffer: bool) -> Iterable[tuple[Update, bool]]:
    """Each update, and whether it starts the momentum buffer, which it does with the whole gradient."""
    for update in updates:
        yield update, not has_buffer
        has_buffer = has_buffer or update.momentum != 0
