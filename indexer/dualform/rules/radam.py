"""The update rule of torch.optim.RAdam, in every variant.

    g  = the gradient, with weight decay added where it is coupled
    m' = m + (1 - beta1) (g - m)        v' = beta2 v + (1 - beta2) g^2
    r  = 2 / (1 - beta2) - 1            r(t) = r - 2 t beta2^t / (1 - beta2^t)
    W' = (1 - lr decay) W - lr / (1 - beta1^t) m' a        decay where it is decoupled
    a  = sqrt((r(t) - 4) (r(t) - 2) r / ((r - 4) (r - 2) r(t))) sqrt(1 - beta2^t) / (sqrt(v') + eps)
         where r(t) > 5, else 1

v' and t belong to the whole gradient (torch/optim/radam.py); given them, W' and m' are linear in W, m and the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform.rules.descent import left_by_decay
from dualform.rules.moments import AveragedRule, counted, mean_square
from dualform.rules.rounding import correction, power
from dualform.rules.update_rule import Doubles, Scale, Settings, State


class RAdam(AveragedRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "radam"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "beta1": "DOUBLE",
        "beta2": "DOUBLE",
        "eps": "DOUBLE",
        "weight_decay": "DOUBLE",
        "decoupled_weight_decay": "BOOLEAN",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
        "float32_corrections": "BOOLEAN",
    }
    statistics = ("exp_avg_sq", "step")

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        count, beta2 = counted(state), settings["beta2"]
        squares = mean_square(state, gradient, settings, "exp_avg_sq", beta2)
        bias = correction(beta2, count, settings)
        longest = 2 / (1 - beta2) - 1
        length = np.asarray(longest - 2 * count * power(beta2, count) / bias)
        # Counts may differ from number to number: parameters that are watched together need not begin together.
        rectified = length > 5
        safe = np.where(rectified, length, longest)
        with np.errstate(divide="ignore", invalid="ignore"):  # of averages that are never long enough
            share = (safe - 4) * (safe - 2) * longest / ((longest - 4) * (longest - 2) * safe)
            adapted = np.sqrt(share) * np.sqrt(bias) / (np.sqrt(squares) + settings["eps"])
        factors = settings["lr"] / correction(settings["beta1"], count, settings) * np.where(rectified, adapted, 1.0)
        return Scale(
            factors,
            {"exp_avg_sq": squares, "step": count},
            left_by_decay(state.weight, settings, settings["decoupled_weight_decay"]),
        )
