"""Batches of a text as the paper's code reads it. Shapes: n tokens, B streams, L tokens of a chunk.

The text is cut into chunks, and the chunks into B runs of equal length. One stream reads each run, chunk after chunk,
all streams side by side; what is left over at the end of the text is not read. After the last chunk each stream goes
back to its first one, which begins another pass.
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
    opens: bool
    """Whether a pass begins with it."""
    positions: NDArray[np.int64]
    """int64[B, L]: which tokens of the text are read, counted from its first."""
    inputs: NDArray[np.int64]
    """int64[B, L]: the tokens at these positions."""
    targets: NDArray[np.int64]
    """int64[B, L]: the tokens after them."""


def chunks_of_a_pass(length: int, recipe: Recipe) -> int:
    """Chunks of each stream, which are the steps of a pass over a text of `length` tokens.

    Raises BadInput where the text is too short for one.
    """
    # The last token is never read, as none follows it.
    count = (length - 1) // recipe.unroll // recipe.batch
    if count < 1:
        raise BadInput(
            f"a text of {length:,} tokens is too short: each of {recipe.batch} streams needs a chunk of "
            f"{recipe.unroll}.",
            hint="Train on a longer text.",
            field="data",
        )
    return count


def reads_evenly(steps: int, of_a_pass: int) -> bool:
    """Whether all tokens that so many steps read are read equally often, where a pass takes `of_a_pass` of them."""
    return steps <= of_a_pass or steps % of_a_pass == 0


def chunks(ids: NDArray[np.int64], recipe: Recipe) -> Iterator[Chunk]:
    """One chunk for each step, of tokens int64[n]. Raises BadInput where the text is too short."""
    count = chunks_of_a_pass(len(ids), recipe)
    first = np.arange(recipe.batch) * count * recipe.unroll
    for step in range(recipe.steps):
        within = step % count
        positions = first[:, None] + within * recipe.unroll + np.arange(recipe.unroll)
        yield Chunk(within == 0, positions, ids[positions], ids[positions + 1])
