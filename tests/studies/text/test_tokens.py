from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from dualform.errors import BadInput
from dualform_studies.text.tokens import UNKNOWN, Vocabulary

_PLAIN = st.text(st.characters(codec="utf-8"), max_size=80)


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


def test_tokens_are_numbered_in_their_own_order() -> None:
    assert Vocabulary("Æb\na b", "character").words == ("\n", " ", "a", "b", "Æ")
    assert Vocabulary("b Crow a", "word").words == (UNKNOWN, "Crow", "a", "b")


def test_an_unknown_word_is_told_and_an_unknown_character_is_refused() -> None:
    words = Vocabulary("b a <unk>\n", "word")
    tokens = words.encode("b z\na")
    assert tokens.ids.tolist() == [3, words.unknown, 0, 2]
    assert tokens.word(1) == "z"
    assert words.lacks(words.encode("b <unk> z a")).tolist() == [False, False, True, False]
    characters = Vocabulary("bba", "character")
    assert characters.unknown == -1
    with pytest.raises(BadInput, match=r"the network was not trained with 'x', 'é'\.") as error:
        characters.encode("abéx")
    assert error.value.field == "prompt"


def test_the_vocabulary_has_every_word_however_many() -> None:
    text = " ".join(f"w{number}" for number in range(40_000))
    assert len(Vocabulary(text, "word")) == 40_001


def test_a_token_is_found_by_its_character() -> None:
    tokens = Vocabulary("one two  three", "word").encode("one two  three")
    assert [tokens.first_from(at) for at in (0, 1, 4, 8, 9, 10)] == [0, 1, 1, 2, 2, 3]
    np.testing.assert_array_equal(tokens.ends - tokens.starts, [3, 3, 5])


def test_tokens_that_end_with_one_are_those_of_the_same_text() -> None:
    tokens = Vocabulary("one two  three", "word").encode("one two  three")
    last = tokens.ending(2, 2)
    assert [last.word(at) for at in range(2)] == ["two", "three"]
    assert last.text == tokens.text
    assert len(tokens.ending(2, 9)) == 3
    assert [tokens.ending(1, 1).word(0), tokens.ending(0, 5).word(0)] == ["two", "one"]
