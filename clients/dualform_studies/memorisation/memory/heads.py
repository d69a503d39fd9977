"""Which training pairs each head's memory attends to, and what becomes of it when one is masked.

Shapes: P pairs that are asked about, P training pairs, H heads, S tokens of a pair, N words.

The heads read one stream, so they share the first level: the attention weights of a token with all slots. What is a
head's own is where its softmax sends them, and what its rows of the values hold. For a pair p that is asked about,

    attention[h, p, q] = sum_j a_hpj  sum_(t in pair q)  x_t . x_pj
    lead[h, p, q]      = sum_j a_hpj  (u_true - u_rival) . O_h (what pair q added to V_h) x_pj

A mask on a pair takes its column out of both, and nothing else from the first level. Through the sums of query and key
it also moves a: then the other columns change.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform.questions import QuerySetExamples
from dualform_studies.memorisation.memory.masks import Omission
from dualform_studies.memorisation.memory.retrieval import moved_values
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import (
    HEAD_WIDTH,
    HEADS,
    LENGTH,
    PROJECTIONS,
    WIDTH,
    AttentionOnly,
    with_weights,
)
from dualform_studies.memorisation.transformer.training import QUERY_SET


@dataclass(frozen=True, eq=False)
class HeadMemory:
    """Every pair asked about, by head."""

    scores: NDArray[np.float64]
    """float64[P, S, P]: first level, attention weights of each token summed over the slots of each training pair."""
    pattern: NDArray[np.float64]
    """float64[P, H, S]: second level, how much each head attends to each token."""
    lead: NDArray[np.float64]
    """float64[H, P, P]: what each training pair adds to the lead of the true next token over its strongest rival."""
    known: NDArray[np.bool_]
    """bool[P]: which pairs the network knows with nothing masked."""

    @property
    def attention(self) -> NDArray[np.float64]:
        """float64[H, P, P]."""
        return attended(self.scores, self.pattern)


@dataclass(frozen=True, eq=False)
class MaskedHeads:
    """The same with one training pair masked, for each pair in turn: [pair left out, ...]."""

    scores: NDArray[np.float64]
    """float64[P, P, S, P]: of the slots that stay; 0 for the pair left out."""
    pattern: NDArray[np.float64]
    """float64[P, P, H, S]: with the pair masked in query and key."""
    known: NDArray[np.bool_]
    """bool[P, H, P]: which pairs are known with the pair masked in the projections of one head alone."""

    def lost(self, before: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """bool[P, H, P]: of the pairs known `before`, bool[P], those other than the one masked that no longer are."""
        return np.asarray(before & ~self.known & ~np.eye(len(before), dtype=np.bool_)[:, None])


def attended(scores: NDArray[np.float64], pattern: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[H, P, P] of [P, S, P] and [P, H, S]: the first level, divided between the tokens by the second."""
    return np.asarray(np.einsum("psq,phs->hpq", scores, pattern))


@torch.no_grad()
def ask_heads(memory: Engine, network: AttentionOnly, facts: Facts) -> HeadMemory:
    exact = deepcopy(network).double()
    stream = exact.stream(exact.embed(facts.pairs))
    pattern = exact.pattern(stream)
    logits = exact(facts.pairs)
    true = torch.nn.functional.one_hot(facts.next_tokens, logits.shape[1]).bool()
    rivals = logits.masked_fill(true, -torch.inf).argmax(dim=1)
    directions = exact.unembedding.weight[facts.next_tokens] - exact.unembedding.weight[rivals]
    _, moved = moved_values(memory, facts)
    outputs = exact.output.weight.reshape(WIDTH, HEADS, HEAD_WIDTH)
    lead = torch.einsum("pd,dhe,phs,qhec,psc->hpq", directions, outputs, pattern, moved, stream)
    return HeadMemory(_scores(memory, len(facts)), pattern.numpy(), lead.numpy(), facts.right(logits))


@torch.no_grad()
def ask_masked(memory: Engine, network: AttentionOnly, facts: Facts, singles: Sequence[Omission]) -> MaskedHeads:
    """`singles` leave out each pair in turn."""
    stream = network.stream(network.embed(facts.pairs))
    pattern = [one.networks["query and key"].pattern(stream).double().numpy() for one in singles]
    scores = [_scores(memory, len(facts), one.where) for one in singles]
    known = [
        [facts.right(_one_head(network, one.networks["projections"], head)(facts.pairs)) for head in range(HEADS)]
        for one in singles
    ]
    return MaskedHeads(np.stack(scores), np.stack(pattern), np.array(known))


def _scores(memory: Engine, pairs: int, where: str | None = None) -> NDArray[np.float64]:
    """float64[P, S, P]; training pairs of which no slot stays have a sum of 0."""
    asked = QuerySetExamples(QUERY_SET, tuple(range(pairs)))
    found = memory.group_sum("value", asked, by="sample", where=where)
    sums = np.zeros((LENGTH * pairs, pairs))
    sums[:, [sample for (sample,) in found.groups]] = found.sums
    return sums.reshape(pairs, LENGTH, pairs)


def _one_head(trained: AttentionOnly, masked: AttentionOnly, head: int) -> AttentionOnly:
    """The trained network with one head's rows of query, key and value from the masked one."""
    rows = slice(HEAD_WIDTH * head, HEAD_WIDTH * (head + 1))
    weights = {name: weight.clone() for name, weight in trained.state_dict().items()}
    for layer in PROJECTIONS:
        weights[f"{layer}.weight"][rows] = masked.state_dict()[f"{layer}.weight"][rows]
    return with_weights(weights)
