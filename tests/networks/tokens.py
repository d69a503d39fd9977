"""Networks of which a slot is a token, or that have both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim import Optimizer

from .network import STEPS, Batch, Network

B, L, D, WORDS, CLASSES = 6, 9, 8, 20, 3


def texts(length: int = L) -> Iterator[Batch]:
    """Batches of tokens [B, L + 1] with what is known of a text."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, WORDS, (40, length + 1), generator=generator)
    for _ in range(STEPS):
        index = torch.randint(0, 40, (B,), generator=generator)
        yield Batch((tokens[index], index % CLASSES), {"label": index % CLASSES, "sample": index})


def next_token(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    tokens, _ = inputs
    return cross_entropy(model(tokens[:, :-1]).reshape(-1, WORDS), tokens[:, 1:].reshape(-1))


def classify(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(inputs[0]), inputs[1])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unsqueeze(1).chunk(3, -1)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        return x + self.down(torch.relu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, D), nn.Linear(D, WORDS)
        self.blocks, self.flat = nn.Sequential(Block(), Block()), flat

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.embedding(tokens))
        return self.head(x.reshape(-1, D) if self.flat else x)


Network("gpt", Gpt, texts, next_token)
Network("gpt-flattened-head", lambda: Gpt(flat=True), texts, next_token, options={"spaces": {"head": "token"}})


class Encoder(nn.Module):
    """nn.TransformerEncoder between an embedding and a head; time first, PyTorch's default, or batch first."""

    def __init__(self, batch_first: bool, pooled: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.1, batch_first=batch_first)
        self.embedding, self.encoder = (
            nn.Embedding(WORDS, D),
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        )
        self.head = nn.Linear(D, CLASSES if pooled else WORDS)
        self.batch_first, self.pooled = batch_first, pooled

    def forward(self, tokens: Tensor) -> Tensor:
        if self.batch_first:
            x = self.encoder(self.embedding(tokens))
            return self.head(x.mean(1)) if self.pooled else self.head(x)
        x = self.head(self.encoder(self.embedding(tokens.T)))
        return x.transpose(0, 1)


def by_adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


PARTS = tuple(f"encoder.layers.{n}.self_attn.{part}" for n in range(2) for part in ("q", "k", "v", "out_proj"))
ENCODER = (*PARTS, *(f"encoder.layers.{n}.linear{k}" for n in range(2) for k in (1, 2)))
ENCODED = {"layers": ("embedding", *ENCODER, "head")}
Network("bert", lambda: Encoder(True), texts, next_token, **ENCODED)
Network("bert-classifier", lambda: Encoder(True, pooled=True), texts, classify, by_adamw, **ENCODED)
Network(
    "time-first-encoder",
    lambda: Encoder(False),
    texts,
    next_token,
    time_first=frozenset(("embedding", *ENCODER, "head")),
    **ENCODED,
)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool = True) -> None:
        super().__init__()
        self.embedding, self.recurrent, self.head = (
            nn.Embedding(WORDS, D),
            kind(D, 6, batch_first=batch_first),
            nn.Linear(6, WORDS),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        if self.recurrent.batch_first:
            return self.head(self.recurrent(self.embedding(tokens))[0])
        return self.head(self.recurrent(self.embedding(tokens.T))[0]).transpose(0, 1)


Network("lstm", lambda: Recurrent(nn.LSTM), texts, next_token, layers=("embedding", "recurrent", "head"))
Network(
    "time-first-lstm",
    lambda: Recurrent(nn.LSTM, batch_first=False),
    texts,
    next_token,
    layers=("embedding", "recurrent", "head"),
    time_first=frozenset(("embedding", "recurrent", "head")),
)
Network(
    "gru",
    lambda: Recurrent(nn.GRU),
    texts,
    next_token,
    layers=("embedding", "recurrent.gates", "recurrent.candidate_input", "recurrent.candidate_hidden", "head"),
)


class EncoderDecoder(nn.Module):
    """Two texts of other lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(WORDS, D), nn.Linear(D, D)
        self.decoder = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, WORDS))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        context = torch.tanh(self.encoder(self.embedding(source))).mean(1, keepdim=True)
        return self.decoder(self.embedding(target) + context)


def translate(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    tokens, _ = inputs
    return cross_entropy(model(tokens, tokens[:, :4]).reshape(-1, WORDS), tokens[:, 1:5].reshape(-1))


Network("encoder-decoder", EncoderDecoder, texts, translate, options={"spaces": {"decoder.*": "target"}})


class Experts(nn.Module):
    """A router that sends each token to one of three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.router, self.head = nn.Embedding(WORDS, D), nn.Linear(D, 3), nn.Linear(D, WORDS)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        gates = self.router(x).softmax(-1)
        chosen, flat, routed = gates.argmax(-1).flatten(), x.reshape(-1, D), torch.zeros(x.numel() // D, D)
        for number, expert in enumerate(self.experts):
            index = (chosen == number).nonzero()[:, 0]
            if len(index):
                routed = routed.index_add(0, index, expert(flat[index]) * gates.reshape(-1, 3)[index, number, None])
        return self.head(x + routed.reshape(x.shape))


Network("experts", Experts, texts, next_token, options={"routed": ["experts.*"]})


class Positions(nn.Module):
    """A language model whose head is its embedding, with positions that are looked up once for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(WORDS, D, padding_idx=0), nn.Embedding(16, D)
        self.block, self.head = Block(), nn.Linear(D, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))))


Network("tied-embedding", Positions, texts, next_token)
