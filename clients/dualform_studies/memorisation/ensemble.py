"""Many small networks trained side by side. Shapes: M networks, P pairs, N words.

Networks this small cost the same alone as by the dozen: their parameters are stacked, and one pass serves all. Each
is trained as it would be alone, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from dualform_studies.memorisation.facts import Facts
from dualform_studies.memorisation.network import AttentionOnly

Optimize: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]
"""Makes the optimizer of stacked parameters; it must treat every number on its own, as SGD and Adam do."""
_NOTED = 200
"""Points of a learning curve."""


@dataclass
class Curve:
    """How a training went, at each of K noted moments."""

    steps: list[int] = field(default_factory=list)
    accuracy: list[NDArray[np.float64]] = field(default_factory=list)
    """K times float64[M]: fraction of the pairs that a network knows."""
    loss: list[NDArray[np.float64]] = field(default_factory=list)
    """K times float64[M]: mean cross-entropy over the pairs, in nats."""

    def note(self, step: int, right: NDArray[np.bool_], losses: Tensor) -> None:
        self.steps.append(step)
        self.accuracy.append(right.mean(axis=1))
        self.loss.append(losses.detach().double().mean(dim=1).numpy())


class Ensemble:
    """Copies of some networks, each with facts of its own."""

    def __init__(self, networks: Sequence[AttentionOnly], facts: Sequence[Facts]) -> None:
        stacked, _ = stack_module_state(list(networks))
        self.parameters: dict[str, Tensor] = {name: p.detach().clone() for name, p in stacked.items()}
        """Stacked: [M, ...]."""
        self.curve = Curve()
        self._base, self._pairs = networks[0], facts[0].pairs
        self._facts = Facts(torch.stack([own.next_tokens for own in facts]))
        self._step = 0

    def train(
        self,
        steps: int,
        optimize: Optimize,
        *,
        counted: Tensor | None = None,
        heads: Tensor | None = None,
        learns: dict[str, Tensor] | None = None,
        say: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Take `steps` updates with a fresh optimizer.

        `counted` [M, P] weighs the pairs in the loss, which is their sum over P; `heads` [1, H] the heads;
        `learns` holds, by parameter, a mask of the numbers that learn (all where it is missing).
        """
        parameters = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
        optimizer = optimize(list(parameters.values()))
        every = max(1, steps // _NOTED)
        for done in range(1, steps + 1):
            logits = self._logits(parameters, heads)
            losses = cross_entropy(logits.movedim(-1, 1), self._facts.next_tokens, reduction="none")
            if done % every == 1 or every == 1:
                self.curve.note(self._step, self._facts.right(logits), losses)
            optimizer.zero_grad()
            torch.autograd.backward((losses if counted is None else losses * counted).sum() / losses.shape[1])
            for name, mask in (learns or {}).items():
                gradient = parameters[name].grad
                assert gradient is not None
                gradient.mul_(mask)
            optimizer.step()
            self._step += 1
            say(done)
        self.parameters = {name: p.detach() for name, p in parameters.items()}
        with torch.no_grad():
            logits = self._logits(self.parameters, heads)
            losses = cross_entropy(logits.movedim(-1, 1), self._facts.next_tokens, reduction="none")
        self.curve.note(self._step, self._facts.right(logits), losses)

    def weights(self, member: int) -> dict[str, Tensor]:
        """The state dict of one network."""
        return {name: p[member].clone() for name, p in self.parameters.items()}

    def _logits(self, parameters: dict[str, Tensor], heads: Tensor | None) -> Tensor:
        """[M, P, N]."""

        def one(own: dict[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(self._base, own, (self._pairs, heads))
            return result

        logits: Tensor = vmap(one)(parameters)
        return logits
