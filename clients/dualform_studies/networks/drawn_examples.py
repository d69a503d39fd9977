"""The examples that a study shows: drawn at random, so that nobody picks those that look well."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def draw_examples(right: NDArray[np.bool_], draw: np.random.Generator) -> dict[str, int]:
    """Number of a prediction by "right" and "wrong": one drawn at random among all that are; a kind may be missing."""
    of_kind = {"right": np.flatnonzero(right), "wrong": np.flatnonzero(~right)}
    return {kind: int(draw.choice(those)) for kind, those in of_kind.items() if len(those)}
