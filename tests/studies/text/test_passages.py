from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput
from dualform_studies.pages.items import MarkedPassage
from dualform_studies.text.corpora import Unit, load_corpus
from dualform_studies.text.passages import Passage, cut, find
from dualform_studies.text.prompts import own_prompts, paper_prompts
from dualform_studies.text.published import AESOP, WIKITEXT2, PublishedTable, Row
from dualform_studies.text.tokens import Vocabulary

_TEXTS = st.text(st.sampled_from("abc \n.<>"), min_size=1, max_size=400).filter(lambda text: text.strip())


@settings(max_examples=80, deadline=None)
@given(_TEXTS, st.sampled_from(["character", "word"]), st.data())
def test_a_passage_is_a_stretch_of_the_text_around_its_token(text: str, unit: Unit, data: st.DataObject) -> None:
    tokens = Vocabulary(text, unit).encode(text)
    at = data.draw(st.integers(0, len(tokens) - 1))
    passage = cut(tokens, at)
    start, end = int(tokens.starts[at]), int(tokens.ends[at])
    assert passage.token == text[start:end]
    assert text[:start].endswith(passage.before)
    assert text[end:].startswith(passage.after)
    assert len(passage.before) <= 90
    assert len(passage.after) <= 60


def test_a_passage_shows_whole_words() -> None:
    text = " ".join(f"word{number:03}" for number in range(100))
    tokens = Vocabulary(text, "character").encode(text)
    passage = cut(tokens, text.index("d050"))
    words = (passage.before + passage.token + passage.after).split()
    assert set(words) <= set(text.split())
    assert passage.before.endswith("wor")
    assert passage.after.startswith("050")
    assert len(words) > 15


def test_space_that_is_marked_can_be_seen() -> None:
    assert Passage("At", " ", "one\n time").marked() == MarkedPassage("At", "␣", "one time")
    assert Passage("A\n", "\n", "").marked() == MarkedPassage("A ", "↵", "")


def test_a_quotation_is_found_whatever_its_spaces_and_quotation_marks() -> None:
    text = "x\n“Why,” said\nthe <unk> Fox \u2019s cub , <unk> , <unk> in all . more"
    quoted = Passage('"Why," said the Fox\'s ', "cub", ", in all.")
    place = find(text, quoted)
    assert place is not None
    start, own, end, last = place
    assert text[own:end] == "cub"
    assert text[start:last] == "“Why,” said\nthe <unk> Fox \u2019s cub , <unk> , <unk> in all ."
    assert find(text, Passage("Why said the ", "Wolf", "")) is None


def test_a_marked_space_is_found_where_it_stands() -> None:
    text = "more. At\none time, at one time"
    assert find(text, Passage("At", " ", "one time")) == (6, 8, 9, 17)


@pytest.mark.parametrize("table", [*AESOP, *WIKITEXT2], ids=lambda table: f"table {table.number}")
def test_published_rows_mark_one_token(table: PublishedTable) -> None:
    unit: Unit = "character" if table in AESOP else "word"
    for row in (table.query, *table.rows):
        whole = row.passage.before + row.passage.token + row.passage.after
        tokens = Vocabulary(whole, unit).encode(whole)
        at = tokens.first_from(len(row.passage.before))
        assert tokens.word(at) == row.passage.token
    assert [row.rank for row in table.rows][:3] == ["Top-1", "Top-2", "Top-3"]
    assert table.query.rank == "Query"


def test_the_papers_query_is_cut_from_the_text_with_a_hundred_tokens_up_to_its_own(texts: Path) -> None:
    corpus = load_corpus("aesop", texts)
    vocabulary = Vocabulary(corpus.whole, "character")
    both = {"train": vocabulary.encode(corpus.train), "test": vocabulary.encode(corpus.test)}
    sentence = corpus.test.split("\n")[40]
    at = corpus.test.index(sentence)
    quoted = Passage(sentence[:9].replace(" ", "\n"), sentence[9], sentence[10:])
    table = PublishedTable(9, "", "test", Row("Query", quoted), ())
    absent = PublishedTable(8, "", "train", Row("Query", Passage("no such ", "t", "hing")), ())
    found, missing = paper_prompts(both, [table, absent])
    assert (found.name, found.after, found.place) == ("table-9", sentence[10:], at + 9)
    assert found.text == corpus.test[at + 10 - 100 : at + 10]
    assert (missing.name, missing.text, missing.after, missing.place) == ("table-8", "no such t", "hing", None)


def test_a_query_of_words_has_a_hundred_words_or_what_there_is() -> None:
    text = " ".join(f"w{number}" for number in range(150))
    tokens = Vocabulary(text, "word").encode(text)
    tables = [
        PublishedTable(number, "", "test", Row("Query", Passage("", f"w{number}", f" w{number + 1}")), ())
        for number in (120, 30)
    ]
    long, short = paper_prompts({"test": tokens, "train": tokens}, tables)
    assert long.text.split() == [f"w{number}" for number in range(21, 121)]
    assert short.text.split() == [f"w{number}" for number in range(31)]


def test_prompts_are_numbered_and_an_empty_one_is_refused() -> None:
    assert [prompt.name for prompt in own_prompts(["a", "b"], first=3)] == ["prompt-3", "prompt-4"]
    with pytest.raises(BadInput, match="prompt must not be empty"):
        own_prompts([" \n"])
