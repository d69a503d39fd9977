"""What is memorised: every pair of tokens, each with one next token. Shapes: N tokens, P = N * N pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOKENS = "abcde"
"""The dictionary; a token's number is its place here."""


@dataclass(frozen=True, eq=False)
class Facts:
    """All pairs, as (a, a), (a, b), … (e, e), and what follows each of them."""

    next_tokens: Tensor
    """int64[P]."""

    @property
    def pairs(self) -> Tensor:
        """int64[P, 2]: first and second token."""
        tokens = torch.arange(len(TOKENS))
        return torch.cartesian_prod(tokens, tokens)

    @property
    def names(self) -> list[str]:
        """The pairs in letters: "aa", "ab", …"""
        return [TOKENS[first] + TOKENS[second] for first, second in self.pairs.tolist()]

    def __len__(self) -> int:
        return len(self.next_tokens)

    def right(self, logits: Tensor) -> NDArray[np.bool_]:
        """bool[..., P]: where the greatest of logits [..., P, N] is that of the next token."""
        right: NDArray[np.bool_] = (logits.argmax(dim=-1) == self.next_tokens).numpy()
        return right


def draw_facts(seed: int) -> Facts:
    """A next token for each pair, uniform and independent: nothing but memory can know it."""
    drawn = np.random.default_rng(seed).integers(len(TOKENS), size=len(TOKENS) ** 2)
    return Facts(torch.from_numpy(drawn))
