"""Tokens of a text, each with the place in the text that it came from. Shape: n tokens.

A token is a character, or a word as spaces and line ends set it apart; a line end is a token of its own. Words that the
vocabulary does not have become <unk>, and keep their place; a character that it does not have is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
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

    def ending(self, at: int, count: int) -> Tokens:
        """The `count` tokens that end with token `at`, fewer where the text has fewer; still of the same text."""
        part = slice(max(0, at + 1 - count), at + 1)
        return Tokens(self.text, self.ids[part], self.starts[part], self.ends[part])


class Vocabulary:
    """The distinct tokens of a text, in the order of their characters' numbers; of words, <unk> is always one."""

    def __init__(self, text: str, unit: Unit) -> None:
        """Raises MissingPackage where `tokenizers` is not installed."""
        try:
            from tokenizers import Tokenizer
            from tokenizers.models import WordLevel
        except ImportError as error:
            raise missing_package(error) or error from None
        splitter = _splitter(unit)
        distinct = {word for word, _ in splitter.pre_tokenize_str(text)} | ({UNKNOWN} if unit == "word" else set())
        self.words = tuple(sorted(distinct))
        """By id."""
        numbers = {word: number for number, word in enumerate(self.words)}
        self.unknown = numbers.get(UNKNOWN, -1)
        """Id of <unk>; -1 for characters, which have none."""
        self.tokenizer = Tokenizer(WordLevel(numbers, unk_token=UNKNOWN))
        self.tokenizer.pre_tokenizer = splitter

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> Tokens:
        """Raises BadInput for a character that is not among them, where tokens are characters."""
        if self.unknown < 0 and (strange := sorted(set(text) - set(self.words))):
            raise BadInput(
                f"the network was not trained with {', '.join(map(repr, strange))}.",
                hint="Use only characters of the training text in a prompt.",
                field="prompt",
            )
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return Tokens(text, np.array(encoding.ids, dtype=np.int64), offsets[:, 0], offsets[:, 1])

    def lacks(self, tokens: Tokens) -> NDArray[np.bool_]:
        """bool[n]: which tokens are read as <unk>, but do not stand there as <unk> themselves."""
        lacking: NDArray[np.bool_] = tokens.ids == self.unknown
        lacking[lacking] = [tokens.word(at) != UNKNOWN for at in np.flatnonzero(lacking).tolist()]
        return lacking


def _splitter(unit: Unit) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Sequence, Split

    if unit == "character":
        return Split(Regex(r"[\s\S]"), "isolated")
    return Sequence([Split(Regex("[^\\S\n]+"), "removed"), Split("\n", "isolated")])
