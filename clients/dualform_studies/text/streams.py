"""Batches of a text as recurrent networks read it. Shapes: n tokens, B streams, L tokens of a chunk.

Each stream begins at a place of its own, the places being evenly spaced, and reads on from chunk to chunk; after the
last token it goes on with the first. So after any number of steps no token was read more than once more than another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform_studies.text.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Chunk:
    positions: NDArray[np.int64]
    """int64[B, L]: which tokens of the text are read, counted from its first."""
    inputs: NDArray[np.int64]
    """int64[B, L]: the tokens at these positions."""
    targets: NDArray[np.int64]
    """int64[B, L]: the tokens after them."""


def chunks(ids: NDArray[np.int64], recipe: Recipe) -> Iterator[Chunk]:
    """One chunk for each step, of tokens int64[n]. Raises BadInput where the text has no second token.

    The last token is never read, as none follows it.
    """
    length = len(ids) - 1
    if length < 1:
        raise BadInput("a text of one token cannot be learned.", hint="Train on a longer text.", field="data")
    first = np.arange(recipe.batch) * length // recipe.batch
    for step in range(recipe.steps):
        positions = (first[:, None] + step * recipe.unroll + np.arange(recipe.unroll)) % length
        yield Chunk(positions, ids[positions], ids[positions + 1])
