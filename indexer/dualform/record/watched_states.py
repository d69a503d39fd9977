"""The states that the watch runs the update rule on. Shapes: K states of P numbers over all parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dualform.record.image import Image
from dualform.record.projection import Doubles
from dualform.rules import Settings, State, UpdateRule, updated
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
        numbers = slice(self._spans[first].start, self._spans[last].stop)
        buffers = {kind: self.buffers[kind][:, numbers] for kind in self.kinds[first]}
        after, _ = updated(self.rules[first], State(self.weight[:, numbers], buffers), gradient[..., numbers], settings)
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
