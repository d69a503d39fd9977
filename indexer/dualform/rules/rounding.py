"""What torch rounds of an update's factors.

A number that multiplies a float32 tensor is rounded to float32. Of Adam's beta2, that moves the squares by 1e-5 of
themselves within a thousand updates, and of 1 - lr decay, it moves the weights themselves; so a rule whose settings
have `rounds_factors` rounds as torch did. Corrections such as 1 - beta^t are made in double precision, but in float32
where the count of updates is a tensor, which `float32_corrections` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np

from dualform.rules.update_rule import Doubles, Settings

NEGLIGIBLE = 1e-30
"""Beside 1, in float32 and float64. Powers that underflow take thirty times as long, as of 0.9 after 6,700 updates."""

_PRODUCTS = {"none": 0.0, "ieee": 0.0, "tf32": 2.0**-10, "highest": 0.0, "high": 2.0**-10}
"""By what each precision of torch's rounds, as TF32; 2^-8, as of bfloat16, for any other."""


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


def product_rounding(torch: Any, *libraries: str) -> float:
    """By what torch, as it is set now, may round float32 numbers before it multiplies matrices: relative, 0.0 for not
    at all. `libraries`: those of torch.backends that multiply, of which the coarsest counts.
    """
    try:
        # Where one library was set and not the other, torch raises RuntimeError if it is asked without their names.
        found = [getattr(torch.backends, library).matmul.fp32_precision for library in libraries]
    except AttributeError:  # torch before 2.9
        found = [torch.get_float32_matmul_precision()]
    return max(_PRODUCTS.get(precision, 2.0**-8) for precision in found)


def factor(number: float, settings: Settings) -> float:
    """A factor as torch multiplies by it."""
    return float(np.float32(number)) if settings["rounds_factors"] else number


def left_of(weight: Doubles, number: float | Doubles) -> Doubles:
    """What is left of each number of a float32 weight that torch multiplies by one close to 1: product over weight.

    The product is rounded to the weight's last place, to the same side update after update: as lr decay is of 1e-7 in
    fine-tuning, and a last place of up to 1e-7 of the weight, that is no rounding but another decay. Held for the whole
    weight, each part of it has the same.
    """
    single = weight.astype(np.float32)
    moved = (single * np.asarray(number, dtype=np.float32)).astype(np.float64) - single
    return 1.0 + np.divide(moved, weight, out=np.zeros_like(moved), where=weight != 0)


def correction(beta: float, count: Doubles, settings: Settings) -> Doubles:
    """1 - beta^count."""
    if settings.get("float32_corrections"):  # memories of before do not say it
        return np.asarray(np.float32(1) - power(np.float32(beta), np.float32(count)), dtype=np.float64)
    return np.asarray(1 - power(beta, count))


def power(beta: float | np.float32, count: Doubles | np.float32) -> Doubles:
    """beta^count of 0 <= beta <= 1; where that is less than NEGLIGIBLE, about NEGLIGIBLE."""
    if 0 < beta < 1:
        count = np.minimum(count, count.dtype.type(log(NEGLIGIBLE) / log(beta)))
    if count.size > 1 and (count == count.flat[0]).all():  # of many numbers, a power takes longer than all else
        return np.full(count.shape, np.power(beta, count.reshape(-1)[:1]))
    found: Doubles = np.power(beta, count)
    return found
