"""What an update descends along: the gradient, negated where it maximizes, with weight decay where it is coupled.

Weight decay is that of the weight itself, so it is linear, coupled or decoupled.
"""

from __future__ import annotations

from dualform.rules.rounding import left_of
from dualform.rules.update_rule import Doubles, Settings, State


def descent(state: State, gradient: Doubles, settings: Settings) -> Doubles:
    """What the averages are of."""
    found = -gradient if settings["maximize"] else gradient
    if settings["weight_decay"] and not settings.get("decoupled_weight_decay"):
        return found + settings["weight_decay"] * state.weight
    return found


def left_by_decay(weight: Doubles, settings: Settings, decoupled: float = True) -> Doubles | float:
    """What decoupled decay leaves of each number of the whole weight; 1.0 where there is none."""
    if not settings["weight_decay"] or not decoupled:
        return 1.0
    number = 1 - settings["lr"] * settings["weight_decay"]
    return left_of(weight, number) if settings["rounds_factors"] else number
