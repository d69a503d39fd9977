"""Measures c_s, the scalar that clipping, AMP or averaging put between the recorded gradients and those applied.

    p.grad V  =  c_s * sum over slots of delta_t (x_t V)         V: random directions, new at every update

Shapes: n slots, d_in and d_out of a layer, k directions, P numbers over all parameters.

Two vectors that are parallel along directions nobody could know beforehand prove that the recorded slots explain the
whole gradient; their ratio is c_s. Where they are not parallel, the layer's record is not the whole story.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.record.projection import Doubles, fold, project
from dualform.record.taps import Tap
from dualform.store.batch import TOLERANCE
from dualform.store.layer import Parameter

_ROUNDING = 16 * float(np.finfo(np.float32).eps)
"""Rounding error of a float32 sum, as a multiple of the sum of its terms' magnitudes."""
_FEW = 8
"""A layer with fewer outputs is compared along this many directions: one number alone is parallel to any other."""


@dataclass(frozen=True)
class _Segment:
    """One parameter's place in the vectors of length P."""

    tap: Tap
    place: Parameter
    parameter: Tensor
    is_bias: bool
    start: int
    stop: int


@dataclass(frozen=True)
class Projection:
    """What the slots of one step say the gradient is."""

    step: int
    sums: Doubles
    """float64[P]."""
    scales: Doubles
    """float64[parameters]: bound on the magnitudes that were summed, for the rounding error."""


@dataclass(frozen=True)
class Measure:
    """The outcome for one parameter at one update."""

    name: str
    parameter: int
    """id of the parameter."""
    layer: str
    factor: float | None
    """None where it has no gradient, so that the optimizer skips it."""
    residual: float
    explained: bool


class GradientFactors:
    """Collects the projections of recorded steps until an update uses them."""

    def __init__(self, taps: Sequence[Tap], seed: int = 0) -> None:
        # A generator of its own: the training's random numbers must come out as without the recorder.
        self._generator = np.random.default_rng(seed)
        self._taps = list(taps)
        self._directions = [_FEW if tap.d_out < _FEW else 1 for tap in taps]
        self._segments: list[_Segment] = []
        stop = 0
        for tap, k in zip(taps, self._directions, strict=True):
            for place, parameter in tap.parameters.items():
                is_bias = place.start == tap.d_in
                start, stop = stop, stop + tap.d_out * (1 if is_bias else k)
                self._segments.append(_Segment(tap, place, parameter, is_bias, start, stop))
        self._starts = np.array([segment.start for segment in self._segments])
        self._lengths = np.array([segment.stop - segment.start for segment in self._segments])
        self._total = stop
        self._along: dict[str, NDArray[np.float32]] = {}
        """By layer: float32[k, d_in]."""
        self.pending: list[Projection] = []
        self.renew()

    def renew(self) -> None:
        """Forget what is pending and draw new directions."""
        self.pending = []
        self._along = {
            tap.name: self._generator.standard_normal((k, tap.d_in), np.float32)
            for tap, k in zip(self._taps, self._directions, strict=True)
        }

    def forget(self, step: int) -> None:
        """Take a step's projection back."""
        self.pending = [projection for projection in self.pending if projection.step != step]

    def add(self, step: int, rows: Mapping[str, tuple[Tensor, Tensor]]) -> bool:
        """Project one step's slots: `rows` gives keys float32[n, d_in] and error signals float32[n, d_out] by layer.

        False where the outcome is not finite: there is NaN or infinity in them, or a number that overflows.
        """
        sums = np.zeros(self._total)
        scales = np.zeros(len(self._segments))
        summed, size = np.empty(0), 0.0
        with _full_precision():
            for index, segment in enumerate(self._segments):
                if segment.tap.name not in rows:
                    continue
                keys, errors = rows[segment.tap.name]
                if segment.is_bias:  # comes after a weight
                    part, width = summed, len(errors) ** 0.5
                else:
                    along = project(_columns(keys, segment.place), self._direction(segment))
                    part, summed, size = fold(errors, along)
                    width = float(np.sqrt(np.square(along).sum()))
                sums[segment.start : segment.stop] = part.reshape(-1)
                scales[index] = size * width
        projection = Projection(step, sums, scales)
        self.pending.append(projection)
        # A NaN times 0 is NaN, so every one of them arrives in the sums or in the norms.
        return bool(np.isfinite(projection.sums).all() and np.isfinite(scales).all())

    def measure(self, trained: frozenset[int], unscale: float = 1.0) -> tuple[int | None, list[Measure]]:
        """Compare the gradients as they stand with what is pending; returns the first step whose gradients they hold.

        `trained` are the ids of the parameters that the optimizer updates, `unscale` what it still multiplies
        gradients by. Where all pending steps together do not explain the gradients, but only the latest of them do
        (an update was skipped and its gradients zeroed), those are taken.
        """
        applied = np.zeros(self._total)
        present = []
        with _full_precision():
            for segment in self._segments:
                grad = segment.parameter.grad
                present.append(grad is not None and id(segment.parameter) in trained)
                if grad is None or not present[-1]:
                    continue
                if segment.is_bias:
                    part = grad.detach().double().cpu().numpy()
                else:
                    part = project(grad.detach(), self._direction(segment))
                applied[segment.start : segment.stop] = part.reshape(-1)
        start, (factors, residuals, explained) = self._best_start(applied, np.array(present))
        measures = [
            Measure(
                s.place.name,
                id(s.parameter),
                s.tap.name,
                float(factor) * unscale if there else None,
                float(residual),
                bool(fits),
            )
            for s, there, factor, residual, fits in zip(
                self._segments, present, factors, residuals, explained, strict=True
            )
        ]
        return (self.pending[start].step if self.pending else None), measures

    def _direction(self, segment: _Segment) -> NDArray[np.float32]:
        """float32[k, columns]: of one weight."""
        return np.ascontiguousarray(self._along[segment.tap.name][:, segment.place.start : segment.place.stop])

    def _best_start(self, applied: Doubles, present: NDArray[np.bool_]) -> tuple[int, tuple[Doubles, Doubles, Doubles]]:
        """The index into `pending` from which on most parameters are explained; the earliest of equals."""
        if not self.pending:
            return 0, self._compare(applied, np.zeros(self._total), np.zeros(len(present)), present)
        best: tuple[int, tuple[Doubles, Doubles, Doubles]] | None = None
        sums = np.sum([p.sums for p in self.pending], axis=0)
        scales = np.sum([p.scales for p in self.pending], axis=0)
        for start, projection in enumerate(self.pending):
            outcome = self._compare(applied, sums, scales, present)
            if best is None or outcome[2].sum() > best[1][2].sum():
                best = start, outcome
            if outcome[2].all():
                break
            sums, scales = sums - projection.sums, scales - projection.scales
        assert best is not None
        return best

    def _compare(
        self, applied: Doubles, recorded: Doubles, scales: Doubles, present: NDArray[np.bool_]
    ) -> tuple[Doubles, Doubles, Doubles]:
        """Factor, relative residual and whether it is explained (0 or 1), each float64[parameters]."""
        with np.errstate(all="ignore"):
            square = self._sum(recorded * recorded)
            size = np.sqrt(self._sum(applied * applied))
            factors = np.where(square > 0, self._sum(applied * recorded) / square, 1.0)
            off = applied - np.repeat(factors, self._lengths) * recorded
            left = np.sqrt(self._sum(off * off))
            # What rounding can account for is no gap, however small the gradient came out.
            residuals = left / (size + _ROUNDING / TOLERANCE * np.abs(factors) * scales)
            residuals = np.where(left > 0, residuals, 0.0)
        lost = ~np.isfinite(factors) | ~np.isfinite(residuals)
        factors, residuals = np.where(lost, 1.0, factors), np.where(lost, 1.0, residuals)
        residuals = np.where(present, residuals, 0.0)
        return factors, residuals, (residuals <= TOLERANCE).astype(np.float64)

    def _sum(self, products: Doubles) -> Doubles:
        sums: Doubles = np.add.reduceat(products, self._starts)
        return sums


def _columns(keys: Tensor, place: Parameter) -> Tensor:
    """The part of float32[n, d_in] that a weight is multiplied by."""
    return keys[:, place.start : place.stop].contiguous()


@contextmanager
def _full_precision() -> Iterator[None]:
    """No autograd, and none of the casts that an autocast around the training would do to these products."""
    with torch.no_grad(), ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
