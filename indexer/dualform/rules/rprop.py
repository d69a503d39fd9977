"""The update rule of torch.optim.Rprop, in every variant.

    s  = sign(g p)        z' = clip(z times etaplus, etaminus or 1, by s)        p' = g, or 0 where s < 0
    W' = W - z' sign(p')

z' and p' belong to the whole gradient (torch/optim/rprop.py). A number moves by z' whatever the size of its gradient:
each part of that gradient has its share of the move, p' / |p'|, and so W' is linear in W and the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.rounding import factor, rounds_factors
from dualform.rules.update_rule import Doubles, ImageKind, Scale, Settings, State, UpdateRule


class Rprop(UpdateRule):
    """As UpdateRule says. Treats each number of a parameter on its own."""

    name = "rprop"
    settings: Mapping[str, str] = {
        "lr": "DOUBLE",
        "etaminus": "DOUBLE",
        "etaplus": "DOUBLE",
        "step_size_min": "DOUBLE",
        "step_size_max": "DOUBLE",
        "maximize": "BOOLEAN",
        "rounds_factors": "BOOLEAN",
    }
    statistics = ("prev", "step_size")
    commutes_with: ImageKind = "entries"

    def read(self, group: Mapping[str, Any]) -> Settings:
        said = {**group, "rounds_factors": rounds_factors(group)}
        said["etaminus"], said["etaplus"] = group["etas"]
        said["step_size_min"], said["step_size_max"] = group["step_sizes"]
        return super().read(said)

    def scale(self, state: State, gradient: Doubles, settings: Settings) -> Scale:
        own = -gradient if settings["maximize"] else gradient
        less, more, least, most = (
            factor(settings[name], settings) for name in ("etaminus", "etaplus", "step_size_min", "step_size_max")
        )
        product = own * state.buffers.get("prev", 0.0)
        if settings["rounds_factors"]:  # what is too small for float32 has no sign
            product = product.astype(np.float32)
        sizes = state.buffers.get("step_size", np.full_like(gradient, factor(settings["lr"], settings)))
        sizes = np.clip(sizes * np.where(product > 0, more, np.where(product < 0, less, 1.0)), least, most)
        used = np.where(product < 0, 0.0, own)
        signed = -sizes if settings["maximize"] else sizes
        factors = np.divide(signed, np.abs(used), out=np.zeros_like(used), where=used != 0)
        return Scale(factors, {"prev": used, "step_size": sizes})

    def advance(self, state: State, gradient: Doubles, settings: Settings, scale: Scale | None = None) -> State:
        assert scale is not None
        return State(state.weight - scale.factors * gradient)
