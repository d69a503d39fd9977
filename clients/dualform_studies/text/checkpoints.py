"""The paper's queries, taken while a training still runs: what they would have found, had it ended there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dualform_studies.text.network import LanguageModel
from dualform_studies.text.perplexity import foretell
from dualform_studies.text.tokens import Tokens

MOST = 10
"""Checkpoints of a training."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Shapes: m queries, d of a key."""

    updates: int
    """That the network has had."""
    perplexity: float
    """Of the test text."""
    queries: NDArray[np.float32]
    """float32[m, d]: of the last token of each prompt."""


def updates_to_stop_at(steps: int, of_a_pass: int, most: int = MOST) -> list[int]:
    """`most` numbers of updates or fewer, evenly spaced and ascending, the last being all `steps`.

    They end whole passes where there are as many as two: elsewhere some tokens have been read once more than others,
    and lead for that alone.
    """
    unit = of_a_pass if steps >= 2 * of_a_pass else 1
    units = steps // unit
    count = min(most, units)
    return sorted({*(unit * (units * number // count) for number in range(1, count)), steps})


def last_queries(network: LanguageModel, prompts: Sequence[Tokens]) -> NDArray[np.float32]:
    """float32[m, d]: the key of the last token of each prompt, which is read from a state of zeros."""
    if not prompts:
        return np.empty((0, 0), dtype=np.float32)
    device = next(network.parameters()).device
    rows = [network.queries(torch.from_numpy(prompt.ids).to(device))[-1:].cpu() for prompt in prompts]
    return torch.cat(rows).numpy()


class CheckpointTaker:
    """Watches a training, and takes its checkpoints."""

    def __init__(self, at: Sequence[int], prompts: Sequence[Tokens], test: Tokens, streams: int) -> None:
        """`at`: numbers of updates; `streams`: how the test text is read (perplexity.py)."""
        self._at, self._prompts, self._test, self._streams = frozenset(at), prompts, test, streams
        self.taken: list[Checkpoint] = []

    def __call__(self, network: LanguageModel, updates: int) -> None:
        if updates in self._at:
            perplexity = foretell(network, self._test.ids, self._streams).perplexity
            self.taken.append(Checkpoint(updates, perplexity, last_queries(network, self._prompts)))
