from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from dualform_studies.text.corpora import Unit
from dualform_studies.text.tokens import UNKNOWN, Vocabulary

_PLAIN = st.text(st.characters(codec="utf-8"), max_size=80)
_UNITS: tuple[Unit, ...] = ("character", "word")


@settings(max_examples=60, deadline=None)
@given(_PLAIN)
@example("<unk> Æsop's\n\n “Fox”—\u0301 \U0001f98a\t!")
def test_every_character_is_a_token_and_stands_where_its_offsets_say(text: str) -> None:
    vocabulary = Vocabulary(text, "character")
    tokens = vocabulary.encode(text)
    assert [tokens.word(at) for at in range(len(tokens))] == list(text)
    assert [vocabulary.words[number] for number in tokens.ids] == list(text)


@settings(max_examples=60, deadline=None)
@given(_PLAIN)
@example("<unk> a  b\n\nc \n d")
def test_every_word_is_a_token_and_stands_where_its_offsets_say(text: str) -> None:
    vocabulary = Vocabulary(text, "word")
    tokens = vocabulary.encode(text)
    words = [tokens.word(at) for at in range(len(tokens))]
    assert [vocabulary.words[number] for number in tokens.ids] == words
    assert all(word == "\n" or "\n" not in word for word in words)
    # Between tokens there is nothing but space, so none is lost.
    gaps = [text[end:start] for end, start in zip([0, *tokens.ends], [*tokens.starts, len(text)], strict=True)]
    assert all(not gap.strip() and "\n" not in gap for gap in gaps)


@pytest.mark.parametrize("unit", _UNITS)
def test_tokens_are_numbered_from_the_most_frequent_and_unknown_ones_are_zero(unit: Unit) -> None:
    text = "b b b a a c <unk>\n" if unit == "word" else "bbbaac"
    vocabulary = Vocabulary(text, unit)
    assert vocabulary.words[:4] == (UNKNOWN, "b", "a", *(("\n",) if unit == "word" else ("c",)))
    assert len(vocabulary) == len(vocabulary.words)
    tokens = vocabulary.encode("b z\na" if unit == "word" else "bz")
    assert tokens.ids[1] == 0
    assert tokens.word(1) == "z"


def test_the_vocabulary_has_every_word_however_many() -> None:
    text = " ".join(f"w{number}" for number in range(40_000))
    assert len(Vocabulary(text, "word")) == 40_001


def test_counts_decide_the_numbers() -> None:
    text = "the Wolf and the Lamb and the stream"
    vocabulary, counts = Vocabulary(text, "word"), Counter(text.split())
    ranked = [counts[word] for word in vocabulary.words[1:]]
    assert ranked == sorted(ranked, reverse=True)


def test_a_token_is_found_by_its_character() -> None:
    tokens = Vocabulary("one two  three", "word").encode("one two  three")
    assert [tokens.first_from(at) for at in (0, 1, 4, 8, 9, 10)] == [0, 1, 1, 2, 2, 3]
    np.testing.assert_array_equal(tokens.ends - tokens.starts, [3, 3, 5])
