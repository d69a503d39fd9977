"""Training pairs left out of the sum, and of the training.

What if some training pairs were left out: of the sum, and of the training. Shapes: P pairs, N words, M masks.

A mask takes terms out of the sum as this training left it; a network retrained without the pairs is another sum
altogether, since every later term would have been another. Both stand side by side here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.query.engine import Engine
from dualform_studies.assignment import Progress, or_silent
from dualform_studies.memorisation.transformer import (
    PROJECTIONS,
    TOKENS,
    WIDTH,
    AttentionOnly,
    Ensemble,
    Facts,
    Recipe,
    build_network,
    with_weights,
)

SCOPES = {
    "value": ("value",),
    "query and key": ("query", "key"),
    "projections": PROJECTIONS,
    "whole network": None,
}
"""The layers whose sum a mask speaks for; the others stay as trained. None: all of them."""


_SWEPT = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Parts of the training that are left out, from its end."""


@dataclass(frozen=True, eq=False)
class Omission:
    """Something left out of the training's sum, and of the training."""

    name: str
    where: str
    """The slots that stay."""
    pairs: NDArray[np.bool_]
    """bool[P]: the pairs left out."""
    networks: dict[str, AttentionOnly]
    """By scope of the mask; and "retrained", a network that never saw the pairs."""
    cancellation: Mapping[str, float]
    """By layer: sum of norms over norm of sum of the terms left out."""
    share: dict[str, float]
    """By layer: norm of the sum left out over that of all that training added."""

    def right(self, facts: Facts) -> dict[str, NDArray[np.bool_]]:
        """By network: bool[P], the pairs whose next token it knows."""
        with torch.no_grad():
            return {name: facts.right(network(facts.pairs)) for name, network in self.networks.items()}


def only(facts: Facts, pair: int) -> str:
    """The mask under which one training pair speaks."""
    first, second = (TOKENS[token] for token in facts.pairs[pair].tolist())
    return f"first = '{first}' AND second = '{second}'"


def leave_out(
    memory: Engine, facts: Facts, recipe: Recipe, seed: int, progress: Progress | None = None
) -> list[Omission]:
    """Each pair in turn, then each class: all pairs that have one next token."""
    wheres = {name: (f"NOT ({only(facts, at)})", np.arange(len(facts)) == at) for at, name in enumerate(facts.names)}
    for label, token in enumerate(TOKENS):
        members = (facts.next_tokens == label).numpy()
        if members.any():
            wheres[f"class {token}"] = (f"label <> {label}", members)
    retrained = _retrained(facts, recipe, seed, [pairs for _, pairs in wheres.values()], progress)
    say = or_silent(progress)
    begun, trained, found = memory.weights(at_step=0), memory.weights(), []
    for done, (name, (where, pairs)) in enumerate(wheres.items(), start=1):
        masked = memory.weights(where=where)
        networks = {scope: with_weights(_mixed(trained, masked, layers)) for scope, layers in SCOPES.items()}
        networks["retrained"] = retrained[done - 1]
        share = {
            weight.removesuffix(".weight"): float((end - masked[weight]).norm() / (end - begun[weight]).norm())
            for weight, end in trained.items()
        }
        found.append(Omission(name, where, pairs, networks, memory.cancellation(where=where), share))
        say("leaving pairs out", done, len(wheres))
    return found


def _mixed(
    trained: Mapping[str, Tensor], masked: Mapping[str, Tensor], layers: Sequence[str] | None
) -> dict[str, Tensor]:
    names = set(masked) if layers is None else {f"{layer}.weight" for layer in layers}
    return {name: masked[name] if name in names else weight for name, weight in trained.items()}


def masked_projection(memory: Engine, layer: str, where: str) -> Tensor:
    """[d_out, d]: a projection's weight under a mask, as `memory.weights` gives it, but of this layer alone."""
    return torch.from_numpy(memory.output(layer, np.eye(WIDTH, dtype=np.float32), where=where).values).T.contiguous()


def _retrained(
    facts: Facts, recipe: Recipe, seed: int, left_out: Sequence[NDArray[np.bool_]], progress: Progress | None
) -> list[AttentionOnly]:
    """One network for each set of pairs left out, trained from the same start as the recorded one."""
    count = len(left_out)
    ensemble = Ensemble([build_network(seed)] * count, [facts] * count)
    counted = torch.from_numpy(~np.stack(left_out)).float()[:, None]
    say = or_silent(progress)
    ensemble.train(
        recipe.steps,
        recipe.sgd,
        counted=counted,
        say=lambda done: say("retraining without them", done, recipe.steps),
    )
    return ensemble.networks()


@dataclass(frozen=True, eq=False)
class Sweep:
    """The last steps of one pair left out of the projections, for every pair and several numbers of steps."""

    last: list[int]
    """Numbers of steps."""
    others: NDArray[np.float64]
    """float64[numbers, pairs]: fraction of the other pairs that are still known."""
    itself: NDArray[np.bool_]
    """bool[numbers, pairs]: whether the pair itself still is."""


def sweep_last(memory: Engine, facts: Facts, recipe: Recipe, progress: Progress | None = None) -> Sweep:
    """Leave out what a pair taught in its last steps, more and more of them; the first `recipe.swept` pairs."""
    steps, pairs = recipe.steps, min(recipe.swept, len(facts))
    last = sorted({max(1, round(part * steps)) for part in _SWEPT})
    trained, known = memory.weights(), np.zeros((len(last), pairs, len(facts)), dtype=np.bool_)
    say = or_silent(progress)
    for row, number in enumerate(last):
        for pair in range(pairs):
            where = f"NOT ({only(facts, pair)} AND step >= {steps - number})"
            masked = {f"{layer}.weight": masked_projection(memory, layer, where) for layer in PROJECTIONS}
            network = with_weights({**trained, **masked})
            with torch.no_grad():
                known[row, pair] = facts.right(network(facts.pairs))
        say("leaving last steps out", row + 1, len(last))
    itself = known[:, np.arange(pairs), np.arange(pairs)]
    return Sweep(last, (known.sum(axis=2) - itself) / (len(facts) - 1), itself)
