"""What cannot be recorded, or makes a layer inexact: refused at first, reported once for each kind later."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import RecordingError
from dualform.record.audit.drift import roundoff
from dualform.record.audit.parameters import RecordedParameters
from dualform.record.audit.pending import StepGradient
from dualform.record.audit.scale import Gradient
from dualform.record.layout import HALVED
from dualform.record.ranks import held
from dualform.rules.half_precision import lost
from dualform.store.batch import UNEXPLAINED, Defect


class Defects:
    """What a record does not tell of the training: refused until the first step is over, for then it can still be put
    right; afterwards a defect of the layers, for recording ends no training.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Steps recorded so far."""
        self.begun = False
        """Whether the first step is over, so that there is a memory."""
        self.slotted: set[str] = set()
        """Layers that have slots."""
        self.missing: dict[str, str] = {}
        """Layer -> why it had no slots when it was last called."""
        self._kinds = set[tuple[str, str]]()
        """Layers and kinds of their defects that were noted."""
        self._found: list[Defect] = []

    @property
    def last(self) -> int:
        """The last recorded step; 0 before there is one."""
        return max(self.steps - 1, 0)

    def refuse(self, what: str, hint: str) -> None:
        """Raises RecordingError until the first step is over."""
        if not self.begun:
            raise RecordingError(f"{what}.", hint=hint)

    def note(self, step: int, layers: Iterable[str], kind: str, reason: str) -> None:
        """Why those of some layers that have slots may be inexact from a step on; once for each layer and kind."""
        for layer in layers:
            if layer in self.slotted and (layer, kind) not in self._kinds:
                self._kinds.add((layer, kind))
                self._found.append(Defect(step, layer, reason))

    def note_or_miss(self, step: int, reasons: Mapping[str, str], kind: str) -> None:
        """As `note`, of each layer for a reason of its own; where it has no slots, that is why."""
        for layer, reason in reasons.items():
            self.note(step, [layer], kind, reason)
            if layer not in self.slotted:
                self.missing[layer] = reason

    def noted(self, layers: Iterable[str], kind: str) -> bool:
        """Whether all of some layers that have slots were noted already."""
        return all((layer, kind) in self._kinds for layer in layers if layer in self.slotted)

    def take(self) -> list[Defect]:
        """What no batch has taken along yet."""
        taken, self._found = self._found, []
        return taken


def unexplained_gradients(
    parameters: RecordedParameters,
    indices: Iterable[int],
    gradient: Gradient,
    used: Sequence[StepGradient],
    dtypes: Mapping[str, torch.dtype],
    step: int,
) -> Iterator[tuple[int, str]]:
    """Of the parameters of these indices, those of whose gradient more is missing than rounding may account for, each
    with what is said of it. `used`: the steps that the update used; `dtypes`: by layer, what its gradients were
    computed in at this step.
    """
    for index in indices:
        if gradient.explained[index]:
            continue
        parameter, residual = parameters[index], float(gradient.residuals[index])
        coarsest = max((dtypes.get(layer) for layer in parameter.layers), key=roundoff)
        rounded = 0.0
        if coarsest in HALVED:
            span = slice(parameter.start, parameter.stop)
            rounded = lost(HALVED[coarsest], [(own.sums[span], float(own.terms[index])) for own in used])
            left, length = gradient.left(index, parameter)
            residual = min(residual, left / length if length else residual)
            if residual <= rounded:  # what else may be missing cannot be told from rounding
                continue
        yield index, _why(residual, parameter.name, step, coarsest, rounded, _clipped(parameters, index))


def _largest(tensor: Tensor) -> tuple[float, int]:
    """The largest magnitude in a gradient, and how many of its entries have it; zeros where there is none."""
    if tensor.grad is None or not (sizes := held(tensor.grad.detach()).abs()).numel():
        return 0.0, 0
    most = sizes.max()
    return float(most), int((sizes == most).sum())


def _clipped(parameters: RecordedParameters, index: int) -> str:
    """What tells that a gradient was clipped by value, empty where nothing does: its largest magnitude is that of more
    than two entries of this and other gradients. Two alone are common, as in the two rows of a binary head.
    """
    bound, _ = _largest(parameters[index].tensor)
    every = {id(own.tensor): own.tensor for own in parameters}.values() if bound else ()
    count = sum(found for most, found in map(_largest, every) if most == bound)
    if count <= 2:
        return ""
    return f"it looks clipped by value, as {count} entries of gradients are {bound:.3g} or its negative"


def _why(residual: float, name: str, step: int, dtype: torch.dtype | None, rounded: float, clipped: str) -> str:
    """What may be the reason of a residual; `dtype`: of what the gradient was computed from, None for nothing seen;
    `rounded`: the share that rounding to a type of half precision accounts for; `clipped`: what tells of clipping.
    """
    what = f"{residual:.1e} of the gradient of {name} at step {step} {UNEXPLAINED}"
    if clipped and dtype is not None:
        return f"{what}: {clipped}; clip by norm, which is recorded"
    elsewhere = "the weight is used elsewhere too, a path was not recorded, or the gradient was edited"
    if rounded:
        half = str(dtype).removeprefix("torch.")
        return f"{what}, of which rounding to {half} makes {rounded:.1e} unless sums cancel: {elsewhere}"
    if dtype is None:
        return (
            f"{what}: no call of the layer was seen, as where its weight is used elsewhere, or where compiled code "
            "runs from a CUDA graph or was made before recording began"
        )
    return f"{what}: {elsewhere}"


_UPDATES = 8
"""After which a factor counts as lasting."""
_APART, _SAME = 0.05, 0.01
"""Relative differences of factors: those of two layers, and of one layer from update to update."""


class LoneFactors:
    """Warns of layers whose weight has, update after update, a gradient of the same multiple of what their slots make
    of it, while that of the other layers has another. Clipping, scaling and averaging give all layers one factor, or
    each a new one at every update. A lasting factor of one layer is that of its error signals: what scaled its output
    before the recorder saw it makes them too small.
    """

    def __init__(self, parameters: RecordedParameters) -> None:
        self._parameters = parameters
        self._weights = np.array([parameter.directions is not None for parameter in parameters], bool)
        self._ratios = np.zeros(len(self._weights))
        """To the factor of the others, at the first of the last so many updates at which it was the same."""
        self._lasted = np.zeros(len(self._weights), int)
        self._told: set[str] = set()

    def look(self, gradient: Gradient) -> None:
        """An update is made of these gradients."""
        with np.errstate(invalid="ignore"):
            known = self._weights & gradient.explained & (gradient.factors > 0)
        common = _common(gradient.factors[known])
        if common is None:
            self._lasted[:] = 0
            return
        ratios = np.where(known, gradient.factors / common, 0.0)
        same = known & (abs(ratios - self._ratios) <= _SAME * self._ratios)
        self._lasted = np.where(same, self._lasted + 1, known.astype(int))
        self._ratios = np.where(same, self._ratios, ratios)
        for index in np.flatnonzero((self._lasted >= _UPDATES) & (abs(self._ratios - 1.0) > _APART)):
            for layer in {*self._parameters[index].layers} - self._told:
                self._told.add(layer)
                warnings.warn(
                    f"the gradient of layer {layer!r} was {self._ratios[index]:.3g} times the sum over its "
                    f"slots at each of {_UPDATES} updates, unlike that of other layers. Unless you scale this "
                    "gradient, something changes the layer's output before the recorder sees it, and its error "
                    "signals are wrong by that factor.",
                    RuntimeWarning,
                    stacklevel=2,
                )


def _common(factors: NDArray[np.float64]) -> float | None:
    """The factor that most have; 1 if only some have that; None if neither is so."""
    if len(factors) < 2:
        return None
    middle = float(np.median(factors))
    if (abs(factors - middle) <= _SAME * middle).sum() * 2 > len(factors):
        return middle
    return 1.0 if (abs(factors - 1.0) <= _SAME).any() else None
