"""Many small networks trained side by side. Shapes: M networks, W weightings of their H heads, P pairs, N words.

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

from dualform_studies.memorisation.transformer.facts import Facts, draw_facts
from dualform_studies.memorisation.transformer.network import HEADS, AttentionOnly, build_network, with_weights

Optimize: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]
"""Makes the optimizer of stacked parameters; it must treat every number on its own, as SGD and Adam do."""
Look: TypeAlias = Callable[[int, dict[str, Tensor]], None]
"""Is shown the number of updates that were taken, and stacked parameters."""
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

    def note(self, step: int, right: NDArray[np.bool_], losses: NDArray[np.float64]) -> None:
        """Of float and bool[M, P]."""
        self.steps.append(step)
        self.accuracy.append(right.mean(axis=1))
        self.loss.append(losses.mean(axis=1))

    def at(self, step: int) -> int:
        """The moment of a step that was noted; where a training went on with another head, the first of the two."""
        return self.steps.index(step)


class Ensemble:
    """Copies of some networks, each with facts of its own."""

    def __init__(self, networks: Sequence[AttentionOnly], facts: Sequence[Facts]) -> None:
        stacked, _ = stack_module_state(list(networks))
        self.parameters: dict[str, Tensor] = {name: p.detach().clone() for name, p in stacked.items()}
        """Stacked: [M, ...]."""
        self.curve = Curve()
        self.heads = networks[0].heads
        """How many heads each has."""
        self.pairs = facts[0].pairs
        self.next_tokens = torch.stack([own.next_tokens for own in facts])
        """int64[M, P]."""
        self._base = networks[0]
        self._step = 0

    def train(
        self,
        steps: int,
        optimize: Optimize,
        *,
        counted: Tensor | None = None,
        heads: Tensor | None = None,
        learns: dict[str, Tensor] | None = None,
        look: Look | None = None,
        say: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Take `steps` updates with a fresh optimizer.

        `heads` [W, H] are the weightings with which every pair is answered, one of all heads where none is given;
        `counted`, broadcast to [M, W, P], weighs the answers in the loss, which is their sum over P; `learns` holds, by
        parameter, a mask of the numbers that learn (all where it is missing). The curve is of the first weighting, and
        `look` is shown the parameters whenever it is noted.
        """
        parameters = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
        optimizer = optimize(list(parameters.values()))
        every = max(1, steps // _NOTED)
        for done in range(1, steps + 1):
            logits = self._logits(parameters, heads)
            losses = self._losses(logits)
            if done % every == 1 or every == 1:
                self._note(logits, losses)
                if look is not None:
                    look(self._step, {name: p.detach() for name, p in parameters.items()})
            optimizer.zero_grad()
            torch.autograd.backward((losses if counted is None else losses * counted).sum() / losses.shape[-1])
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
            self._note(logits, self._losses(logits))

    def weights(self, member: int) -> dict[str, Tensor]:
        """The state dict of one network."""
        return {name: p[member].clone() for name, p in self.parameters.items()}

    def networks(self) -> list[AttentionOnly]:
        """The networks as they are now, one by one."""
        return [with_weights(self.weights(member)).eval() for member in range(len(self.next_tokens))]

    @torch.no_grad()
    def right(self, heads: Tensor | None = None) -> NDArray[np.bool_]:
        """bool[M, W, P]: which pairs are known with heads weighed as [W, H]; with all of them where none is given."""
        return self._right(self._logits(self.parameters, heads))

    def _note(self, logits: Tensor, losses: Tensor) -> None:
        self.curve.note(self._step, self._right(logits)[:, 0], losses.detach().double().numpy()[:, 0])

    def _right(self, logits: Tensor) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = (logits.argmax(dim=-1) == self.next_tokens[:, None]).numpy()
        return right

    def _losses(self, logits: Tensor) -> Tensor:
        """[M, W, P]: cross-entropy in nats."""
        true = self.next_tokens[:, None].expand(logits.shape[:-1])
        return cross_entropy(logits.movedim(-1, 1), true, reduction="none")

    def _logits(self, parameters: dict[str, Tensor], heads: Tensor | None) -> Tensor:
        """[M, W, P, N]."""
        weights = (torch.ones(1, self.heads) if heads is None else heads)[:, None]

        def one(own: dict[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(self._base, own, (self.pairs, weights))
            return result

        logits: Tensor = vmap(one)(parameters)
        return logits


def ensemble_of(seeds: Sequence[int], heads: int = HEADS) -> Ensemble:
    """An untrained network and facts of each seed."""
    return Ensemble([build_network(seed, heads) for seed in seeds], [draw_facts(seed) for seed in seeds])
