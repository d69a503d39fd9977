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
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.record.gradient_factor import Gradient
from dualform.record.projection import Doubles
from dualform.record.recorded_parameters import RecordedParameters
from dualform.rules import Settings, State, UpdateRule
from dualform.store.batch import WatchLog

_FLOAT64 = float(np.finfo(np.float64).eps)
"""The rounding of the watch's own sums."""


@dataclass(frozen=True, eq=False)
class _States:
    """State of all parameters: float64[P] and bool[parameters]."""

    weight: Doubles
    buffer: Doubles
    buffered: NDArray[np.bool_]
    """Which parameters have a buffer."""


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
        buffered = np.array([parameter.name in buffers for parameter in parameters])
        self._rebuilt = _States(self._start, parameters.project_arrays(buffers), buffered)
        self._expected = self._rebuilt
        self._rounding = np.array([_unit_roundoff(parameter.tensor.dtype) for parameter in parameters])
        self._floor = np.zeros(len(parameters))
        """float64[parameters]: squares, added up."""
        self._gradient_noise = np.zeros(len(parameters))
        self._noise_buffer = np.zeros(len(parameters))
        self._versions = self._now()

    def changed(self) -> NDArray[np.bool_]:
        """bool[parameters]: which weights were written to since they were last looked at or updated."""
        return np.array([now != before for now, before in zip(self._now(), self._versions, strict=True)])

    def updated(self) -> None:
        """The optimizer has written the weights."""
        self._versions = self._now()

    @np.errstate(all="ignore")  # a training that blew up goes on, and its record is off
    def observe(self, step: int, chosen: NDArray[np.bool_] | None = None) -> list[WatchLog]:
        """Look at the weights, or at some of them, as they are after recorded step `step` (-1: before the first)."""
        parameters = self._parameters
        weights = parameters.project(chosen=chosen)
        if chosen is not None:
            weights = np.where(np.repeat(chosen, parameters.lengths), weights, self._expected.weight)
        one_step = parameters.norms(weights - self._expected.weight)
        accumulated = parameters.norms(weights - self._rebuilt.weight)
        way, size = parameters.norms(weights - self._start), parameters.norms(weights)
        noise = np.sqrt(np.square(self._rounding * size) / 3 + np.square(self._gradient_noise))
        floor = np.sqrt(self._floor + np.square(_FLOAT64 * size))
        self._expected = replace(self._expected, weight=weights)
        self._versions = self._now()
        if step < 0:
            return []
        columns = zip(one_step, accumulated, way, floor, noise, strict=True)
        return [
            WatchLog(step, parameter.name, *map(float, row))
            for index, (parameter, row) in enumerate(zip(parameters, columns, strict=True))
            if chosen is None or chosen[index]
        ]

    @np.errstate(all="ignore")
    def advance(
        self, gradient: Gradient, factors: Doubles, groups: Sequence[tuple[int, Settings]], roundoff: Doubles
    ) -> None:
        """The optimizer is about to apply a gradient.

        `factors` float64[parameters], NaN where it skips one; `groups`: each parameter's group and its settings;
        `roundoff` float64[parameters]: relative rounding of what the gradients were computed in.
        """
        applied = gradient.sums * np.repeat(np.nan_to_num(factors), self._parameters.lengths)
        noise = np.abs(np.nan_to_num(factors)) * gradient.scales * roundoff
        self._gradient_noise = np.zeros(len(noise))
        runs = self._runs(factors, groups)
        for first, last in runs:
            self._carry_noise(slice(first, last + 1), noise, groups[first][1])
        self._rebuilt = self._advanced(self._rebuilt, runs, applied, groups)
        self._expected = self._advanced(self._expected, runs, applied, groups)
        size = self._parameters.norms(self._expected.weight)
        self._floor = np.where(np.isnan(factors), self._floor, self._floor + np.square(self._rounding * size) / 3)

    def _runs(self, factors: Doubles, groups: Sequence[tuple[int, Settings]]) -> list[tuple[int, int]]:
        """First and last index of neighbours that are updated alike."""
        alike = [(groups[i][0], bool(self._rebuilt.buffered[i])) for i in range(len(groups))]
        updated = [(not np.isnan(factor), *key) for factor, key in zip(factors, alike, strict=True)]
        runs = [list(run) for _, run in groupby(range(len(updated)), key=updated.__getitem__)]
        return [(run[0], run[-1]) for run in runs if updated[run[0]][0]]

    def _advanced(
        self, of: _States, runs: Sequence[tuple[int, int]], applied: Doubles, groups: Sequence[tuple[int, Settings]]
    ) -> _States:
        """The next state; parameters of no run stay as they are."""
        found = _States(of.weight.copy(), of.buffer.copy(), of.buffered.copy())
        for first, last in runs:
            numbers = slice(self._parameters.starts[first], self._parameters[last].stop)
            buffer = of.buffer[numbers] if of.buffered[first] else None
            state = self._rule.advance(State(of.weight[numbers], buffer), applied[numbers], groups[first][1])
            found.weight[numbers] = state.weight
            if state.buffer is not None:
                found.buffer[numbers], found.buffered[first : last + 1] = state.buffer, True
        return found

    def _carry_noise(self, run: slice, noise: Doubles, settings: Settings) -> None:
        """What an error in this gradient, and those in the buffer, do to the weights."""
        zero = np.zeros(run.stop - run.start)
        kept = {**settings, "weight_decay": 0.0, "maximize": False}
        state = self._rule.advance(State(zero, self._noise_buffer[run]), noise[run], kept)
        self._gradient_noise[run] = np.abs(state.weight)
        if state.buffer is not None:
            self._noise_buffer[run] = np.abs(state.buffer)

    def _now(self) -> list[int]:
        return [parameter.tensor._version for parameter in self._parameters]


def roundoff(dtype: torch.dtype | None) -> float:
    """Relative rounding error of products computed in a type: for float32, of what torch may use in its place."""
    if dtype in (None, torch.float32):
        return {"highest": 2.0**-23, "high": 2.0**-10}.get(torch.get_float32_matmul_precision(), 2.0**-8)
    assert dtype is not None
    return float(torch.finfo(dtype).eps)


def _unit_roundoff(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number."""
    return float(torch.finfo(dtype).eps) / 2
