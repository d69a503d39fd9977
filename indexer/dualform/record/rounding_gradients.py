"""Gradients of biases that are rounding alone, as those of attention's keys and of what stands before a BatchNorm.

Their terms cancel whatever the data are, and what is left is what the last bits of a sum happen to be. A rule that
scales gradients makes full steps of it all the same. No slot can be told to have brought any of it: it is no slot's
part.

    |g| <= R sum_t |c delta_t|     and     |g - c sum_t delta_t| <= R sum_t |c delta_t|          R: rounding of a sum

g: an entry of the gradient as the optimizer gets it. Shapes: E recorded entries (recorded_entries.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dualform.record.gradient_factor import ROUNDING, Gradient
from dualform.record.projection import Doubles
from dualform.record.recorded_entries import RecordedEntries
from dualform.record.recorded_parameters import RecordedParameters
from dualform.store.batch import RoundingGradient


def rounding_gradients(
    parameters: RecordedParameters,
    entries: RecordedEntries,
    gradient: Gradient,
    factors: Doubles,
    unscaling: float,
    sums: Doubles,
    magnitudes: Doubles,
) -> dict[int, RoundingGradient]:
    """By index of the parameter, of the biases that have any.

    `factors` float64[parameters], NaN where the optimizer skips one; `unscaling`: what it makes of gradients before it
    uses them; `sums` and `magnitudes` float64[E]: of the slots' terms, before the factor.
    """
    found = {}
    for index, parameter in enumerate(parameters):
        if parameter.directions is not None or not np.isfinite(factors[index]):
            continue
        own, span = gradient.applied[parameter.start : parameter.stop] * unscaling, entries.spans[index]
        bound = ROUNDING * abs(factors[index]) * magnitudes[span]
        rest = np.abs(own - factors[index] * sums[span])
        rows = np.flatnonzero((bound > 0) & (np.abs(own) <= bound) & (rest <= bound))
        if len(rows):
            found[index] = RoundingGradient(rows.astype(np.int32), own[rows])
    return found


def put(
    alone: Mapping[int, RoundingGradient],
    entries: RecordedEntries,
    factors: Doubles,
    sums: Doubles,
    magnitudes: Doubles,
) -> None:
    """Let them stand among the sums of the slots in place of what those make: they are known to the last bit."""
    for index, own in alone.items():
        sums[entries.spans[index]][own.rows] = own.gradient / factors[index]
        magnitudes[entries.spans[index]][own.rows] = 0.0
