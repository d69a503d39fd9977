"""How the image network is sized and trained."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Recipe:
    """ResNet-18 has two blocks at each of four widths, 64 to 512; they are divided by eight here."""

    width: int = 8
    """Channels of the first stage; each further one has twice as many."""
    images: int = 4000
    """Training images, the first that the split of the other studies draws."""
    epochs: int = 4
    batch: int = 64
    lr: float = 3e-3
    weight_decay: float = 0.05
    clip: float = 1.0
    asked: int = 200
    """Test images, drawn at random, that every layer is asked about."""
    steps: int | None = None
    """Updates, in place of whole epochs."""

    @property
    def updates(self) -> int:
        return self.epochs * ceil(self.images / self.batch) if self.steps is None else self.steps

    def in_words(self) -> str:
        return (
            f"AdamW at {self.lr:g} at most in one cycle, weight decay {self.weight_decay:g}, gradients clipped to norm "
            f"{self.clip:g}, bfloat16 mixed precision, {self.batch} images an update"
        )
