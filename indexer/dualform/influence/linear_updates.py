"""Updates that are sums of weight, buffers and gradient, each times one number for all of it.

The numbers are what the rule itself makes of a one in each of their places. The sums are torch's, whose threads run the
network, too, and are written into arrays that are there already: both matter for blocks that no cache of a core holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.rules import LinearRule, Settings, State
from dualform.rules.update_rule import Doubles


class LinearUpdate:
    def __init__(self, rule: LinearRule, held: Sequence[str], settings: Settings) -> None:
        """`held`: the buffers that there are before it."""
        ones = np.eye(2 + len(held))
        self._held = held
        before = dict(zip(held, ones[1:-1], strict=True))
        made = rule.advance(State(ones[0], before), ones[-1], settings)
        self._weight = made.weight - ones[0]
        """What is added to the weight: shares of weight, buffers and gradient, in that order."""
        self._buffers = {kind: own - before.get(kind, 0.0) for kind, own in made.buffers.items()}
        """What is added to each buffer, or makes one that there was not."""

    def advanced(self, state: State, gradient: NDArray[Any], factor: float = 1.0, room: State | None = None) -> State:
        """The state after the update with `factor` times a gradient, in float64. `room`: a state whose arrays are
        written to, but for those that are also of `state`.
        """
        parts = [state.weight, *(state.buffers[kind] for kind in self._held), gradient]

        def made(before: Doubles, shares: Doubles, out: Doubles | None) -> Doubles:
            own = [*shares[:-1].tolist(), factor * float(shares[-1])]
            return _sum(before, own, parts, np.empty(gradient.shape) if out is None or out is before else out)

        weight = made(state.weight, self._weight, None if room is None else room.weight)
        rooms = {} if room is None else room.buffers
        buffers = {
            kind: made(state.buffers.get(kind, _NONE), shares, rooms.get(kind))
            for kind, shares in self._buffers.items()
        }
        return State(weight, {**state.buffers, **buffers})


_NONE = np.zeros(1)


def _sum(before: Doubles, shares: Sequence[float], parts: Sequence[NDArray[Any]], out: Doubles) -> Doubles:
    """An array and others, each times its share, into `out`; some may be one number for all of it."""
    total = torch.from_numpy(out)
    made = torch.from_numpy(before).expand(out.shape)
    for share, part in zip(shares, parts, strict=True):
        if share:
            made = torch.add(made, torch.from_numpy(part), alpha=share, out=total)
    if made is not total:
        total.copy_(made)
    return out
