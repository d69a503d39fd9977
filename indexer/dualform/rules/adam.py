"""The update rules of torch.optim.Adam and AdamW, in every variant.

    g  = the gradient, with weight decay added where it is coupled
    m' = m + (1 - beta1) (g - m)        v' = beta2 v + (1 - beta2) g^2        x' = max(x, v')        AMSGrad
    W' = (1 - lr decay) W - lr / (1 - beta1^t) m' / (sqrt(v' / (1 - beta2^t)) + eps)        decay where it is decoupled

AMSGrad takes x' in place of v'. Those and t belong to the whole gradient (torch/optim/adam.py); given them, W' and m'
are linear in W, m and the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules import compiled_adam
from dualform.rules.descent import left_by_decay
from dualform.rules.half_precision import HalfType
from dualform.rules.moments import AveragedRule, counted, mean_square
from dualform.rules.rounding import correction, power
from dualform.rules.update_rule import Doubles, Scale, Settings, State


class Adam(AveragedRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "beta1": "DOUBLE",
        "beta2": "DOUBLE",
        "eps": "DOUBLE",
        "weight_decay": "DOUBLE",
        "decoupled_weight_decay": "BOOLEAN",
        "maximize": "BOOLEAN",
        "amsgrad": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
        "float32_corrections": "BOOLEAN",
    }
    statistics = ("exp_avg_sq", "max_exp_avg_sq", "step")
    counts = ("capturable", "differentiable")

    def __init__(self, name: str, decoupled: bool) -> None:
        """`decoupled`: weight decay, of an optimizer whose groups do not say."""
        self.name, self._decoupled = name, decoupled

    def read(self, group: Mapping[str, Any]) -> Settings:
        return super().read({"decoupled_weight_decay": self._decoupled, **group})

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        count = counted(state)
        squares = mean_square(state, gradient, settings, "exp_avg_sq", settings["beta2"])
        statistics = {"exp_avg_sq": squares, "step": count}
        if settings.get("amsgrad"):  # memories of before do not say it
            squares = np.maximum(squares, state.buffers.get("max_exp_avg_sq", 0.0))
            statistics["max_exp_avg_sq"] = squares
        root = np.sqrt(squares / correction(settings["beta2"], count, settings))
        root += settings["eps"]
        factors = settings["lr"] / correction(settings["beta1"], count, settings) / root
        return Scale(factors, statistics, left_by_decay(state.weight, settings, settings["decoupled_weight_decay"]))

    def advance_both(
        self, whole: State, remaining: State, gradient: Doubles, stays: Doubles | None, settings: Settings
    ) -> tuple[State, State] | None:
        """As UpdateRule says."""
        if type(self) is not Adam:  # what derives from it may change `scale`
            return None
        return compiled_adam.advance_both(whole, remaining, gradient, stays, settings)

    def rounded(self, state: State, gradient: Doubles, settings: Settings, half: HalfType) -> State:
        """As RoundedRule says: single-tensor operations on the processor, without AMSGrad."""
        beta1, beta2, decay = settings["beta1"], settings["beta2"], settings["weight_decay"]
        weight, descent = state.weight, -gradient if settings["maximize"] else gradient
        if decay and settings["decoupled_weight_decay"]:
            weight = half(weight * np.float32(1 - settings["lr"] * decay))
        elif decay:
            descent = half(descent + half.number(decay) * weight)
        zeros, count = np.zeros_like(weight), counted(state)
        moved, squares = (state.buffers.get(kind, zeros) for kind in ("exp_avg", "exp_avg_sq"))
        moved = half(moved + np.float32(1 - beta1) * (descent - moved))
        squares = half(half(squares * np.float32(beta2)) + np.float32(1 - beta2) * descent * descent)
        root = half(half(np.sqrt(squares)) / (1 - power(beta2, count)) ** 0.5)
        root = half(root + half.number(settings["eps"]))
        weight = half(weight - settings["lr"] / (1 - power(beta1, count)) * (moved / root))
        return State(weight, {"exp_avg": moved, "exp_avg_sq": squares, "step": count})
