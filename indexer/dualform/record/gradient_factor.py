"""Measures c_s, the scalar that clipping, AMP or averaging put between the recorded gradients and those applied.

    p.grad R u  =  c_s * (sum over slots of delta_t (x_t R)) u         u: a direction, new at every update

Shapes: n slots, d_in and d_out of a layer, P numbers over all parameters along all directions.

Two vectors that are parallel along directions nobody could know beforehand prove that the recorded slots explain the
whole gradient; their ratio is c_s. The slots are projected along the fixed R of recorded_parameters.py, once, for the
watch as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualform.record.projection import DIRECTIONS, Doubles, Outer, Parts, full_precision
from dualform.record.recorded_parameters import RecordedParameter, RecordedParameters
from dualform.store.batch import TOLERANCE
from dualform.store.parameter import Parameter

_ROUNDING = 16 * float(np.finfo(np.float32).eps)
"""Rounding error of a float32 sum, as a multiple of the sum of its terms' magnitudes."""
_FEW = 8
"""A weight with fewer outputs is compared along all directions: one number alone is parallel to any other."""
_AS_GOOD = 1.5
"""Residuals within this factor of the least are as good: the gradient's own rounding decides between them."""
_NOISE = 1e-6
"""Residuals below this are rounding of float32."""


@dataclass(frozen=True)
class Projection:
    """What the slots of one step say the gradient is."""

    step: int
    sums: Doubles
    """float64[P]."""
    scales: Doubles
    """float64[parameters]: bound on the magnitudes that were summed, for the rounding error."""
    fresh: bool = False
    """Whether gradients of earlier steps were gone when the first of this step's arrived."""


@dataclass(frozen=True)
class Gradient:
    """The gradients that an update applies, as the slots tell them."""

    first_step: int | None
    """The first step whose slots they hold; None where there are none."""
    sums: Doubles
    """float64[P], before the factor."""
    scales: Doubles
    """float64[parameters]."""
    factors: Doubles
    """float64[parameters]: c; NaN where the parameter has no gradient, so that the optimizer skips it."""
    residuals: Doubles
    """float64[parameters]: relative share of the gradient that the slots do not explain."""
    explained: NDArray[np.bool_]
    """bool[parameters]."""


@dataclass(frozen=True)
class _Fit:
    """Each float64[parameters]."""

    factors: Doubles
    residuals: Doubles
    error: float
    """Share of all gradients together that is not explained."""


class GradientFactors:
    """Collects the projections of recorded steps until an update uses them."""

    def __init__(self, parameters: RecordedParameters, generator: np.random.Generator) -> None:
        self._parameters, self._generator = parameters, generator
        self._held: dict[str, list[tuple[int, RecordedParameter, Parameter]]] = {}
        """By layer, its parameters, their index, and their places in it: weights come before biases."""
        for index, parameter in enumerate(parameters):
            for layer, place in parameter.terms:
                self._held.setdefault(layer, []).append((index, parameter, place))
        self._parts = Parts(
            [parameter.stop - parameter.start for parameter in parameters], list(map(_turned, parameters))
        )
        self._single = _single_numbers(parameters)
        """A parameter of one number -> the one whose factor it must have: one number is parallel to any other."""
        self._along = generator.standard_normal(DIRECTIONS)
        self.pending: list[Projection] = []

    def renew(self) -> None:
        """Forget what is pending and draw a new direction."""
        self.pending = []
        self._along = self._generator.standard_normal(DIRECTIONS)

    def forget(self, step: int) -> None:
        """Take a step's projection back."""
        self.pending = [projection for projection in self.pending if projection.step != step]

    def add(self, step: int, rows: Sequence[tuple[str, Tensor, Tensor]], fresh: bool = False) -> bool:
        """Project one step's slots: keys, as their form has them, and error signals float32[n, d_out] of layers, which
        may come several times.

        False where the outcome is not finite: there is NaN or infinity in them, or a number that overflows.
        """
        sums, scales = np.zeros(self._parameters.size), np.zeros(len(self._parameters))
        for layer, keys, errors in rows:
            self._add_rows(layer, keys, errors, sums, scales)
        self.pending.append(Projection(step, sums, scales, fresh))
        # NaN and infinity stay in sums of squares, and those of float32 numbers do not overflow.
        return all(map(isfinite, scales.tolist()))

    def _add_rows(self, layer: str, keys: Tensor, errors: Tensor, sums: Doubles, scales: Doubles) -> None:
        outer: Outer | None = None
        form = self._parameters.forms[layer]
        for index, parameter, place in self._held.get(layer, ()):
            own_sums = sums[parameter.start : parameter.stop]
            if parameter.directions is None:
                summed, square = _summed(errors) if outer is None else (outer.summed, outer.errors_square)
                own_sums += summed
                scales[index] += square**0.5 * float(len(errors)) ** 0.5
                continue
            found = form.add_outer(parameter.directions, keys, errors, place, own_sums)
            scales[index] += found.errors_square**0.5 * (found.keys_square / DIRECTIONS) ** 0.5
            outer = outer if place.transposed else found

    def measure(self, trained: frozenset[int]) -> Gradient:
        """Compare the gradients as they stand with what is pending.

        `trained` are the ids of the parameters that the optimizer updates. Where some pending steps' gradients were
        zeroed before an update used them, the others are taken: those that leave the least unexplained.
        """
        grads = [p.tensor.grad if id(p.tensor) in trained and not p.lost else None for p in self._parameters]
        present = np.array([grad is not None for grad in grads], bool)
        applied = self._parameters.project(grads)
        start, fit = self._best_start(applied, present)
        used = self.pending[start:]
        return Gradient(
            first_step=used[0].step if used else None,
            sums=used[0].sums if len(used) == 1 else sum((p.sums for p in used), np.zeros(self._parameters.size)),
            scales=sum((p.scales for p in used), np.zeros(len(self._parameters))),
            factors=np.where(present, fit.factors, np.nan),
            residuals=fit.residuals,
            explained=fit.residuals <= TOLERANCE,
        )

    def _best_start(self, applied: Doubles, present: NDArray[np.bool_]) -> tuple[int, _Fit]:
        """The index into `pending` from which on the steps explain the gradients best.

        Of several that do so equally well, as those of a batch that comes again and again, the latest before which the
        gradients were gone; else the earliest.
        """
        recorded, scales = np.zeros(len(applied)), np.zeros(len(present))
        if not self.pending:
            return 0, self._compare(applied, recorded, scales, present)
        if len(self.pending) == 1:
            return 0, self._compare(applied, self.pending[0].sums, self.pending[0].scales, present)
        fits = list[_Fit]()
        for projection in reversed(self.pending):
            recorded, scales = recorded + projection.sums, scales + projection.scales
            fits.insert(0, self._compare(applied, recorded, scales, present))
        least = min(fit.error for fit in fits)
        equal = [i for i, fit in enumerate(fits) if fit.error <= max(_NOISE, _AS_GOOD * least)]
        start = max((i for i in equal if self.pending[i].fresh), default=equal[0])
        return start, fits[start]

    def _compare(self, applied: Doubles, recorded: Doubles, scales: Doubles, present: NDArray[np.bool_]) -> _Fit:
        """Of float64[P]. In plain numbers: most networks have few parameters, and arrays of few numbers are slow."""
        fits = list(map(_fit, self._parts.compare(applied, recorded, self._along), scales.tolist()))
        for index, mate in self._single.items():
            if present[index] and present[mate]:
                part = slice(self._parameters[index].start, self._parameters[index].stop)
                fits[index] = _held_to(fits[mate][0], applied[part], recorded[part], float(scales[index]))
        residuals = [residual if there else 0.0 for (_, residual), there in zip(fits, present.tolist(), strict=True)]
        error = (sum([residual * residual for residual in residuals]) / max(1, int(present.sum()))) ** 0.5
        return _Fit(np.array([factor for factor, _ in fits]), np.array(residuals), error)


def _fit(compared: Sequence[float], scale: float) -> tuple[float, float]:
    """Factor and residual of one parameter; 1 and 1 where one of them is not finite."""
    factor, size, left = compared
    # What rounding can account for is no gap, however small the gradient came out.
    allowed = sqrt(size) + _ROUNDING / TOLERANCE * abs(factor) * scale
    residual = (sqrt(left) / allowed if allowed else inf) if left > 0 else left
    return (factor, residual) if isfinite(factor) and isfinite(residual) else (1.0, 1.0)


def _held_to(factor: float, applied: Doubles, recorded: Doubles, scale: float) -> tuple[float, float]:
    """As _fit, with a factor that is known from elsewhere."""
    with np.errstate(all="ignore"):
        left = float(np.square(applied - factor * recorded).sum())
        return _fit((factor, float(np.square(applied).sum()), left), scale)


def _summed(errors: Tensor) -> tuple[Doubles, float]:
    """float64[d_out]: the sum of errors [n, d_out]; and that of their squares."""
    with full_precision():
        wide = errors.double()
        return wide.sum(0).cpu().numpy(), float(wide.square().sum())


def _single_numbers(parameters: RecordedParameters) -> dict[int, int]:
    """By index: of a layer's other parameter where that has more than one number, else of the largest of all."""
    sizes = [parameter.numbers for parameter in parameters]
    largest = max(range(len(sizes)), key=sizes.__getitem__, default=0)
    found = {}
    for index, parameter in enumerate(parameters):
        if sizes[index] != 1:
            continue
        mates = [i for i, other in enumerate(parameters) if sizes[i] > 1 and set(other.layers) & set(parameter.layers)]
        mate = mates[0] if mates else largest
        if sizes[mate] > 1:
            found[index] = mate
    return found


def _turned(parameter: RecordedParameter) -> bool:
    """Whether a weight is compared along u alone."""
    return parameter.directions is not None and parameter.stop - parameter.start >= _FEW * DIRECTIONS
