"""Whether weights of half precision moved less than their rounding: updates below half a last bit leave them in place.

    || the record's weights - the real ones ||  >  || W_t - W_0 ||        the record moves them further than they moved
                                               <=  sum over updates of u ||W||        and by no more than rounding took

Only where a rule does not round its updates as the training did: one that does makes them stand still as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dualform.query.view import View
from dualform.query.weights.block_status import BlockDistance
from dualform.query.weights.coefficients import updates
from dualform.rules.half_precision import UNIT_ROUNDOFF, HalfType


def moved_less_than_rounding(view: View, precision: str, misses: Sequence[BlockDistance], steps: int) -> str:
    """What is said of a layer whose weights did so in its first steps, one sentence; empty for any other.

    `precision`: what the layer was computed in; `misses`: of its blocks, as the watch measured them.
    """
    apart, went = (math.hypot(*lengths) for lengths in ([m.accumulated for m in misses], [m.way for m in misses]))
    unit = UNIT_ROUNDOFF.get(precision)
    if unit is None or not went < apart < math.inf:
        return ""
    initial = view.stored_weights("initial")
    blocks = [miss.block.block_of(initial[miss.block.name]).astype(np.float64) for miss in misses]
    if any((HalfType(precision)(block) != block).any() for block in blocks):
        return ""  # they are float32, which holds such updates
    made = len(updates(view.snapshot, misses[0].block.block_name, steps))
    last_bit = unit * math.hypot(*(float(np.linalg.norm(block)) for block in blocks))
    if apart > made * last_bit:
        return ""
    return (
        f"its weights moved less than rounding: its updates were smaller than half a last bit of {precision} weights "
        f"({last_bit:.1e} of all of them), so that {made} updates moved them by {went:.1e}, and would have moved them "
        f"by about {apart:.1e} unrounded."
    )
