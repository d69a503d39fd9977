"""The watch: measures, while a training runs, how far its weights are from what the record makes of them.

Shapes: P numbers over all parameters, projected (recorded_parameters.py).

With fixed directions R, the update rule is run on W R, from the slots' own sums of delta (x R) alone. Whenever the
weights are looked at (before each update, where they changed without one, and at the end), two distances are logged:

    one step      || W R - the rule's next state from the W R seen last ||       dates a jump
    accumulated   || W R - the rule's states since W_0 R ||                       how exact the record is by then

Beside them stands what rounding accounts for. Weights of precision u (2^-24 for float32) are rounded at each update, by
at most u |w|, and by |w| u / sqrt(3) in the mean square where no side is favoured; errors of many updates add up as
squares, so the floor is the root of the sum over updates of u^2 ||W||^2 / 3. Updates that are small beside the weights'
last bit are rounded to the same side again and again: their errors add up plainly, which the floor does not cover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.record.gradient_factor import Gradient
from dualform.record.projection import Doubles, Parts
from dualform.record.recorded_parameters import RecordedParameters
from dualform.rules import Settings, State, UpdateRule
from dualform.store.batch import WatchLog

_FLOAT32 = float(np.finfo(np.float32).eps) / 2
_FLOAT64 = float(np.finfo(np.float64).eps)
"""The rounding of the watch's own sums."""


@dataclass(eq=False)
class _States:
    """Two states of all parameters, which are advanced together: as rebuilt since the start (0), and as expected from
    the weights seen last (1).
    """

    weight: Doubles
    """float64[2, P]."""
    buffer: Doubles
    """float64[2, P]."""
    buffered: NDArray[np.bool_]
    """bool[parameters]: which have a buffer."""


class Watch:
    """Holds the weights of a training against the record. Used on the training's own thread."""

    def __init__(
        self,
        parameters: RecordedParameters,
        rule: UpdateRule,
        initial: Mapping[str, NDArray[Any]],
        buffers: Mapping[str, NDArray[Any]],
    ) -> None:
        """`initial`: the parameters before the first step, by name; `buffers`: the optimizer's by then."""
        self._parameters, self._rule = parameters, rule
        self._start = parameters.project_arrays(initial)
        buffered = np.array([parameter.parameter in buffers for parameter in parameters])
        buffer = parameters.project_arrays(buffers)
        self._states = _States(np.stack([self._start] * 2), np.stack([buffer] * 2), buffered)
        self._parts = Parts([parameter.stop - parameter.start for parameter in parameters], [False] * len(parameters))
        self._tensors = [parameter.tensor for parameter in parameters]
        self._rounding = [_unit_roundoff(tensor.dtype) for tensor in self._tensors]
        """u of each parameter; the floor takes that of float32 at most, for what half precision loses is real."""
        self._floor = [0.0] * len(parameters)
        """By parameter: squares, added up."""
        self._due = [False] * len(parameters)
        """Which parameters were updated since the floor was added to."""
        self._gradient_noise = np.zeros(len(parameters))
        self._noise_buffer = np.zeros(len(parameters))
        self._alike: list[tuple[bool, int, bool]] = []
        self._runs: list[tuple[int, int]] = []
        self._versions = self._now()

    def changed(self) -> NDArray[np.bool_] | None:
        """bool[parameters]: which weights were written to since they were last looked at or updated; None for none."""
        now = self._now()
        if now == self._versions:
            return None
        return np.array([version != before for version, before in zip(now, self._versions, strict=True)])

    def follow(self, index: int) -> None:
        """A parameter's tensor is another one, which counts as written to."""
        self._tensors[index] = self._parameters[index].tensor
        self._versions[index] = -1

    def updated(self) -> None:
        """The optimizer has written the weights."""
        self._versions = self._now()

    def observe(self, step: int, chosen: NDArray[np.bool_] | None = None) -> list[WatchLog]:
        """Look at the weights, or at some of them, as they are after recorded step `step` (-1: before the first)."""
        weights = self._parameters.weights(chosen)
        if chosen is not None:
            weights = np.where(np.repeat(chosen, np.diff(self._parts.starts)), weights, self._states.weight[1])
        squares = self._parts.distances(weights, self._states.weight, self._start)
        noises = self._gradient_noise.tolist()
        rows = [self._log(step, index, *row) for index, row in enumerate(zip(squares, noises, strict=True))]
        self._due = [False] * len(rows)
        self._versions = self._now()
        if step < 0:
            return []
        return rows if chosen is None else [row for row, there in zip(rows, chosen, strict=True) if there]

    def _log(self, step: int, index: int, squares: Sequence[float], noise: float) -> WatchLog:
        """Of one parameter, from squared norms of what was projected, as Parts.distances gives them."""
        scale, rounding = self._parameters.scales[index], self._rounding[index]
        if self._due[index]:
            self._floor[index] += min(rounding, _FLOAT32) ** 2 / 3 * scale * scale * squares[4]
        one_step, accumulated, way, size = [scale * sqrt(square) for square in squares[:4]]
        floor = sqrt(self._floor[index] + (_FLOAT64 * size) * (_FLOAT64 * size))
        noise = sqrt((rounding * size) * (rounding * size) / 3 + noise * noise)
        return WatchLog(step, self._parameters[index].name, one_step, accumulated, way, floor, noise)

    @np.errstate(all="ignore")  # a training that blew up goes on, and its record is off
    def advance(
        self, gradient: Gradient, factors: Doubles, groups: Sequence[tuple[int, Settings]], roundoff: Doubles
    ) -> None:
        """The optimizer is about to apply a gradient.

        `factors` float64[parameters], NaN where it skips one; `groups`: each parameter's group and its settings;
        `roundoff` float64[parameters]: relative rounding of what the gradients were computed in.
        """
        skipped = np.isnan(factors)
        known = np.where(skipped, 0.0, factors)
        applied = gradient.sums.copy()
        for parameter, factor in zip(self._parameters, known.tolist(), strict=True):
            applied[parameter.start : parameter.stop] *= factor
        noise = np.abs(known) * gradient.scales * roundoff
        self._gradient_noise = np.zeros(len(noise))
        for first, last in self._runs_of(skipped, groups):
            self._carry_noise(slice(first, last + 1), noise, groups[first][1])
            self._advance(first, last, applied, groups[first][1])
        self._due = (~skipped).tolist()

    def _runs_of(self, skipped: NDArray[np.bool_], groups: Sequence[tuple[int, Settings]]) -> Sequence[tuple[int, int]]:
        """First and last index of neighbours that are updated alike."""
        numbers = [number for number, _ in groups]
        alike = list(zip(skipped.tolist(), numbers, self._states.buffered.tolist(), strict=True))
        if alike != self._alike:
            runs = [list(run) for _, run in groupby(range(len(alike)), key=alike.__getitem__)]
            self._runs = [(run[0], run[-1]) for run in runs if not skipped[run[0]]]
            self._alike = alike
        return self._runs

    def _advance(self, first: int, last: int, applied: Doubles, settings: Settings) -> None:
        """Take both states of the parameters from `first` to `last` on by one update."""
        states, numbers = self._states, slice(self._parameters[first].start, self._parameters[last].stop)
        buffer = states.buffer[:, numbers] if states.buffered[first] else None
        after = self._rule.advance(State(states.weight[:, numbers], buffer), applied[numbers], settings)
        states.weight = _written(states.weight, numbers, after.weight)
        if after.buffer is not None:
            states.buffer = _written(states.buffer, numbers, after.buffer)
            states.buffered[first : last + 1] = True

    def _carry_noise(self, run: slice, noise: Doubles, settings: Settings) -> None:
        """What an error in this gradient, and those in the buffer, do to the weights."""
        zero = np.zeros(run.stop - run.start)
        kept = {**settings, "weight_decay": 0.0, "maximize": False}
        state = self._rule.advance(State(zero, self._noise_buffer[run]), noise[run], kept)
        self._gradient_noise[run] = np.abs(state.weight)
        if state.buffer is not None:
            self._noise_buffer[run] = np.abs(state.buffer)

    def _now(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]


def _written(vectors: Doubles, numbers: slice, part: Doubles) -> Doubles:
    """float64[2, P] with a part of it replaced: the part itself where that is everything."""
    if part.shape == vectors.shape:
        return part
    vectors[:, numbers] = part
    return vectors


def roundoff(dtype: torch.dtype | None) -> float:
    """Relative rounding error of products computed in a type: for float32, of what torch may use in its place."""
    if dtype in (None, torch.float32):
        return {"highest": 2.0**-23, "high": 2.0**-10}.get(torch.get_float32_matmul_precision(), 2.0**-8)
    assert dtype is not None
    return float(torch.finfo(dtype).eps)


def _unit_roundoff(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number."""
    return float(torch.finfo(dtype).eps) / 2
