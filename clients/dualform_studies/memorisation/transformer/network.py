"""The attention-only Transformer of the study: one layer of three heads, no MLP, nothing wider than three.

Shapes: B pairs, S = 2 tokens a pair, N = 5 words, d = 3 the stream, H heads of dimension e.

The layer norm stands right after the word embedding, so an embedded word lies on a circle: in the plane of mean zero,
at distance sqrt(d) from the origin. Everything after it is a function of two points on that circle, the torus.

    x_j    = norm(word_j) + position_j
    y      = x_2 + sum_h  w_h O_h sum_j a_hj V_h x_j        a_h = softmax_j( (Q_h x_2) . (K_h x_j) / sqrt(e) )
    logits = U y                                            only the last token is predicted; w_h = 1 in training

Every matrix is an nn.Linear without bias, the embeddings too, which read one-hot vectors: so all of them are recorded,
and a mask speaks for the whole network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, one_hot

from dualform_studies.memorisation.transformer.facts import TOKENS

LENGTH = 2
WIDTH = 3
HEADS = 3
HEAD_WIDTH = 3
_EPS = 1e-12
"""Small enough that the circle has the same radius for every word."""

PROJECTIONS = ("query", "key", "value")


class AttentionOnly(nn.Module):
    """Maps pairs of tokens to logits of the next one, with so many heads side by side."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.word = nn.Linear(len(TOKENS), WIDTH, bias=False)
        self.position = nn.Linear(LENGTH, WIDTH, bias=False)
        self.query = nn.Linear(WIDTH, heads * HEAD_WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, heads * HEAD_WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, heads * HEAD_WIDTH, bias=False)
        self.output = nn.Linear(heads * HEAD_WIDTH, WIDTH, bias=False)
        self.unembedding = nn.Linear(WIDTH, len(TOKENS), bias=False)

    def forward(self, pairs: Tensor, heads: Tensor | None = None) -> Tensor:
        """Logits [..., B, N] of int64[B, S]; `heads` [..., 1, H] are the weights w_h, all 1 where none are given."""
        return self.answer(self.embed(pairs), heads)

    def embed(self, pairs: Tensor) -> Tensor:
        """[B, S, d]: the words on their circle."""
        return layer_norm(self.word(one_hot(pairs, len(TOKENS)).to(self.word.weight.dtype)), (WIDTH,), eps=_EPS)

    def answer(self, circle: Tensor, heads: Tensor | None = None) -> Tensor:
        """Logits [..., B, N] of any points [B, S, d] on the circle."""
        result: Tensor = self.unembedding(self.attended(circle, heads))
        return result

    def attended(self, circle: Tensor, heads: Tensor | None = None) -> Tensor:
        """[..., B, d]: the last token's stream after the attention layer, y above."""
        stream = self.stream(circle)
        mixed = torch.einsum("bhs,bshe->bhe", self.pattern(stream), _by_head(self.value(stream)))
        if heads is not None:
            mixed = mixed * heads[..., None]
        result: Tensor = stream[:, -1] + self.output(mixed.flatten(-2))
        return result

    def stream(self, circle: Tensor) -> Tensor:
        """[B, S, d]: words and positions, x above."""
        places = torch.eye(LENGTH, dtype=circle.dtype).expand(len(circle), LENGTH, LENGTH)
        result: Tensor = circle + self.position(places)
        return result

    def pattern(self, stream: Tensor) -> Tensor:
        """[B, H, S]: how much the last token attends to each, a above."""
        return torch.softmax(self.attention_logits(stream), dim=-1)

    def attention_logits(self, stream: Tensor) -> Tensor:
        """[B, H, S]: what the softmax over the tokens is taken of."""
        queries, keys = _by_head(self.query(stream[:, -1])), _by_head(self.key(stream))
        logits: Tensor = torch.einsum("bhe,bshe->bhs", queries, keys) / HEAD_WIDTH**0.5
        return logits


def _by_head(rows: Tensor) -> Tensor:
    """[..., H * e] as [..., H, e]."""
    return rows.reshape(*rows.shape[:-1], -1, HEAD_WIDTH)


def build_network(seed: int, heads: int = HEADS) -> AttentionOnly:
    """A network in PyTorch's default initialisation, drawn from the seed and the number of heads alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AttentionOnly(heads)


def with_weights(weights: dict[str, Tensor]) -> AttentionOnly:
    """A network that holds these weights, such as those that a masked memory gives; they say how many heads it has."""
    network = build_network(seed=0, heads=len(weights["query.weight"]) // HEAD_WIDTH)
    network.load_state_dict(weights)
    return network
