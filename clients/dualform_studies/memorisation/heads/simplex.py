"""The accuracy when the contribution of each head varies. Shapes: W weightings of the heads, P pairs, N words.

The weights of the three heads sum to 3, so the centre of the simplex, (1, 1, 1), is the network as trained, and a
corner is one head alone, three times as strong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.memorisation.transformer.network import HEADS, AttentionOnly


@dataclass(frozen=True, eq=False)
class Simplex:
    weights: NDArray[np.float64]
    """float64[W, H], from 0 to 3, each row summing to 3."""
    right: NDArray[np.bool_]
    """bool[W, P]: whether the next token of a pair is the most likely one."""
    probability: NDArray[np.float64]
    """float64[W, P]: how likely it is."""
    lead: NDArray[np.float64]
    """float64[W, P]: its logit over the greatest of the others; nats."""

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[W, H]: the weights as parts of their sum."""
        return np.asarray(self.weights / self.weights.sum(axis=1, keepdims=True))

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """float64[W], over all pairs."""
        return np.asarray(self.right.mean(axis=1))

    def accuracy_of(self, pairs: NDArray[np.bool_]) -> NDArray[np.float64]:
        """float64[W], over some of the pairs: bool[P]."""
        return np.asarray(self.right[:, pairs].mean(axis=1))

    def at(self, *weights: float) -> int:
        """The number of a weighting. Raises IndexError for one that is not on the grid."""
        return int(np.flatnonzero(np.isclose(self.weights, weights).all(axis=1))[0])


def weightings(per_side: int) -> NDArray[np.float64]:
    """float64[W, H]: a triangular grid with so many intervals along a side; a multiple of 3 puts one in the centre."""
    grid = [(a, b, per_side - a - b) for a in range(per_side + 1) for b in range(per_side + 1 - a)]
    return np.array(grid, dtype=np.float64) * (HEADS / per_side)


@torch.no_grad()
def over_simplex(network: AttentionOnly, facts: Facts, per_side: int) -> Simplex:
    weights = weightings(per_side)
    logits = network(facts.pairs, torch.from_numpy(weights).float()[:, None])
    true = torch.nn.functional.one_hot(facts.next_tokens, len(TOKENS)).bool()
    lead = logits[:, true] - logits.masked_fill(true, -torch.inf).amax(dim=-1)
    likely = logits.softmax(dim=-1)[:, true]
    return Simplex(weights, facts.right(logits), likely.double().numpy(), lead.double().numpy())


def classes_of(facts: Facts) -> dict[str, NDArray[np.bool_]]:
    """By next token that any pair has: bool[P], the pairs that have it."""
    members = {token: (facts.next_tokens == at).numpy() for at, token in enumerate(TOKENS)}
    return {token: pairs for token, pairs in members.items() if pairs.any()}
