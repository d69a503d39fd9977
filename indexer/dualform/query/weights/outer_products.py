"""Sums of outer products of values and keys, as a layer's weight is made of them.

Shapes: m slots, d_in and d_out of a layer, G of its groups.
"""

from __future__ import annotations

import numpy as np

from dualform.rules.update_rule import Doubles


def outer_product(values: Doubles, keys: Doubles, groups: int) -> Doubles:
    """float64[d_out, d_in / G]: the sum over slots of value key^T, of values [m, d_out] and keys [m, d_in].

    Of a weight of several blocks along its diagonal, the blocks under one another.
    """
    blocks = values.reshape(len(values), groups, -1).transpose(1, 2, 0)
    summed: Doubles = np.matmul(blocks, keys.reshape(len(keys), groups, -1).transpose(1, 0, 2))
    return summed.reshape(values.shape[1], -1)
