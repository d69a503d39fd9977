"""What is said wherever a mask is offered: what it means, and how much the removed terms cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WHAT_A_MASK_MEANS = (
    "A mask takes terms out of this training's sum, by arithmetic; it is not retraining without them. What remains was "
    "learned beside what is masked."
)


def cancellation(
    memory: Any, where: str | None, at_step: int | None, layer: str | None = None
) -> dict[str, float] | None:
    """By layer, the removed terms' sum of norms over the norm of their sum. None without a mask, or from a server."""
    if where is None or not hasattr(memory, "cancellation"):
        return None
    figures: dict[str, float] = memory.cancellation(where, at_step, layer)
    return figures


def describe(figures: Mapping[str, float]) -> str:
    """One sentence, or nothing where there are no figures."""
    if not figures:
        return ""
    listed = ", ".join(f"{layer} {figure:.3g}" for layer, figure in figures.items())
    meaning = "1: its terms all push one way; tens or hundreds: they mostly cancel each other"
    return f"Cancellation of what was masked ({meaning}): {listed}."
