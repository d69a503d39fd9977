"""Measures c_s, the scalar between recorded gradients and applied ones, and what rounding leaves of it.

Gradients of biases that are rounding alone, as those of attention's keys and of what stands before a BatchNorm.

Their terms cancel whatever the data are, and what is left is what the last bits of a sum happen to be. A rule that
scales gradients makes full steps of it all the same. No slot can be told to have brought any of it: it is no slot's
part.

    |g| <= R sum_t |c delta_t|     and     |g - c sum_t delta_t| <= R sum_t |c delta_t|          R: rounding of a sum

g: an entry of the gradient as the optimizer gets it. Shapes: E recorded entries (parameters.py).

The gradient factor of parameters whose products the training rounded to half precision, from the watched entries.

    p.grad  =  c_s * (sum over copies of the weight of their rounded products)        on the entries

Numbers can be rounded as the training rounded them; what is seen along directions cannot. So directions still show
whether the slots explain the whole gradient but for what rounding accounts for, and the entries to how many digits.

Measures c_s, the scalar that clipping, AMP or averaging put between the recorded gradients and those applied.

    p.grad R u  =  c_s * (sum over slots of delta_t (x_t R)) u         u: a direction, new at every update

Shapes: P numbers over all parameters along all directions.

Two vectors that are parallel along directions nobody could know beforehand prove that the recorded slots explain the
whole gradient; their ratio is c_s. The slots are projected along the fixed R of parameters.py, once, for the
watch as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from dualform.record.audit.parameters import RecordedEntries, RecordedParameter, RecordedParameters
from dualform.record.audit.pending import StepGradient
from dualform.record.projection import DIRECTIONS, Doubles, Parts
from dualform.rules.half_precision import HalfType
from dualform.store.batch import TOLERANCE, RoundingGradient

ROUNDING = 16 * float(np.finfo(np.float32).eps)
"""Rounding error of a float32 sum, as a multiple of the sum of its terms' magnitudes."""
_LOOSE = ROUNDING / TOLERANCE
"""A gradient that is no larger, of the same multiple, may be rounding to a part in TOLERANCE: so may be its factor."""
_LARGEST = 8
"""How many parameters of other layers are looked at for a factor."""
_FEW = 8
"""A weight with fewer outputs is compared along all directions: one number alone is parallel to any other."""
_AS_GOOD = 1.5
"""Residuals within this factor of the least are as good: the gradient's own rounding decides between them."""
_FINE = 2.0**-23
"""Rounding of float32."""
_SEED = 2
_NOISE = 1e-6
"""Residuals below this are rounding of float32."""


@dataclass(frozen=True)
class Gradient:
    """The gradients that an update applies, as the slots tell them."""

    first_step: int | None
    """The first step whose slots they hold; None where there are none."""
    sums: Doubles
    """float64[P], before the factor."""
    bounds: Doubles
    """float64[parameters]: on the magnitudes that were summed."""
    factors: Doubles
    """float64[parameters]: c; NaN where the parameter has no gradient, so that the optimizer skips it."""
    residuals: Doubles
    """float64[parameters]: relative share of the gradient that the slots do not explain."""
    explained: NDArray[np.bool_]
    """bool[parameters]."""
    applied: Doubles
    """float64[P]: the gradients themselves."""

    def left(self, index: int, parameter: RecordedParameter) -> tuple[float, float]:
        """The length of what the slots do not explain of a parameter's gradient, and the gradient's.

        Of all directions, not of the one that residuals were measured along: that one may be all but at right angles to
        a gradient whose rows are alike, and what rounding left then looks large beside what remained of it.
        """
        span = slice(parameter.start, parameter.stop)
        rest = self.applied[span] - self.factors[index] * self.sums[span]
        return float(np.linalg.norm(rest)), float(np.linalg.norm(self.applied[span]))

    def rounding_explains(self, index: int, roundoff: float, parameter: RecordedParameter) -> bool:
        """Whether a parameter's gradient was computed so coarsely that rounding accounts for what the slots do not."""
        if roundoff <= _FINE:
            return False
        left, length = self.left(index, parameter)
        return left <= roundoff * (length + abs(float(self.factors[index])) * float(self.bounds[index]))


@dataclass(frozen=True)
class _Fit:
    """Each float64[parameters]."""

    factors: Doubles
    residuals: Doubles
    error: float
    """Share of all gradients together that is not explained."""


class GradientFactors:
    """Holds the gradients that an update applies against those that the slots make."""

    def __init__(self, parameters: RecordedParameters, generator: np.random.Generator, updates: int = 0) -> None:
        """`updates`: how many were measured already, before the training was resumed."""
        self._parameters = parameters
        self.updates = updates
        """How many were measured."""
        self._parts = Parts(
            [parameter.stop - parameter.start for parameter in parameters], list(map(_turned, parameters))
        )
        self._single = _single_numbers(parameters)
        """A parameter of one number -> the one whose factor it must have: one number is parallel to any other."""
        self._mates = _mates(parameters)
        """Of each parameter those whose factor it has where its gradient may be rounding alone, the best first."""
        self._along = generator.standard_normal(DIRECTIONS)
        if updates:
            self._along = _direction(updates)

    def renew(self) -> None:
        """Another direction for the next update: one of its number alone, so that a resumed training has the same."""
        self.updates += 1
        self._along = _direction(self.updates)

    def measure(
        self, pending: Sequence[StepGradient], trained: frozenset[int], seen: Doubles | None = None
    ) -> Gradient:
        """Compare the gradients as they stand with what is pending.

        `trained` are the ids of the parameters that the optimizer updates; `seen`: as `see` has it, where it was added
        up over processes. Where some pending steps' gradients were zeroed before an update used them, the others are
        taken: those that leave the least unexplained.
        """
        applied, present = self._parted(self.see(trained) if seen is None else seen)
        start, fit = self._best_start(pending, applied, present)
        used = pending[start:]
        return Gradient(
            first_step=used[0].step if used else None,
            sums=used[0].sums if len(used) == 1 else sum((p.sums for p in used), np.zeros(self._parameters.size)),
            bounds=sum((p.bounds for p in used), np.zeros(len(self._parameters))),
            factors=np.where(present, fit.factors, np.nan),
            residuals=fit.residuals,
            explained=fit.residuals <= TOLERANCE,
            applied=applied,
        )

    def start(self, pending: Sequence[StepGradient], trained: frozenset[int], seen: Doubles | None = None) -> int:
        """The index of the first of what is pending whose gradient is still there; of all, if there is none at all."""
        applied, present = self._parted(self.see(trained) if seen is None else seen)
        if not applied.any():
            return 0
        start, _ = self._best_start(pending, applied, present)
        while start and not pending[start - 1].sums.any():  # it brought nothing, and so nothing of it is gone
            start -= 1
        return start

    def see(self, trained: frozenset[int]) -> Doubles:
        """float64[P + parameters]: the gradients as they stand, and 1 for each that there is; of those that this
        process holds parts of, its rows.
        """
        grads = [p.tensor.grad if id(p.tensor) in trained and not p.lost else None for p in self._parameters]
        return np.concatenate([self._parameters.project(grads), [float(grad is not None) for grad in grads]])

    def _parted(self, seen: Doubles) -> tuple[Doubles, NDArray[np.bool_]]:
        """float64[P] and bool[parameters]: the gradients, and whether there are any."""
        applied, present = np.split(seen, [self._parameters.size])
        return applied, present > 0

    def _best_start(
        self, pending: Sequence[StepGradient], applied: Doubles, present: NDArray[np.bool_]
    ) -> tuple[int, _Fit]:
        """The index into `pending` from which on the steps explain the gradients best.

        Of several that do so equally well, as those of a batch that comes again and again, the latest before which the
        gradients were gone; else the earliest.
        """
        recorded, bounds = np.zeros(len(applied)), np.zeros(len(present))
        if not pending:
            return 0, self._compare(applied, recorded, bounds, present)
        if len(pending) == 1:
            return 0, self._compare(applied, pending[0].sums, pending[0].bounds, present)
        fits = list[_Fit]()
        for own in reversed(pending):
            recorded, bounds = recorded + own.sums, bounds + own.bounds
            fits.insert(0, self._compare(applied, recorded, bounds, present))
        least = min(fit.error for fit in fits)
        equal = [i for i, fit in enumerate(fits) if fit.error <= max(_NOISE, _AS_GOOD * least)]
        start = max((i for i in equal if pending[i].fresh), default=equal[0])
        return start, fits[start]

    def _compare(self, applied: Doubles, recorded: Doubles, bounds: Doubles, present: NDArray[np.bool_]) -> _Fit:
        """Of float64[P]. In plain numbers: most networks have few parameters, and arrays of few numbers are slow."""
        compared = self._parts.compare(applied, recorded, self._along)
        fits = list(map(_fit, compared, bounds.tolist()))
        loose = list(map(_is_loose, compared, bounds.tolist()))
        if True in loose:
            self._hold_loose(fits, loose, applied, recorded, bounds, present)
        for index, mate in self._single.items():
            if present[index] and present[mate]:
                part = slice(self._parameters[index].start, self._parameters[index].stop)
                fits[index] = _held_to(fits[mate][0], applied[part], recorded[part], float(bounds[index]))
        residuals = [residual if there else 0.0 for (_, residual), there in zip(fits, present.tolist(), strict=True)]
        error = (sum([residual * residual for residual in residuals]) / max(1, int(present.sum()))) ** 0.5
        return _Fit(np.array([factor for factor, _ in fits]), np.array(residuals), error)

    def _hold_loose(
        self,
        fits: list[tuple[float, float]],
        loose: Sequence[bool],
        applied: Doubles,
        recorded: Doubles,
        bounds: Doubles,
        present: NDArray[np.bool_],
    ) -> None:
        """A sum that cancels, as the gradient of a bias before a BatchNorm, is rounding, and so is a factor fitted to
        it: it has that of another parameter wherever that one explains it as well.
        """
        there = present.tolist()
        firm = [on and not own and fit[1] <= TOLERANCE for fit, own, on in zip(fits, loose, there, strict=True)]
        for index in [i for i, own in enumerate(loose) if own and there[i]]:
            mate = next((other for other in self._mates[index] if firm[other]), None)
            if mate is None:
                continue
            part = slice(self._parameters[index].start, self._parameters[index].stop)
            held = _held_to(fits[mate][0], applied[part], recorded[part], float(bounds[index]))
            fits[index] = held if held[1] <= TOLERANCE else fits[index]


def _direction(number: int) -> Doubles:
    return np.random.default_rng([_SEED, number]).standard_normal(DIRECTIONS)


def _fit(compared: Sequence[float], bound: float) -> tuple[float, float]:
    """Factor and residual of one parameter; 1 and 1 where one of them is not finite."""
    factor, size, left = compared
    # What rounding can account for is no gap, however small the gradient came out.
    allowed = sqrt(size) + _LOOSE * abs(factor) * bound
    residual = (sqrt(left) / allowed if allowed else inf) if left > 0 else left
    return (factor, residual) if isfinite(factor) and isfinite(residual) else (1.0, 1.0)


def _is_loose(compared: Sequence[float], bound: float) -> bool:
    """Whether rounding may move the factor of one parameter by more than TOLERANCE."""
    factor, size, left = compared
    return bound > 0 and (size <= (_LOOSE * factor * bound) ** 2 or left > TOLERANCE * TOLERANCE * size)


def _held_to(factor: float, applied: Doubles, recorded: Doubles, bound: float) -> tuple[float, float]:
    """As _fit, with a factor that is known from elsewhere."""
    with np.errstate(all="ignore"):
        left = float(np.square(applied - factor * recorded).sum())
        return _fit((factor, float(np.square(applied).sum()), left), bound)


def _mates(parameters: RecordedParameters) -> list[list[int]]:
    """Of each parameter others of more than one number: those of its layers, then the largest of all."""
    sizes = [parameter.numbers for parameter in parameters]
    many = sorted((i for i, size in enumerate(sizes) if size > 1), key=lambda i: -sizes[i])
    of_layer: dict[str, list[int]] = {}
    for index in many:
        for layer in parameters[index].layers:
            of_layer.setdefault(layer, []).append(index)
    own = [[i for layer in parameter.layers for i in of_layer.get(layer, ())] for parameter in parameters]
    return [[i for i in dict.fromkeys([*near, *many[:_LARGEST]]) if i != index] for index, near in enumerate(own)]


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
            factor, residual = _fit_of_entries(applied, recorded[self._entries.spans[index]], self._halves.get(index))
            if residual >= residuals[index]:
                continue
            factors[index] = factor
            if fitted.rounding_explains(index, roundoff[index], parameter):
                residuals[index] = residual
        return replace(fitted, residuals=residuals, explained=residuals <= TOLERANCE)


@np.errstate(all="ignore")
def _fit_of_entries(applied: Doubles, recorded: Doubles, half: HalfType | None) -> tuple[float, float]:
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
    biases = [i for i, own in enumerate(parameters) if own.directions is None and np.isfinite(factors[i])]
    if not biases:
        return {}
    starts = np.cumsum([0, *(parameters[i].numbers for i in biases)])
    own = np.concatenate([gradient.applied[parameters[i].start : parameters[i].stop] for i in biases]) * unscaling
    made, size = (np.concatenate([vector[entries.spans[i]] for i in biases]) for vector in (sums, magnitudes))
    factor = np.repeat(factors[biases], np.diff(starts))
    bound = ROUNDING * np.abs(factor) * size
    rounded = (bound > 0) & (np.abs(own) <= bound) & (np.abs(own - factor * made) <= bound)
    found = {}
    for index, start, stop in zip(biases, starts[:-1], starts[1:], strict=True):
        rows = np.flatnonzero(rounded[start:stop])
        if len(rows):
            found[index] = RoundingGradient(rows.astype(np.int32), own[start:stop][rows])
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
