"""Writes to the weights between the optimizer's updates, for rules that are watched through entries.

    what was written  =  W R before an update, or where one looks  -  W R as the last update left it

Entries show what the rule makes of some numbers of a weight; this shows all of them, and needs no rule: between two
updates the weights stay as they are. Shapes: P numbers over all parameters along all directions
(recorded_parameters.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.record.projection import Doubles
from dualform.record.recorded_parameters import RecordedParameters


class Writes:
    """Used on the training's own thread."""

    def __init__(self, parameters: RecordedParameters) -> None:
        """The weights as they stand are those that nobody has written to."""
        self._parameters = parameters
        self._lengths = [parameter.stop - parameter.start for parameter in parameters]
        self._starts = [parameter.start for parameter in parameters]
        self._start = self._left = parameters.weights()
        self._written = np.zeros(parameters.size)
        """Added up since the start, so that what is taken back is gone."""

    def updated(self, skipped: NDArray[np.bool_]) -> None:
        """The optimizer has written all parameters but those that are `skipped`, bool[parameters]."""
        now = self._parameters.weights()
        self._left = np.where(np.repeat(skipped, self._lengths), self._left, now) if skipped.any() else now

    @np.errstate(all="ignore")  # weights that overflowed are no news
    def look(self, chosen: NDArray[np.bool_] | None) -> Doubles:
        """float64[parameters, 3]: squared norms of what was written since the last look or update, of all that was ever
        written, and of the distance that the weights moved.

        `chosen`: the others are known to be untouched.
        """
        now = self._parameters.weights(chosen)
        if chosen is not None:
            now = np.where(np.repeat(chosen, self._lengths), now, self._left)
        written, self._left = now - self._left, now
        self._written += written
        return np.stack([self._squares(own) for own in (written, self._written, now - self._start)], axis=1)

    def _squares(self, numbers: Doubles) -> Doubles:
        found: Doubles = np.add.reduceat(numbers * numbers, self._starts) * np.square(self._parameters.norm_factors)
        return found
