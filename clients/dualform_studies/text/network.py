"""The paper's language model: an embedding, one LSTM layer, and a linear layer to the vocabulary (appendix C.1).

Shapes: B texts, L tokens of each, V tokens of the vocabulary, h units of the LSTM, e inputs of it.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from dualform_studies.text.recipe import Recipe

State: TypeAlias = tuple[Tensor, Tensor]
"""Hidden state and cell, float32[1, B, h] each."""

LAYER = "lstm"
"""Name of the layer whose one linear transformation is examined: its key is [h_(t-1); x_t], float32[h + e]."""


class LanguageModel(nn.Module):
    """Scores of each next token. Weights of the embedding begin at U(-0.1, 0.1); input and output share none."""

    def __init__(self, vocabulary: int, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.projection or recipe.embedding
        self.embedding = nn.Embedding(vocabulary, recipe.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.projection = nn.Linear(recipe.embedding, recipe.projection) if recipe.projection else nn.Identity()
        self.dropout = nn.Dropout(recipe.dropout)
        self.lstm = nn.LSTM(width, recipe.hidden, batch_first=True)
        self.output = nn.Linear(recipe.hidden, vocabulary)

    def inputs(self, tokens: Tensor) -> Tensor:
        """float32[B, L, e]: the LSTM's input for tokens int64[B, L]."""
        inputs: Tensor = self.projection(self.dropout(self.embedding(tokens)))
        return inputs

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """float32[B, L, V] for tokens int64[B, L], and the state after the last; no state is a state of zeros."""
        hidden, state = self.lstm(self.inputs(tokens), state)
        return self.output(hidden), state

    @torch.no_grad()
    def queries(self, tokens: Tensor) -> Tensor:
        """float32[L, h + e]: [h_(t-1); x_t] for each token of one text int64[L] read from a state of zeros."""
        was_training = self.training
        self.eval()
        inputs = self.inputs(tokens[None])
        hidden, _ = self.lstm(inputs)
        self.train(was_training)
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        return torch.cat([before, inputs], dim=2)[0]


def build_network(vocabulary: int, recipe: Recipe, seed: int) -> LanguageModel:
    """A network in its initial weights, drawn from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(vocabulary, recipe)
