"""The gradient factor of parameters whose products the training rounded to half precision, from the watched entries.

    p.grad  =  c_s * (sum over copies of the weight of their rounded products)        on the entries

Numbers can be rounded as the training rounded them; what is seen along directions cannot. So directions still show
whether the slots explain the whole gradient but for what rounding accounts for, and the entries to how many digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from dualform.record.gradient_factor import Gradient
from dualform.record.projection import Doubles
from dualform.record.recorded_entries import RecordedEntries
from dualform.record.recorded_parameters import RecordedParameters
from dualform.rules.half_precision import HalfType
from dualform.store.batch import TOLERANCE


class EntryFits:
    """Measures again what was measured along directions."""

    def __init__(
        self, parameters: RecordedParameters, entries: RecordedEntries, halves: Mapping[int, HalfType]
    ) -> None:
        """`halves`: by index, the type of the parameters whose gradients are of half precision themselves."""
        self._parameters, self._entries, self._halves = parameters, entries, halves

    def refined(self, gradient: Gradient, recorded: Doubles, halved: Doubles, roundoff: Sequence[float]) -> Gradient:
        """The gradient with the factors that fit the entries better.

        `recorded` float64[E]: of the slots, rounded; `halved` float64[parameters]: how many of its products were;
        `roundoff`: by parameter, of what its gradient was computed in.
        """
        factors, residuals = gradient.factors.copy(), gradient.residuals.copy()
        fitted = replace(gradient, factors=factors)
        for index in np.flatnonzero((halved > 0) & ~np.isnan(factors)).tolist():
            parameter = self._parameters[index]
            if parameter.numbers == 1 or parameter.tensor.grad is None:
                continue  # one number alone has any factor
            applied = self._entries.of(index, parameter.tensor.grad)
            factor, residual = _fit(applied, recorded[self._entries.spans[index]], self._halves.get(index))
            if residual >= residuals[index]:
                continue
            factors[index] = factor
            if fitted.rounding_explains(index, roundoff[index], parameter):
                residuals[index] = residual
        return replace(fitted, residuals=residuals, explained=residuals <= TOLERANCE)


@np.errstate(all="ignore")
def _fit(applied: Doubles, recorded: Doubles, half: HalfType | None) -> tuple[float, float]:
    """Factor, and the share of `applied` that is left; 1 and 1 where there is none.

    What clipping multiplies a gradient of half precision by is of that type, too, and the product is rounded.
    """
    factor, length = float(applied @ recorded / (recorded @ recorded)), float(np.linalg.norm(applied))
    if not length:
        return 1.0, 1.0
    fits = [(factor, float(np.linalg.norm(applied - factor * recorded)) / length)]
    if half is not None:
        tried = (factor, half.number(factor))
        fits = [(each, float(np.linalg.norm(applied - half(each * recorded))) / length) for each in tried]
    factor, left = min(fits, key=lambda fit: fit[1])
    return (factor, left) if isfinite(factor) and isfinite(left) else (1.0, 1.0)
