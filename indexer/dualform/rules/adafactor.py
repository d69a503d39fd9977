"""The update rule of torch.optim.Adafactor, in every variant.

    b  = t^beta2_decay        r' = r + b (mean of g^2 over columns - r)        c' = c + b (mean of g^2 over rows - c)
    v  = r' c' / max(mean of r', eps1)        of a vector: v' = v + b (g^2 - v)
    u  = g / sqrt(max(v, eps1^2))        a = max(eps2, rms(W)) min(lr, 1 / sqrt(t))
    W' = (1 - lr decay) W - a / max(1, rms(u) / d) u

All but W and g belong to the whole gradient (torch/optim/_adafactor.py), and a takes the norm of the whole weight;
given them, W' is linear in W and the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.descent import left_by_decay
from dualform.rules.moments import counted
from dualform.rules.rounding import factor, rounds_factors
from dualform.rules.update_rule import Doubles, Scale, Settings, State, UpdateRule

_EPSILON = {"torch.float64": 2.0**-52, "torch.float16": 2.0**-10, "torch.bfloat16": 2.0**-7}
"""What torch takes for an eps1 of None, by type; of others, float32's."""


class Adafactor(UpdateRule):
    """As UpdateRule says. Needs whole parameters, for their norms and the means of rows and columns."""

    name = "adafactor"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "beta2_decay": "DOUBLE",
        "eps1": "DOUBLE",
        "eps2": "DOUBLE",
        "d": "DOUBLE",
        "weight_decay": "DOUBLE",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
    }
    statistics = ("row_var", "col_var", "variance", "step")
    of_matrices = True

    def read(self, group: Mapping[str, Any]) -> Settings:
        eps1, eps2 = group["eps"]
        if eps1 is None:
            first = next(iter(group.get("params") or [None]))
            eps1 = _EPSILON.get(str(getattr(first, "dtype", "")), 2.0**-23)
        said = {**group, "eps1": eps1, "eps2": eps2, "rounds_factors": rounds_factors(group)}
        return super().read(said)

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        count, weight = counted(state), state.weight
        share = factor(float(count ** settings["beta2_decay"]), settings)
        least, statistics = settings["eps1"], {"step": count}
        if gradient.ndim > 1:
            # What was there before the recording is spread over the whole parameter, or one number for all of it.
            held = (state.buffers.get(name, np.zeros(())) for name in ("row_var", "col_var"))
            rows, columns = (np.broadcast_to(own, gradient.shape) for own in held)
            squares = gradient * gradient
            rows = (1 - share) * rows[:, :1] + share * squares.mean(1, keepdims=True)
            columns = (1 - share) * columns[:1] + share * squares.mean(0, keepdims=True)
            statistics |= {"row_var": rows, "col_var": columns}
            found = rows * columns / max(float(rows.mean()), least)
        else:
            found = (1 - share) * state.buffers.get("variance", 0.0) + share * gradient * gradient
            statistics["variance"] = found
        factors = 1 / np.sqrt(np.maximum(found, least * least))
        rate = max(settings["eps2"], _rms(weight)) * min(settings["lr"], float(count) ** -0.5)
        factors *= rate / max(1.0, _rms(factors * gradient) / settings["d"])
        return Scale(-factors if settings["maximize"] else factors, statistics, left_by_decay(weight, settings))

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        return State(scale.kept * state.weight - scale.factors * gradient)


def _rms(numbers: Doubles) -> float:
    return math.sqrt(float((numbers * numbers).mean()))
