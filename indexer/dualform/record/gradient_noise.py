"""What rounding of gradients may account for in the weights after one update.

Shapes: P numbers over all parameters, K states of them (watched_states.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.record.image import Image
from dualform.record.projection import Doubles
from dualform.record.watched_states import WatchedStates
from dualform.rules import Settings, State, UpdateRule


class GradientNoise(Protocol):
    """Taken along beside the watch's states."""

    def gradient(self, applied: Doubles, magnitudes: Doubles, known: Doubles, roundoff: Doubles) -> Doubles:
        """The gradient that the states get, float64[P] or float64[K, P].

        `applied` float64[P]; `magnitudes`: bound on the terms that were summed, by parameter or by number; `known`
        float64[parameters]: gradient factors; `roundoff` float64[parameters]: what the gradients were computed in.
        """

    def carry(self, run: slice, settings: Settings) -> None:
        """The parameters of `run` are updated alike."""

    def lengths(self) -> Sequence[float]:
        """By parameter, the norm after the update: of its numbers, scaled as Image.norm_factors says."""


class NormNoise:
    """For rules without a scale: they make of an error what they make of a gradient, so its norm is carried along."""

    def __init__(self, rule: UpdateRule, parameters: int) -> None:
        self._rule = rule
        self._own = np.zeros(parameters)
        self._carried = np.zeros(parameters)
        self._buffers = {kind: np.zeros(parameters) for kind in rule.buffers}

    def gradient(self, applied: Doubles, magnitudes: Doubles, known: Doubles, roundoff: Doubles) -> Doubles:
        self._own = np.abs(known) * magnitudes * roundoff
        self._carried = np.zeros(len(self._own))
        return applied

    def carry(self, run: slice, settings: Settings) -> None:
        kept = self._rule.error_settings(settings)
        buffers = {kind: own[run] for kind, own in self._buffers.items()}
        state = self._rule.advance(State(np.zeros(run.stop - run.start), buffers), self._own[run], kept)
        self._carried[run] = np.abs(state.weight)
        for kind, own in state.buffers.items():
            self._buffers[kind][run] = np.abs(own)

    def lengths(self) -> Sequence[float]:
        found: list[float] = self._carried.tolist()
        return found


class TwinNoise:
    """For rules with a scale: a twin of the expected state gets each gradient with an error of the size that rounding
    may have, and buffers that are rounded. How far one update takes the two apart estimates what rounding does.
    """

    def __init__(
        self, image: Image, states: WatchedStates, rounding: Sequence[float], generator: np.random.Generator
    ) -> None:
        """`rounding`: by parameter, u of the numbers that the optimizer keeps."""
        self._image, self._states, self._generator = image, states, generator
        lengths = [span.stop - span.start for span in image.spans]
        self._lengths = lengths
        self._starts = [span.start for span in image.spans]
        self._rounding = np.repeat(rounding, lengths)

    def gradient(self, applied: Doubles, magnitudes: Doubles, known: Doubles, roundoff: Doubles) -> Doubles:
        self._states.weight[2] = self._states.weight[1]  # both go on from the weights seen last
        error = np.repeat(np.abs(known) * roundoff, self._lengths) * magnitudes
        for own in self._states.buffers.values():
            own[2] *= 1.0 + self._rounding * self._generator.uniform(-1.0, 1.0, len(self._rounding))
        return np.stack([applied, applied, applied + error * self._signs()])

    def carry(self, run: slice, settings: Settings) -> None:
        """The states are advanced by the watch."""

    def lengths(self) -> Sequence[float]:
        apart = self._states.weight[2] - self._states.weight[1]
        squares = np.add.reduceat(apart * apart, self._starts)
        found: list[float] = (np.sqrt(squares) * self._image.norm_factors).tolist()
        return found

    def _signs(self) -> NDArray[np.float64]:
        return self._generator.choice([-1.0, 1.0], len(self._rounding))
