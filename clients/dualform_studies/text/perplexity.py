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
    """Mean of -ln p(token | what was read before it)."""
    tokens: int
    """How many were predicted."""

    @property
    def perplexity(self) -> float:
        return exp(self.nats)

    @property
    def bits_per_token(self) -> float:
        return self.nats / log(2)


@torch.no_grad()
def foretell(network: LanguageModel, ids: NDArray[np.int64], streams: int = 1) -> Surprise:
    """Read a text int64[n], n at least 2; what is summed is summed in float64.

    The text is cut into `streams` runs of equal length, which are read side by side, each from a state of zeros to its
    end; fewer than `streams` tokens at the end of the text may be left over. The network is left in the mode it was in.
    """
    was_training = network.training
    network.eval()
    device = next(network.parameters()).device
    streams = min(streams, len(ids) - 1)
    length = (len(ids) - 1) // streams
    tokens = torch.from_numpy(ids).to(device)
    inputs, targets = (tokens[first : first + streams * length].view(streams, length) for first in (0, 1))
    state: State | None = None
    total, size = 0.0, max(1, _READ_AT_ONCE // streams)
    for start in range(0, length, size):
        scores, state = network(inputs[:, start : start + size], state)
        chosen = log_softmax(scores.double(), dim=2).gather(2, targets[:, start : start + size, None])
        total -= float(chosen.sum())
    network.train(was_training)
    return Surprise(total / (streams * length), streams * length)
