"""The update rule of torch.optim.ASGD, in every variant.

    g    = the gradient, with weight decay added
    W'   = (1 - lambd eta) W - eta g
    eta' = lr / (1 + lambd lr t)^alpha

The rate of an update was made by the update before, so that a change of lr shows one update late; the first is lr. It
and t belong to the whole gradient (torch/optim/asgd.py). torch keeps eta in float32 whatever the weights are. The
average of the weights, `ax`, is no part of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.descent import descent
from dualform.rules.moments import counted
from dualform.rules.rounding import factor, left_of, rounds_factors
from dualform.rules.update_rule import Doubles, ImageKind, Scale, Settings, State, UpdateRule


class ASGD(UpdateRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "asgd"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "lambd": "DOUBLE",
        "alpha": "DOUBLE",
        "weight_decay": "DOUBLE",
        "maximize": "BOOLEAN",
        "foreach": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
    }
    statistics = ("eta", "step")
    commutes_with: ImageKind = "entries"

    def read(self, group: Mapping[str, Any]) -> Settings:
        """`foreach`: whether torch takes all tensors at once, which it does on CUDA where it is not told."""
        said = {**group, "rounds_factors": rounds_factors(group)}
        if group.get("foreach") is None:
            said["foreach"] = all(getattr(own, "is_cuda", False) for own in group.get("params") or [None])
        return super().read(said)

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        count, lr, lambd = counted(state), settings["lr"], settings["lambd"]
        rate = state.buffers.get("eta", _float32(np.asarray(lr)))
        next_rate = lr / (1 + lambd * lr * count) ** settings["alpha"]
        kept: Doubles | float = 1 - factor(lambd, settings) * rate
        if settings["rounds_factors"] and not settings["foreach"]:  # the weight is multiplied by it
            kept = left_of(state.weight, 1 - lambd * rate)
        return Scale(rate, {"eta": _float32(next_rate), "step": count}, kept)

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        return State(scale.kept * state.weight - scale.factors * descent(state, gradient, settings))


def _float32(numbers: Doubles) -> Doubles:
    return np.asarray(np.asarray(numbers, dtype=np.float32), dtype=np.float64)
