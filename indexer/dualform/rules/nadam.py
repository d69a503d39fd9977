"""The update rule of torch.optim.NAdam, in every variant.

    g  = the gradient, with weight decay added where it is coupled
    m' = m + (1 - beta1) (g - m)        v' = beta2 v + (1 - beta2) g^2
    mu(t) = beta1 (1 - 0.96^(t decay) / 2)        p' = p mu(t)
    u  = (1 - mu(t)) / (1 - p') g + mu(t + 1) / (1 - p' mu(t + 1)) m'
    W' = (1 - lr decay) W - lr u / (sqrt(v' / (1 - beta2^t)) + eps)

The decay of mu is momentum_decay; that of the weights stands here where it is decoupled. v', p' and t belong to the
whole gradient (torch/optim/nadam.py); given them, W' and m' are linear in W, m and the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform.rules.descent import descent, left_by_decay
from dualform.rules.moments import AveragedRule, average, counted, mean_square
from dualform.rules.rounding import correction
from dualform.rules.update_rule import Doubles, Scale, Settings, State


class NAdam(AveragedRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "nadam"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "beta1": "DOUBLE",
        "beta2": "DOUBLE",
        "eps": "DOUBLE",
        "weight_decay": "DOUBLE",
        "momentum_decay": "DOUBLE",
        "decoupled_weight_decay": "BOOLEAN",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
        "float32_corrections": "BOOLEAN",
    }
    statistics = ("exp_avg_sq", "mu_product", "step")

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        count = counted(state)
        squares = mean_square(state, gradient, settings, "exp_avg_sq", settings["beta2"])
        root = np.sqrt(squares / correction(settings["beta2"], count, settings)) + settings["eps"]
        product = np.asarray(state.buffers.get("mu_product", 1.0) * _mu(count, settings))
        statistics = {"exp_avg_sq": squares, "mu_product": product, "step": count}
        return Scale(
            settings["lr"] / root, statistics, left_by_decay(state.weight, settings, settings["decoupled_weight_decay"])
        )

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        count, product = scale.statistics["step"], scale.statistics["mu_product"]
        now, next_one = _mu(count, settings), _mu(count + 1, settings)
        moved = average(state, gradient, settings)
        step = (1 - now) / (1 - product) * descent(state, gradient, settings)
        step += next_one / (1 - product * next_one) * moved
        return State(scale.kept * state.weight - scale.factors * step, {"exp_avg": moved})


def _mu(count: Doubles, settings: Settings) -> Doubles:
    return np.asarray(settings["beta1"] * (1 - 0.5 * 0.96 ** (count * settings["momentum_decay"])))
