"""How well a language model foretells a text."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import log_softmax

from dualform_studies.text.network import LanguageModel, State

_READ_AT_ONCE = 1024
"""Tokens: their scores of the whole vocabulary are held at once."""


@dataclass(frozen=True)
class Surprise:
    """Mean surprise over a text."""

    nats: float
    """Mean of -ln p(token | all before it) over all tokens but the first."""
    tokens: int
    """How many were foretold."""

    @property
    def perplexity(self) -> float:
        return exp(self.nats)

    @property
    def bits_per_token(self) -> float:
        return self.nats / log(2)


@torch.no_grad()
def foretell(network: LanguageModel, ids: NDArray[np.int64]) -> Surprise:
    """Read a text int64[n], n at least 2, from a state of zeros to its end; what is summed is summed in float64."""
    network.eval()
    device = next(network.parameters()).device
    tokens = torch.from_numpy(ids).to(device)
    state: State | None = None
    total = 0.0
    for start in range(0, len(ids) - 1, _READ_AT_ONCE):
        inputs = tokens[start : start + _READ_AT_ONCE][: len(ids) - 1 - start]
        targets = tokens[start + 1 : start + 1 + len(inputs)]
        scores, state = network(inputs[None], state)
        chosen = log_softmax(scores[0].double(), dim=1).gather(1, targets[:, None])
        total -= float(chosen.sum())
    return Surprise(total / (len(ids) - 1), len(ids) - 1)
