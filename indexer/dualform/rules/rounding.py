"""What torch rounds of an update's factors.

A number that multiplies a float32 tensor is rounded to float32. Of Adam's beta2, that moves the squares by 1e-5 of
themselves within a thousand updates, and of 1 - lr decay, it moves the weights themselves; so a rule whose settings
have `rounds_factors` rounds as torch did. Corrections such as 1 - beta^t are made in double precision, but in float32
where the count of updates is a tensor, which `float32_corrections` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualform.rules.update_rule import Doubles, Settings


def rounds_factors(group: Mapping[str, Any]) -> bool:
    """Not of float64 tensors, and not by the fused kernel of CUDA, which multiplies in double precision."""
    parameters = group.get("params") or [None]
    first = parameters[0]
    if str(getattr(first, "dtype", "torch.float32")) == "torch.float64":
        return False
    return not (group.get("fused") and getattr(first, "is_cuda", False))


def float32_corrections(group: Mapping[str, Any], *says: str) -> bool:
    """Whether one of the options that keep the count of updates a tensor is on. The fused kernels have none of them."""
    return not group.get("fused") and any(bool(group.get(option)) for option in says)


def factor(number: float, settings: Settings) -> float:
    """A factor as torch multiplies by it."""
    return float(np.float32(number)) if settings["rounds_factors"] else number


def correction(beta: float, count: Doubles, settings: Settings) -> Doubles:
    """1 - beta^count."""
    if settings.get("float32_corrections"):  # memories of before do not say it
        return np.asarray(np.float32(1) - np.power(np.float32(beta), np.float32(count)), dtype=np.float64)
    return np.asarray(1 - beta**count)
