"""The networks that are trained under AdamW for the benchmarks, on generated data: what they learn is of no concern.

Shapes: B examples of a step, L tokens of a text.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from dualform import Recorder

GROUPS = 10
"""Labels of examples, of which masks leave half."""
WORDS, TOKENS = 512, 64


class Transformer(nn.Module):
    """A language model of torch's own encoder layers, which have no biases: attention's moves its keys' by rounding."""

    def __init__(self, width: int = 256, layers: int = 2, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True, bias=False)
            for _ in range(layers)
        )
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, mask, use_reentrant=False) if self.checkpointed else layer(x, mask)
        logits: Tensor = self.head(x)
        return logits


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, GROUPS))


def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """float32[B, 784] and int64[B]."""
    return torch.randn(256, 784, generator=generator), torch.randint(0, GROUPS, (256,), generator=generator)


def small_perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, GROUPS))


def digits(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """float32[B, 64] and int64[B]."""
    return torch.randn(32, 64, generator=generator), torch.randint(0, GROUPS, (32,), generator=generator)


def texts(generator: torch.Generator, count: int = 16) -> tuple[Tensor, Tensor]:
    """int64[B, L] and the words that follow."""
    tokens = torch.randint(0, WORDS, (count, TOKENS + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]]


def train(
    model: nn.Module, batches: Batches, steps: int, memory: Path | None, seen: Callable[[], None] = lambda: None
) -> None:
    """Train under AdamW, recorded into `memory` where there is one; `seen` is called after every step."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    recorder = None if memory is None else Recorder(model, optimizer, memory, quiet=True)
    with recorder or nullcontext():
        for _ in range(steps):
            inputs, targets = batches(generator)
            with _step(recorder, len(inputs)):
                optimizer.zero_grad()
                torch.autograd.backward(cross_entropy(model(inputs).flatten(0, -2), targets.flatten()))
                optimizer.step()
            seen()


def _step(recorder: Recorder | None, examples: int) -> AbstractContextManager[object]:
    return nullcontext() if recorder is None else recorder.step(label=torch.arange(examples) % GROUPS)
