"""The update rule of torch.optim.Adadelta, in every variant.

    g  = the gradient, with weight decay added
    v' = rho v + (1 - rho) g^2        d = sqrt(a + eps) / sqrt(v' + eps) g        a' = rho a + (1 - rho) d^2
    W' = W - lr d

v' and a' belong to the whole gradient (torch/optim/adadelta.py); given v' and a, W' is linear in W and the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.descent import descent
from dualform.rules.moments import mean_square
from dualform.rules.rounding import factor, rounds_factors
from dualform.rules.update_rule import Doubles, ImageKind, Scale, Settings, State, UpdateRule


class Adadelta(UpdateRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "adadelta"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "rho": "DOUBLE",
        "eps": "DOUBLE",
        "weight_decay": "DOUBLE",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
    }
    statistics = ("square_avg", "acc_delta")
    commutes_with: ImageKind = "entries"

    def read(self, group: Mapping[str, Any]) -> Settings:
        return super().read({**group, "rounds_factors": rounds_factors(group)})

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        rho, eps = settings["rho"], settings["eps"]
        squares = mean_square(state, gradient, settings, "square_avg", rho)
        before = state.buffers.get("acc_delta", np.zeros(()))
        factors = np.sqrt(before + eps) / np.sqrt(squares + eps)
        move = factors * descent(state, gradient, settings)
        moves = factor(rho, settings) * before + factor(1 - rho, settings) * move * move
        return Scale(factor(settings["lr"], settings) * factors, {"square_avg": squares, "acc_delta": moves})

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        return State(state.weight - scale.factors * descent(state, gradient, settings))
