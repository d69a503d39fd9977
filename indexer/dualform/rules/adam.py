"""The update rules of torch.optim.Adam and AdamW, in every variant but AMSGrad.

    g  = the gradient, with weight decay added where it is coupled
    m' = m + (1 - beta1) (g - m)        v' = beta2 v + (1 - beta2) g^2
    W' = (1 - lr decay) W - lr / (1 - beta1^t) m' / (sqrt(v' / (1 - beta2^t)) + eps)        decay where it is decoupled

v' and t belong to the whole gradient (torch/optim/adam.py); given them, W' and m' are linear in W, m and the gradient.
Decoupled decay is that of the weight itself, so it is linear as well.

torch rounds what it multiplies a float32 tensor by to float32. Of beta2, that moves v by 1e-5 of itself within a
thousand updates, and of 1 - lr decay, it moves the weights themselves; so the rule rounds as torch did. The corrections
by beta^t are made in double precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.update_rule import Doubles, ImageKind, Scale, Settings, State, UpdateRule, setting


class Adam(UpdateRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "beta1": "DOUBLE",
        "beta2": "DOUBLE",
        "eps": "DOUBLE",
        "weight_decay": "DOUBLE",
        "decoupled_weight_decay": "BOOLEAN",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
    }
    buffers = ("exp_avg",)
    statistics = ("exp_avg_sq", "step")
    commutes_with: ImageKind = "entries"

    def __init__(self, name: str, decoupled: bool) -> None:
        """`decoupled`: weight decay, of an optimizer whose groups do not say."""
        self.name, self._decoupled = name, decoupled

    def read(self, group: Mapping[str, Any]) -> Settings:
        """Rates and betas may be tensors. `rounds_factors`: whether torch rounds factors to float32."""
        beta1, beta2 = group["betas"]
        said = {"decoupled_weight_decay": self._decoupled, **group, "beta1": beta1, "beta2": beta2}
        said["rounds_factors"] = _rounds_factors(group)
        return {name: setting(said.get(name), kind) for name, kind in self.settings.items()}

    def refusal(self, group: Mapping[str, Any]) -> str:
        if group.get("amsgrad"):
            return "its amsgrad is True, and AMSGrad has no rule"
        return super().refusal(group)

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        beta1, beta2 = settings["beta1"], settings["beta2"]
        count = np.asarray(state.buffers.get("step", 0.0) + 1.0)
        descent = _descent(state, gradient, settings)
        squares = _factor(1 - beta2, settings) * descent * descent
        if "exp_avg_sq" in state.buffers:
            squares += _factor(beta2, settings) * state.buffers["exp_avg_sq"]
        root = np.sqrt(squares / (1 - beta2**count))
        root += settings["eps"]
        return Scale(settings["lr"] / (1 - beta1**count) / root, {"exp_avg_sq": squares, "step": count})

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        share = _factor(1 - settings["beta1"], settings)
        average = share * _descent(state, gradient, settings)
        if "exp_avg" in state.buffers:
            average += (1 - share) * state.buffers["exp_avg"]
        weight = state.weight
        if settings["weight_decay"] and settings["decoupled_weight_decay"]:
            weight = weight * _factor(1 - settings["lr"] * settings["weight_decay"], settings)
        return State(weight - scale.factors * average, {"exp_avg": average})


def _descent(state: State, gradient: Doubles, settings: Settings) -> Doubles:
    """What the averages are of."""
    descent = -gradient if settings["maximize"] else gradient
    if settings["weight_decay"] and not settings["decoupled_weight_decay"]:
        return descent + settings["weight_decay"] * state.weight
    return descent


def _factor(number: float, settings: Settings) -> float:
    return float(np.float32(number)) if settings["rounds_factors"] else number


def _rounds_factors(group: Mapping[str, Any]) -> bool:
    """Not of float64 tensors, and not by the fused kernel of CUDA, which multiplies in double precision."""
    parameters = group.get("params") or [None]
    first = parameters[0]
    if str(getattr(first, "dtype", "torch.float32")) == "torch.float64":
        return False
    return not (group.get("fused") and getattr(first, "is_cuda", False))
