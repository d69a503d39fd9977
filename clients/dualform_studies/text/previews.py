"""What the tokens of a language study look like: passages of its texts, in which each token is found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualform import PreviewSet
from dualform_studies.text.recipe import Recipe
from dualform_studies.text.streams import chunks_of_a_pass
from dualform_studies.text.tokens import Tokens


def passages(tokens: Tokens, begins: Sequence[int], length: int, positions: Sequence[int] | None = None) -> PreviewSet:
    """Stretches of a text, each of `length` tokens from one of `begins` on. `positions`: those of their first tokens,
    as slots have them; None for 0.
    """
    texts, offsets = [], []
    for begin in begins:
        starts, ends = (own[begin : begin + length] for own in (tokens.starts, tokens.ends))
        texts.append(tokens.text[starts[0] : ends[-1]])
        offsets.append(np.stack([starts, ends], axis=1) - starts[0])
    return PreviewSet.texts(texts, offsets=offsets, first=positions)


def streams(tokens: Tokens, recipe: Recipe) -> PreviewSet:
    """What each stream reads, by its number. Positions count the tokens of the whole text."""
    length = chunks_of_a_pass(len(tokens), recipe) * recipe.unroll
    begins = [stream * length for stream in range(recipe.batch)]
    return passages(tokens, begins, length, begins)
