"""The optimizers of torch that update rules follow, with the settings that they are tried with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

SINGLE, FOREACH, FUSED = {"foreach": False}, {"foreach": True}, {"fused": True}
_RATE = st.sampled_from([1e-3, 0.1])
_BETAS = st.sampled_from([(0.9, 0.999), (0.0, 0.9), (0.5, 0.0)])
_EPS = st.sampled_from([1e-8, 1e-2])
_DECAY = st.sampled_from([0.0, 0.1])


@dataclass(frozen=True)
class Kind:
    type: type[torch.optim.Optimizer]
    made: dict[str, Any] = field(default_factory=dict)
    """Settings that stay, by strategy."""
    history: dict[str, Any] = field(default_factory=dict)
    """Settings that may change from update to update, by strategy."""
    variants: dict[str, dict[str, bool]] = field(default_factory=lambda: {"single": SINGLE, "foreach": FOREACH})

    def strategies(self):
        """What it is made with, and what it is set to before each update."""
        set_to = st.fixed_dictionaries({"weight_decay": _DECAY, "maximize": st.booleans(), **self.history})
        return st.fixed_dictionaries(self.made), st.lists(set_to, min_size=1, max_size=7)


_ADAM = {"lr": _RATE, "betas": _BETAS, "eps": _EPS}
_COUPLED = {"decoupled_weight_decay": st.booleans()}
_FUSED = {"single": SINGLE, "foreach": FOREACH, "fused": FUSED}
KINDS = {
    "adam": Kind(torch.optim.Adam, {"amsgrad": st.booleans()}, _ADAM, _FUSED),
    "adamw": Kind(torch.optim.AdamW, {"amsgrad": st.booleans()}, _ADAM, _FUSED),
    "nadam": Kind(torch.optim.NAdam, {}, {**_ADAM, **_COUPLED, "momentum_decay": st.sampled_from([4e-3, 0.5])}),
    "radam": Kind(torch.optim.RAdam, {}, {**_ADAM, **_COUPLED}),
    "adamax": Kind(torch.optim.Adamax, {}, _ADAM),
    "rmsprop": Kind(
        torch.optim.RMSprop,
        {"momentum": st.sampled_from([0.0, 0.9]), "centered": st.booleans()},
        {"lr": _RATE, "alpha": st.sampled_from([0.99, 0.5]), "eps": _EPS},
    ),
    "adagrad": Kind(
        torch.optim.Adagrad,
        {"initial_accumulator_value": st.sampled_from([0.0, 0.3])},
        {"lr": _RATE, "lr_decay": st.sampled_from([0.0, 0.2]), "eps": _EPS},
        _FUSED,
    ),
    "adadelta": Kind(torch.optim.Adadelta, {}, {"lr": _RATE, "rho": st.sampled_from([0.9, 0.5]), "eps": _EPS}),
    "asgd": Kind(
        torch.optim.ASGD,
        {"lr": _RATE},
        {"lr": _RATE, "lambd": st.sampled_from([1e-4, 0.1]), "alpha": st.sampled_from([0.75, 2.0])},
    ),
    "rprop": Kind(
        torch.optim.Rprop,
        {"lr": _RATE},
        {"etas": st.sampled_from([(0.5, 1.2), (0.9, 3.0)]), "step_sizes": st.sampled_from([(1e-6, 50), (1e-3, 0.2)])},
    ),
    "adafactor": Kind(
        torch.optim.Adafactor,
        {},
        {
            "lr": _RATE,
            "beta2_decay": st.sampled_from([-0.8, -0.1]),
            "eps": st.sampled_from([(None, 1e-3), (1e-3, 1.0)]),
            "d": st.sampled_from([1.0, 3.0]),
        },
    ),
}
