"""How much the slots that a mask removes cancel each other.

    sum_t ||a_t delta_t|| ||x_t||  /  || sum_t a_t delta_t x_t^T ||_F        over the removed slots

1 where they all push one way; tens or hundreds, as is usual for SGD, mean that removing them moves the weights by a
small difference of large terms: the result is not what training without them would give.
"""

from __future__ import annotations

import math

import numpy as np

from dualform.query.exactness import require_exact
from dualform.query.mask import Selection
from dualform.query.rebuilt import check_step, parts
from dualform.query.view import Check, View
from dualform.store.layer import Layer


def cancellation(view: View, layer: Layer, selection: Selection, at_step: int | None, check: Check) -> float:
    """The figure for the slots that `selection` leaves out; NaN where those move nothing.

    Raises Inexact where the record does not explain the layer.
    """
    check_step(view, at_step)
    require_exact(view, layer, at_step)
    removed = Selection(f"NOT {selection.identity}", ~selection.stays)
    terms, moved = 0.0, np.zeros((layer.d_out, layer.d_in))
    for part in parts(view, layer, removed, at_step, check):
        values = part.values * part.weight[:, None]
        terms += float(np.linalg.norm(values, axis=1) @ np.linalg.norm(part.keys, axis=1))
        moved += values.T @ part.keys
    length = float(np.linalg.norm(moved))
    if length:
        return terms / length
    return math.inf if terms else math.nan
