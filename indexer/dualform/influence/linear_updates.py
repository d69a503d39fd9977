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
from dualform.rules.update_rule import Arrays, Doubles


class LinearUpdate:
    """What it makes of a state and `factor` times a gradient, in float64."""

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

    def way(self, state: State, gradient: NDArray[Any], factor: float = 1.0) -> Doubles:
        """What is added to the weight, which may be one number for all of it."""
        return self._sum(_NONE, self._weight, state, gradient, factor)

    def buffers(self, state: State, gradient: NDArray[Any], factor: float = 1.0) -> Arrays:
        """After it."""
        made = {
            kind: self._sum(state.buffers.get(kind, _NONE), shares, state, gradient, factor)
            for kind, shares in self._buffers.items()
        }
        return {**state.buffers, **made}

    def add_way(self, state: State, gradient: NDArray[Any], factor: float = 1.0) -> None:
        """To the weight itself."""
        self._sum(state.weight, self._weight, state, gradient, factor, state.weight)

    def _sum(
        self,
        before: Doubles,
        shares: Doubles,
        state: State,
        gradient: NDArray[Any],
        factor: float,
        out: Doubles | None = None,
    ) -> Doubles:
        """An array, and shares of the others added to it, into `out`."""
        out = np.empty(gradient.shape) if out is None else out
        total, made = torch.from_numpy(out), torch.from_numpy(before).expand(out.shape)
        parts = [state.weight, *(state.buffers[kind] for kind in self._held), gradient]
        for share, part in zip([*shares[:-1].tolist(), factor * float(shares[-1])], parts, strict=True):
            if share:
                made = torch.add(made, torch.from_numpy(part), alpha=share, out=total)
        if made is not total:
            total.copy_(made)
        return out


_NONE = np.zeros(1)
