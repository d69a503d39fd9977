"""The update rule of torch.optim.Adamax, in every variant.

    g  = the gradient, with weight decay added
    m' = m + (1 - beta1) (g - m)        u' = max(beta2 u, |g| + eps)
    W' = W - lr / (1 - beta1^t) m' / u'

u' and t belong to the whole gradient (torch/optim/adamax.py); given them, W' and m' are linear in W, m and the
gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform.rules.descent import descent
from dualform.rules.moments import AveragedRule, counted
from dualform.rules.rounding import correction, factor
from dualform.rules.update_rule import Doubles, Scale, Settings, State


class Adamax(AveragedRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "adamax"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "beta1": "DOUBLE",
        "beta2": "DOUBLE",
        "eps": "DOUBLE",
        "weight_decay": "DOUBLE",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
        "float32_corrections": "BOOLEAN",
    }
    statistics = ("exp_inf", "step")

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        count = counted(state)
        greatest = np.abs(descent(state, gradient, settings)) + settings["eps"]
        if "exp_inf" in state.buffers:
            greatest = np.maximum(factor(settings["beta2"], settings) * state.buffers["exp_inf"], greatest)
        factors = settings["lr"] / correction(settings["beta1"], count, settings) / greatest
        return Scale(factors, {"exp_inf": greatest, "step": count})
