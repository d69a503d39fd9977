"""The update rule of torch.optim.SGD, in every variant: W_T is a weighted sum of all gradients.

    W_T  =  initial * W_0  +  momentum * B_0  +  sum over s of per_step[s] * G_s

G_s is the sum of the recorded outer products of step s, B_0 a momentum buffer that existed before. An update
(torch/optim/sgd.py) turns the pair z = (W, B) into A z + b c G, with c the measured gradient factor, so that a row
vector that starts as (1, 0) at T and is multiplied by A backwards in time meets every b once: O(T) for all steps. This
is done per parameter, since an update skips a parameter that has no gradient, momentum and weight decay included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dualform.rules.half_precision import HalfType
from dualform.rules.update_rule import Coefficients, Doubles, ImageKind, LinearRule, Scale, Settings, State, Update

_BUFFER = "momentum_buffer"


class SGD(LinearRule):
    """As LinearRule says."""

    name = "sgd"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "momentum": "DOUBLE",
        "dampening": "DOUBLE",
        "weight_decay": "DOUBLE",
        "nesterov": "BOOLEAN",
        "maximize": "BOOLEAN",
    }
    buffers = (_BUFFER,)
    commutes_with: ImageKind = "directions"

    def keeps(self, settings: Settings) -> bool:
        return bool(settings["momentum"])

    def error_settings(self, settings: Settings) -> Settings:
        return {**settings, "maximize": False}

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        rate, momentum = settings["lr"], settings["momentum"]
        descent = -gradient if settings["maximize"] else gradient
        if settings["weight_decay"]:
            descent = descent + settings["weight_decay"] * state.weight
        if not momentum:  # the buffer is left as it is
            return State(state.weight - rate * descent, state.buffers)
        buffer = descent  # the first gradient is taken whole
        if (before := state.buffers.get(_BUFFER)) is not None:
            buffer = momentum * before
            buffer += (1 - settings["dampening"]) * descent if settings["dampening"] else descent
        step = descent + momentum * buffer if settings["nesterov"] else buffer
        return State(state.weight - rate * step, {_BUFFER: buffer})

    def rounded(self, state: State, gradient: Doubles, settings: Settings, half: HalfType) -> State:
        """As RoundedRule says: single-tensor operations on the processor."""
        descent, buffers = -gradient if settings["maximize"] else gradient, dict(state.buffers)
        if settings["weight_decay"]:
            descent = half(descent + half.number(settings["weight_decay"]) * state.weight)
        if momentum := settings["momentum"]:
            buffer = descent
            if (before := state.buffers.get(_BUFFER)) is not None:
                buffer = half(half(np.float32(momentum) * before) + half.number(1 - settings["dampening"]) * descent)
            buffers[_BUFFER] = buffer
            descent = half(descent + half.number(momentum) * buffer) if settings["nesterov"] else buffer
        return State(half(state.weight - half.number(settings["lr"]) * descent), buffers)

    def coefficients(self, updates: Sequence[Update], steps: int, has_buffers: bool = False) -> Coefficients:
        per_step = np.zeros(steps)
        on_weight, on_buffer = 1.0, 0.0
        for update, fresh in reversed(list(_with_fresh(updates, has_buffers))):
            settings = update.settings
            sign = -update.factor if settings["maximize"] else update.factor
            decay, lr, m = settings["weight_decay"], settings["lr"], settings["momentum"]
            if m == 0:  # B is left as it is
                weight, buffer = on_weight * (1 - lr * decay), on_buffer
                gain = -on_weight * lr
            else:
                # B' = m B + k G;  W' = W - lr U;  U = B', or G + m B' with Nesterov;  G = sign c grad + decay W
                k = 1.0 if fresh else 1 - settings["dampening"]
                of_gradient, of_buffer = (1 + m * k, m * m) if settings["nesterov"] else (k, m)
                gain = -on_weight * lr * of_gradient + on_buffer * k
                weight = on_weight + gain * decay
                buffer = -on_weight * lr * of_buffer + on_buffer * m
            per_step[update.first_step : update.last_step + 1] += gain * sign
            on_weight, on_buffer = weight, buffer
        return Coefficients(on_weight, {_BUFFER: on_buffer} if has_buffers else {}, per_step)


def _with_fresh(updates: Iterable[Update], has_buffer: bool) -> Iterable[tuple[Update, bool]]:
    """Each update, and whether it starts the momentum buffer, which it does with the whole gradient."""
    for update in updates:
        yield update, not has_buffer
        has_buffer = has_buffer or update.settings["momentum"] != 0
