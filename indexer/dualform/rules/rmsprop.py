"""The update rule of torch.optim.RMSprop, in every variant.

    g  = the gradient, with weight decay added
    v' = alpha v + (1 - alpha) g^2        c' = c + (1 - alpha) (g - c) where it is centered, else 0
    b' = momentum b + g / (sqrt(v' - c'^2) + eps)
    W' = W - lr b'

v' and c' belong to the whole gradient (torch/optim/rmsprop.py); given them, W' and b' are linear in W, b and the
gradient. Without momentum there is no b.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.descent import descent
from dualform.rules.moments import mean_square
from dualform.rules.rounding import factor, rounds_factors
from dualform.rules.update_rule import Doubles, ImageKind, Scale, Settings, State, UpdateRule

_BUFFER = "momentum_buffer"


class RMSprop(UpdateRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "rmsprop"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "alpha": "DOUBLE",
        "eps": "DOUBLE",
        "momentum": "DOUBLE",
        "weight_decay": "DOUBLE",
        "centered": "BOOLEAN",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
    }
    buffers = (_BUFFER,)
    statistics = ("square_avg", "grad_avg")
    commutes_with: ImageKind = "entries"

    def read(self, group: Mapping[str, Any]) -> Settings:
        return super().read({**group, "rounds_factors": rounds_factors(group)})

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        squares = mean_square(state, gradient, settings, "square_avg", settings["alpha"])
        if not settings["centered"]:
            return Scale(1 / (np.sqrt(squares) + settings["eps"]), {"square_avg": squares})
        share = factor(1 - settings["alpha"], settings)
        center = share * descent(state, gradient, settings)
        if "grad_avg" in state.buffers:
            center += (1 - share) * state.buffers["grad_avg"]
        root = np.sqrt(squares - center * center) + settings["eps"]
        return Scale(1 / root, {"square_avg": squares, "grad_avg": center})

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        rate, move = factor(settings["lr"], settings), scale.factors * descent(state, gradient, settings)
        if not settings["momentum"]:
            return State(state.weight - rate * move)
        if _BUFFER in state.buffers:
            move += factor(settings["momentum"], settings) * state.buffers[_BUFFER]
        return State(state.weight - rate * move, {_BUFFER: move})
