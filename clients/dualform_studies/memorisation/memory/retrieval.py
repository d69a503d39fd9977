"""Two levels of retrieval (the paper's remark 3.5), taken apart exactly.

Shapes: P training pairs, S tokens of the pair that is asked about, H heads, N words, T steps.

With the attention pattern of a prediction given, its logits are linear in the value projection, and that is linear in
the training's slots (equation 13):

    logits = U x_2 + sum_h sum_j  a_hj  U O_h V_h x_j                       second level: softmax over the two tokens
    V x_j  = V_0 x_j + sum_p  sum_(t in pair p)  (x_t . x_j) e_t            first level: all slots, by training pair
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.query.engine import Engine
from dualform.questions import QuerySetExamples
from dualform_studies.memorisation.memory.masks import masked_projection, only
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.memorisation.transformer.network import HEAD_WIDTH, HEADS, LENGTH, WIDTH, AttentionOnly
from dualform_studies.memorisation.transformer.training import QUERY_SET


@dataclass(frozen=True, eq=False)
class TwoLevels:
    """One prediction."""

    pair: int
    scores: NDArray[np.float64]
    """float64[S, P]: first level, the attention weights x_t . x_j summed over the slots of each training pair."""
    pattern: NDArray[np.float64]
    """float64[H, S]: second level, how much each head attends to each token."""
    offered: NDArray[np.float64]
    """float64[S, H, P, N]: what each training pair's values of one token would add to the logits through one head that
    attended to that token alone."""
    initial: NDArray[np.float64]
    """float64[N]: what the initial value projection adds."""
    residual: NDArray[np.float64]
    """float64[N]: what the last token's own stream adds."""

    @property
    def logits(self) -> NDArray[np.float64]:
        """float64[S, H, P, N]: what each training pair adds to the logits through one token and one head's values."""
        return self.pattern.T[:, :, None, None] * self.offered

    @property
    def total(self) -> NDArray[np.float64]:
        """float64[N]: the logits of the network."""
        return np.asarray(self.residual + self.initial + self.logits.sum(axis=(0, 1, 2)))

    def margin(self, token: int) -> tuple[NDArray[np.float64], int]:
        """float64[S, H, P]: what is added to the lead of `token` over its strongest rival; and the rival."""
        others = self.total.copy()
        others[token] = -np.inf
        rival = int(others.argmax())
        return self.logits[..., token] - self.logits[..., rival], rival


@torch.no_grad()
def ask_two_levels(memory: Engine, network: AttentionOnly, facts: Facts, pair: int) -> TwoLevels:
    """Take one prediction of the trained network apart; the memory speaks for each training pair alone."""
    exact = AttentionOnly().double()
    exact.load_state_dict(network.state_dict())
    stream = exact.stream(exact.embed(facts.pairs[pair : pair + 1]))
    pattern = exact.pattern(stream)[0]
    begun, moved = moved_values(memory, facts)
    # The initial values, then pair by pair what the training added.
    values = torch.cat([begun[None], moved])
    outputs = exact.output.weight.reshape(WIDTH, HEADS, HEAD_WIDTH)
    offered = torch.einsum("nd,dhe,phec,jc->jhpn", exact.unembedding.weight, outputs, values, stream[0])
    sums = memory.group_sum("value", asked_by(pair), by="sample")
    return TwoLevels(
        pair,
        sums.sums,
        pattern.numpy(),
        offered[:, :, 1:].numpy(),
        torch.einsum("hj,jhn->n", pattern, offered[:, :, 0]).numpy(),
        exact.unembedding(stream[0, -1]).numpy(),
    )


def moved_values(memory: Engine, facts: Facts) -> tuple[Tensor, Tensor]:
    """[H, e, d] and [P, H, e, d], of float64: the value projection at its start, and what each training pair added."""
    begun = memory.weights(at_step=0)["value.weight"].double()
    spoken = [masked_projection(memory, "value", only(facts, pair)).double() for pair in range(len(facts))]
    return begun.view(HEADS, HEAD_WIDTH, WIDTH), (torch.stack(spoken) - begun).view(-1, HEADS, HEAD_WIDTH, WIDTH)


def scores_over_training(memory: Engine, pair: int) -> NDArray[np.float64]:
    """float64[S, S, N, T]: the score of each token asked about with the training slots of each position and token.

    All slots of one step, position and token hold the same key, so one score stands for them.
    """
    sums = memory.group_sum("value", asked_by(pair), by=("position", "token", "step"))
    return (sums.sums / sums.counts).reshape(LENGTH, LENGTH, len(TOKENS), -1)


def asked_by(pair: int) -> QuerySetExamples:
    """What key and value projection are asked by the two tokens of a pair, as the memory's query set holds it."""
    return QuerySetExamples(QUERY_SET, (pair,))


def most_divided(network: AttentionOnly, facts: Facts) -> int:
    """The pair whose two tokens the heads disagree about most."""
    with torch.no_grad():
        to_first = network.pattern(network.stream(network.embed(facts.pairs)))[:, :, 0]
    return int((to_first.amax(dim=1) - to_first.amin(dim=1)).argmax())
