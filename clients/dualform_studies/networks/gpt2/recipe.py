"""How the language model is sized and trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """GPT-2 small has 12 blocks of 12 heads; the width is reduced from 768, the vocabulary from 50,257."""

    width: int = 48
    blocks: int = 12
    heads: int = 12
    vocabulary: int = 512
    """Tokens of a byte pair encoding, learned from the training text."""
    length: int = 64
    """Tokens of a passage: what the network reads at once."""
    batch: int = 2
    """Passages an update."""
    steps: int = 780
    lr: float = 3e-3
    weight_decay: float = 0.1
    warmup: float = 0.1
    """Share of the updates in which the rate rises; it falls along a cosine afterwards."""
    clip: float = 1.0
    asked: int = 200
    """Predictions of the test text that every layer is asked about."""
    masks: int = 2
    """Passages drawn at random that are masked, one after the other, besides the two of the examples."""

    def in_words(self) -> str:
        return (
            f"AdamW at {self.lr:g}, weight decay {self.weight_decay:g}, gradients clipped to norm {self.clip:g}, "
            f"warm-up over {100 * self.warmup:g} % of the updates and a cosine after it, bfloat16 autocast, "
            f"{self.batch} passages of {self.length} tokens an update"
        )
