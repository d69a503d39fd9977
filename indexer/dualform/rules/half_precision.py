"""What rounding to a type of half precision makes of numbers, to the bit as torch: to the nearest, ties to even.

Under autocast, the gradient of a weight is a sum of products of errors and keys, one for each call. Autocast makes one
copy of the weight for all calls under one `with`; each product is rounded to the copy's type, and so is their sum,
product after product. What the copies come to is added up in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from dualform.rules.update_rule import Doubles

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""u: half a last bit of 1. By type, the coarsest first: all that there are."""
_LOWER_HALF = 0xFFFF
"""Of a float32 number's bits: what bfloat16 has not."""


def rounded(numbers: Doubles, dtype: str) -> Doubles:
    """float64 of any shape: the nearest numbers of "bfloat16" or "float16". What overflows is infinite.

    Torch adds up in float32 before it rounds, so that numbers are rounded to that type first.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = np.array(numbers, dtype=np.float32, order="C")
        if dtype == "float16":
            return single.astype(np.float16).astype(np.float64)
        lost = np.isnan(single)
        bits = single.view(np.uint32)
        bits += (_LOWER_HALF >> 1) + ((bits >> 16) & 1)
        bits &= 0xFFFFFFFF - _LOWER_HALF
        single[lost] = np.nan
        return single.astype(np.float64)


def with_product(total: Doubles | None, product: Doubles, dtype: str) -> Doubles:
    """What the products of one copy of a weight come to with one more; `total`: before it, None for the first."""
    own = rounded(product, dtype)
    return own if total is None else rounded(total + own, dtype)


def lost(dtype: str, steps: Iterable[tuple[Doubles, float]]) -> float:
    """The share of its length that a gradient of some steps may lose to rounding.

    `steps`: what each brings to it, and how many products that is the sum of. Each product is rounded, then what it
    comes to with those before it, and once more what clipping makes of all: errors of at most u of the length of what
    is rounded. None depends on another, so their squares add up.
    """
    total, squares = np.zeros(()), 0.0
    for own, products in steps:
        total = total + own
        squares += 2 * products * max(float((own * own).sum()), float((total * total).sum()))
    length = float((total * total).sum())
    return UNIT_ROUNDOFF[dtype] * sqrt(squares / length + 1) if length else inf


@dataclass(frozen=True)
class HalfType:
    """A type of half precision."""

    dtype: str
    """"bfloat16" or "float16"."""

    def __call__(self, numbers: Doubles) -> Doubles:
        """The nearest numbers of the type."""
        return rounded(numbers, self.dtype)

    def number(self, number: float) -> float:
        """The nearest one: torch rounds what a tensor of the type is added to, and what it adds a multiple by."""
        return float(rounded(np.array(number), self.dtype))
