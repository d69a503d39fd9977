"""What an update descends along: the gradient, turned round where it maximizes, with weight decay where it is coupled.

Weight decay is that of the weight itself, so it is linear, coupled or decoupled.
"""

from __future__ import annotations

from dualform.rules.rounding import factor
from dualform.rules.update_rule import Doubles, Settings, State


def descent(state: State, gradient: Doubles, settings: Settings) -> Doubles:
    """What the averages are of."""
    found = -gradient if settings["maximize"] else gradient
    if settings["weight_decay"] and not settings.get("decoupled_weight_decay"):
        return found + settings["weight_decay"] * state.weight
    return found


def decayed(weight: Doubles, settings: Settings) -> Doubles:
    """The weight after decoupled decay; itself where there is none."""
    if settings["weight_decay"] and settings["decoupled_weight_decay"]:
        return weight * factor(1 - settings["lr"] * settings["weight_decay"], settings)
    return weight
