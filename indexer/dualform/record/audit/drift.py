"""The drift monitor: measures, while a training runs, how far its weights are from the record.

Shapes: P numbers of the image over all parameters.

The update rule is run on an image of the parameters (projection.py), from the slots' own sums alone: for a linear rule
along fixed directions R, W R. Whenever the weights are looked at (before each update, where they changed without one,
and at the end), two distances are logged:

    one step      || W R - the rule's next state from the W R seen last ||       dates a jump
    accumulated   || W R - the rule's states since W_0 R ||                       how exact the record is by then

Beside them stands what rounding accounts for. Weights of precision u (2^-24 for float32) are rounded at each update, by
at most u |w|, and by |w| u / sqrt(3) in the mean square where no side is favoured; errors of many updates add up as
squares, so the floor is the root of the sum over updates of u^2 ||W||^2 / 3. Updates that are small beside the weights'
last bit are rounded to the same side again and again: their errors add up plainly, which the floor does not cover.

Writes to the weights between the optimizer's updates, for rules that are watched through entries.

    what was written  =  W R before an update, or where one looks  -  W R as the last update left it

Entries show what the rule makes of some numbers of a weight; this shows all of them, and needs no rule: between two
updates the weights stay as they are. Shapes: P numbers over all parameters along all directions
(parameters.py).

What rounding of gradients may account for in the weights after one update.

Shapes: P numbers over all parameters, K states of them.

The states that the watch runs the update rule on. Shapes: K states of P numbers over all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, repeat
from math import inf
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.record.audit.parameters import RecordedParameters
from dualform.record.projection import Doubles, Image, Parts
from dualform.record.ranks import held
from dualform.rules import Settings, State, UpdateRule, updated
from dualform.rules.rounding import product_rounding
from dualform.store.batch import WatchLog
from dualform.store.weights import Buffers


class WatchedStates:
    """States of all parameters, which are advanced together: as rebuilt since the start (0), as expected from the
    weights seen last (1), and, for rules whose noise is that of a twin, the twin's (2).
    """

    def __init__(
        self,
        image: Image,
        names: Sequence[str],
        rules: Sequence[UpdateRule],
        start: Doubles,
        buffers: Buffers,
        count: int,
        total: Callable[[Doubles], Doubles] = lambda own: own,
    ) -> None:
        """Of each parameter its name and rule, which keep buffers of the same kinds. `start` float64[P]: the weights;
        `buffers`: what the optimizer keeps; `count`: K; `total`: adds up what several processes hold of the buffers.
        """
        self.rules, self._spans = rules, image.spans
        self.weight = np.stack([start] * count)
        """float64[K, P]."""
        self.buffers: dict[str, Doubles] = {}
        """By the optimizer's own name, float64[K, P]."""
        for kind in (*rules[0].buffers, *rules[0].statistics):
            own = {name: held[kind] for name, held in buffers.items() if kind in held}
            self.buffers[kind] = np.stack([total(image.project_arrays(own))] * count)
        self.kinds = [frozenset(self.buffers) & buffers.get(name, {}).keys() for name in names]
        """By parameter: which of them it has. What is missing is left to the rule, which begins it with its own."""

    def advance(self, first: int, last: int, gradient: Doubles, settings: Settings) -> None:
        """Take the states of the parameters from `first` to `last` on by one update that all of them get alike.

        `gradient` float64[P], or float64[K, P] where each state has its own.
        """
        numbers, rule = slice(self._spans[first].start, self._spans[last].stop), self.rules[first]
        buffers = {kind: np.ascontiguousarray(self.buffers[kind][:, numbers]) for kind in self.kinds[first]}
        state, gradient = State(np.ascontiguousarray(self.weight[:, numbers]), buffers), gradient[..., numbers]
        both = None
        if gradient.ndim > 1:
            both = rule.advance_both(state, state, np.ascontiguousarray(gradient), None, settings)
        after = updated(rule, state, gradient, settings)[0] if both is None else both[0]
        self.weight = _written(self.weight, numbers, after.weight)
        for kind, own in after.buffers.items():
            self.buffers[kind] = _written(self.buffers[kind], numbers, own)
        self.kinds[first : last + 1] = [frozenset(after.buffers)] * (last + 1 - first)


def _written(vectors: Doubles, numbers: slice, part: Doubles) -> Doubles:
    """float64[K, P] with a part of it replaced: the part itself where that is everything."""
    if part.shape == vectors.shape:
        return part
    vectors[:, numbers] = part
    return vectors


class GradientNoise(Protocol):
    """Taken along beside the watch's states."""

    def gradient(self, applied: Doubles, magnitudes: Doubles, known: Doubles, roundoff: Doubles) -> Doubles:
        """The gradient that the states get, float64[P] or float64[K, P].

        `applied` float64[P]; `magnitudes`: bound on the terms that were summed, by parameter or by number; `known`
        float64[parameters]: gradient factors; `roundoff` float64[parameters]: what the gradients were computed in.
        """

    def carry(self, run: slice, settings: Settings) -> None:
        """The parameters of `run` are updated alike."""

    def lengths(self) -> Doubles:
        """float64[parameters]: the norm after the update: of its numbers, scaled as Image.norm_factors says."""


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

    def lengths(self) -> Doubles:
        return self._carried


class TwinNoise:
    """For rules with a scale: a twin of the expected state gets each gradient with an error of the size that rounding
    may have, and buffers that are rounded. How far one update takes the two apart estimates what rounding does.
    """

    def __init__(self, image: Image, states: WatchedStates, rounding: Doubles, generator: np.random.Generator) -> None:
        """`rounding` float64[parameters]: u of the numbers that the optimizer keeps."""
        self._image, self._states, self._generator = image, states, generator
        lengths = [span.stop - span.start for span in image.spans]
        self._lengths = lengths
        self._starts = [span.start for span in image.spans]
        self._rounding = 2.0 * np.repeat(rounding, lengths)
        self._random = np.empty_like(self._rounding)

    def gradient(self, applied: Doubles, magnitudes: Doubles, known: Doubles, roundoff: Doubles) -> Doubles:
        self._states.weight[2] = self._states.weight[1]  # both go on from the weights seen last
        error = np.repeat(np.abs(known) * roundoff, self._lengths)
        error *= magnitudes
        for kind, own in self._states.buffers.items():
            if kind != "step":  # a count of updates is not rounded
                self._generator.random(out=self._random)
                self._random -= 0.5
                self._random *= self._rounding
                self._random += 1.0
                own[2] *= self._random
        error *= 2.0 * self._generator.integers(0, 2, len(error), dtype=np.int8) - 1.0  # of either sign
        return np.stack([applied, applied, applied + error])

    def carry(self, run: slice, settings: Settings) -> None:
        """The states are advanced by the watch."""

    def lengths(self) -> Doubles:
        apart = self._states.weight[2] - self._states.weight[1]
        found: Doubles = np.sqrt(np.add.reduceat(apart * apart, self._starts)) * self._image.norm_factors
        return found


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


_SEED = 1
_FLOAT32 = float(np.finfo(np.float32).eps) / 2
_FLOAT64 = float(np.finfo(np.float64).eps)
"""The rounding of the watch's own sums."""
_STANDS_OUT = 8.0
"""A write this many times what rounding may account for is told of."""


class Watch:
    """Holds the weights of a training against the record. Used on the training's own thread."""

    def __init__(
        self,
        parameters: RecordedParameters,
        image: Image,
        rules: Sequence[UpdateRule],
        initial: Mapping[str, NDArray[Any]],
        buffers: Buffers,
        total: Callable[[Doubles], Doubles] = lambda own: own,
    ) -> None:
        """`image`: what is seen of the parameters, as `rules` take it, which are one a parameter; `initial`: they
        themselves before the first step, by name; `buffers`: what the optimizer kept by then; `total`: adds up what
        several processes see of parameters of which each holds some rows.
        """
        self._parameters, self._image, self._total = parameters, image, total
        self._start = total(image.project_arrays(initial))
        by_entries = image is not parameters
        names = [parameter.parameter for parameter in parameters]
        self._states = WatchedStates(image, names, rules, self._start, buffers, 3 if by_entries else 2, total)
        self._parts = Parts([span.stop - span.start for span in image.spans], [False] * len(parameters))
        self._tensors = [held(parameter.tensor) for parameter in parameters]
        self._norms = np.array(image.norm_factors)
        self._rounding = np.array([_unit_roundoff(tensor.dtype) for tensor in self._tensors])
        """u of each parameter; the floor takes that of float32 at most, for what half precision loses is real."""
        self._floor = np.zeros(len(parameters))
        """By parameter: squares, added up."""
        self._due = np.zeros(len(parameters), bool)
        """Which parameters were updated since the floor was added to."""
        self._noise: GradientNoise = NormNoise(rules[0], len(parameters))
        self._writes: Writes | None = None
        if by_entries:
            self._writes = Writes(parameters)
            self._noise = TwinNoise(image, self._states, self._rounding, np.random.default_rng(_SEED))
        self._noises = np.zeros(len(parameters))
        self._alike: list[tuple[bool, int, frozenset[str], UpdateRule]] = []
        self._runs: list[tuple[int, int]] = []
        self._seen = self._now()
        self._unknown = np.zeros(len(parameters), bool)
        """Whose distance from the record cannot be told any more."""
        self._stopped = False
        self._skipped: NDArray[np.bool_] | None = None
        """bool[parameters]: those that the update which is under way leaves alone; None where none is."""
        self._written: list[int] = []
        self.jumped: Sequence[int] = ()
        """Parameters that were elsewhere than expected when the weights were last looked at."""

    def changed(self) -> NDArray[np.bool_] | None:
        """bool[parameters]: which weights were written to since they were last looked at or updated; None for none."""
        now = self._now()
        if now == self._seen:
            return None
        return np.array([version != before for version, before in zip(now, self._seen, strict=True)])

    def follow(self, index: int) -> None:
        """A parameter's tensor is another one, which counts as written to."""
        self._tensors[index] = held(self._parameters[index].tensor)
        self._seen[index] = (-1, 0)

    def updated(self) -> None:
        """The optimizer has written the weights."""
        self._seen = self._now()
        # An update that no record has is no update, but a write.
        if self._writes is not None and self._skipped is not None:
            self._writes.updated(self._skipped)
        self._skipped = None

    def doubt(self, index: int) -> bool:
        """What cannot be seen of all of a parameter happens to it: its distance is not known from the next update on.

        False where all of its numbers are watched, so that what becomes of it is measured.
        """
        if self._image.norm_factors[index] > 1 and self._writes is not None:
            self._unknown[index] = True
        return bool(self._unknown[index])

    def stop(self) -> None:
        """The rule cannot be run any more: no distance is known from the next update on."""
        self._unknown[:] = True
        self._stopped = True

    def take_written(self) -> Sequence[int]:
        """Parameters that were found written to outside an update since this was last asked."""
        taken, self._written = self._written, []
        return taken

    def see(self, chosen: NDArray[np.bool_] | None = None) -> Doubles:
        """What this process sees of the weights now, or of some of them, to be added up over those that hold parts of
        them: the image of its rows, and squared lengths of what was written to them.
        """
        weights = self._image.weights(chosen)
        return weights if self._writes is None else np.concatenate([weights, self._writes.look(chosen).reshape(-1)])

    @np.errstate(all="ignore")  # weights that overflowed are no news
    def observe(
        self, step: int, chosen: NDArray[np.bool_] | None = None, seen: Doubles | None = None
    ) -> list[WatchLog]:
        """Look at the weights, or at some of them, as they are after recorded step `step` (-1: before the first).

        `seen`: what all processes see of them, where it was added up already.
        """
        seen = self._total(self.see(chosen)) if seen is None else seen
        weights, writes = np.split(seen, [len(self._start)])
        if chosen is not None:
            weights = np.where(np.repeat(chosen, np.diff(self._parts.starts)), weights, self._states.weight[1])
        squares, norms = self._parts.distances(weights, self._states.weight[:2], self._start), self._norms
        one_step, accumulated, way, size = norms * np.sqrt(squares[:4])
        lengths = [one_step, accumulated, way]
        own = np.minimum(self._rounding, _FLOAT32) ** 2 / 3 * norms * norms * squares[4]
        self._floor += np.where(self._due, own, 0.0)
        floor = np.sqrt(self._floor + (_FLOAT64 * size) ** 2)
        noise = np.sqrt((self._rounding * size) ** 2 / 3 + self._noises**2)
        if self._writes is not None:
            lengths = self._with_writes(lengths, noise, np.sqrt(writes.reshape(-1, 3).T))
        self.jumped = np.flatnonzero(lengths[0] > _STANDS_OUT * noise).tolist()
        self._due = np.zeros(len(norms), bool)
        self._seen = self._now()
        if step < 0:
            return []
        there = np.arange(len(norms)) if chosen is None else np.flatnonzero(chosen)
        names = [self._parameters[index].name for index in there]
        numbers = [of[there].tolist() for of in (*lengths, floor, noise)]
        return list(map(WatchLog, repeat(step), names, *numbers))

    def _with_writes(self, lengths: Sequence[Doubles], noise: Doubles, writes: Doubles) -> list[Doubles]:
        """The one-step and accumulated distances and the way of each parameter, with what entries do not show of a
        weight: what was written between updates, float64[3, parameters], and what nobody knows.
        """
        (one_step, accumulated, way), (written, ever, went) = lengths, writes
        self._written += np.flatnonzero(written > _STANDS_OUT * noise).tolist()
        outside = (self._norms > 1) & ((written > 0) | (ever > 0))
        one_step = np.where(outside & (written > one_step), written, one_step)
        more = outside & (ever > accumulated) & ~self._unknown
        accumulated, way = np.where(more, ever, accumulated), np.where(more, went, way)
        return [*(np.where(self._unknown, inf, own) for own in (one_step, accumulated)), way]

    @np.errstate(all="ignore")  # a training that blew up goes on, and its record is off
    def advance(
        self,
        sums: Doubles,
        magnitudes: Doubles,
        factors: Doubles,
        groups: Sequence[tuple[int, Settings]],
        roundoff: Doubles,
    ) -> None:
        """The optimizer is about to apply a gradient.

        `sums` float64[P]: of the slots; `magnitudes`: bound on the terms that were summed, as GradientNoise takes it;
        `factors` float64[parameters], NaN where it skips one; `groups`: each parameter's group and its settings;
        `roundoff` float64[parameters]: relative rounding of what the gradients were computed in.
        """
        skipped = self._skipped = np.isnan(factors)
        if self._stopped:
            return
        known = np.where(skipped, 0.0, factors)
        applied = sums.copy()
        for span, factor in zip(self._image.spans, known.tolist(), strict=True):
            applied[span] *= factor
        gradient = self._noise.gradient(applied, magnitudes, known, roundoff)
        for first, last in self._runs_of(skipped, groups):
            self._noise.carry(slice(first, last + 1), groups[first][1])
            self._states.advance(first, last, gradient, groups[first][1])
        self._noises = self._noise.lengths()
        self._due = ~skipped

    def _runs_of(self, skipped: NDArray[np.bool_], groups: Sequence[tuple[int, Settings]]) -> Sequence[tuple[int, int]]:
        """First and last index of neighbours that are updated alike."""
        numbers = [number for number, _ in groups]
        alike = list(zip(skipped.tolist(), numbers, self._states.kinds, self._states.rules, strict=True))
        if alike != self._alike:
            runs = [list(run) for _, run in groupby(range(len(alike)), key=alike.__getitem__)]
            self._runs = [(run[0], run[-1]) for run in runs if not skipped[run[0]]]
            self._alike = alike
        return self._runs

    def _now(self) -> list[tuple[int, int]]:
        """What changes when a tensor is written to, or given other data."""
        return [(tensor._version, tensor.data_ptr()) for tensor in self._tensors]


def roundoff(dtype: torch.dtype | None) -> float:
    """Relative rounding error of products computed in a type: for float32, of what torch may use in its place."""
    if dtype in (None, torch.float32):
        return max(2.0**-23, product_rounding(torch, "mkldnn", "cuda"))
    assert dtype is not None
    return float(torch.finfo(dtype).eps)


def _unit_roundoff(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number."""
    return float(torch.finfo(dtype).eps) / 2
