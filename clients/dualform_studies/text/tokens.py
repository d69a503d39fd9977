"""Tokens of a text, each with the place in the text that it came from. Shape: n tokens.

A token is a character, or a word as spaces and line ends set it apart; a line end is a token of its own. Tokens that
the training text does not have become <unk>, and keep their place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dualform.extras import missing_package
from dualform_studies.text.corpora import Unit

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

UNKNOWN = "<unk>"


@dataclass(frozen=True, eq=False)
class Tokens:
    text: str
    ids: NDArray[np.int64]
    """int64[n]."""
    starts: NDArray[np.int64]
    """int64[n]: first character of each token in `text`."""
    ends: NDArray[np.int64]
    """int64[n]: one past its last."""

    def __len__(self) -> int:
        return len(self.ids)

    def word(self, at: int) -> str:
        """The token as it stands in the text."""
        return self.text[self.starts[at] : self.ends[at]]

    def first_from(self, character: int) -> int:
        """The first token that begins at a character of the text or after it; n where there is none."""
        return int(np.searchsorted(self.starts, character))


class Vocabulary:
    """The distinct tokens of a training text, numbered from the most frequent; 0 is <unk>, in the text or not."""

    def __init__(self, text: str, unit: Unit) -> None:
        """Raises MissingPackage where `tokenizers` is not installed."""
        try:
            from tokenizers import Tokenizer
            from tokenizers.models import WordLevel
        except ImportError as error:
            raise missing_package(error) or error from None
        splitter = _splitter(unit)
        counts = Counter(word for word, _ in splitter.pre_tokenize_str(text))
        counts.pop(UNKNOWN, None)
        self.words = (UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word)))
        """By id."""
        numbers = {word: number for number, word in enumerate(self.words)}
        self.tokenizer = Tokenizer(WordLevel(numbers, unk_token=UNKNOWN))
        self.tokenizer.pre_tokenizer = splitter

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> Tokens:
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return Tokens(text, np.array(encoding.ids, dtype=np.int64), offsets[:, 0], offsets[:, 1])


def _splitter(unit: Unit) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Sequence, Split

    if unit == "character":
        return Split(Regex(r"[\s\S]"), "isolated")
    return Sequence([Split(Regex("[^\\S\n]+"), "removed"), Split("\n", "isolated")])
