"""The update rule of torch.optim.Adagrad, in every variant.

    g  = the gradient, with weight decay added
    v' = v + g^2
    W' = W - lr / (1 + (t - 1) lr_decay) g / (sqrt(v') + eps)

v' and t belong to the whole gradient (torch/optim/adagrad.py); given them, W' is linear in W and the gradient. Both
exist before the first update, v with the value that the optimizer was made with.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform.rules.descent import descent
from dualform.rules.moments import counted
from dualform.rules.update_rule import Doubles, ImageKind, Scale, Settings, State, UpdateRule


class Adagrad(UpdateRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "adagrad"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "lr_decay": "DOUBLE",
        "eps": "DOUBLE",
        "weight_decay": "DOUBLE",
        "maximize": "BOOLEAN",
    }
    statistics = ("sum", "step")
    commutes_with: ImageKind = "entries"

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        count, own = counted(state), descent(state, gradient, settings)
        squares = state.buffers.get("sum", 0.0) + own * own
        rate = settings["lr"] / (1 + (count - 1) * settings["lr_decay"])
        return Scale(rate / (np.sqrt(squares) + settings["eps"]), {"sum": squares, "step": count})

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        return State(state.weight - scale.factors * descent(state, gradient, settings))
