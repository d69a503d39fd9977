"""Texts, tokens and batches."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from dualform.errors import BadInput, Damaged, NotFound
from dualform_studies.text.corpora import UNKNOWN, Unit, Vocabulary, load_corpus
from dualform_studies.text.training import Recipe, chunks, chunks_of_a_pass
from tests.studies.text.made_up import write_aesop, write_wikitext2


def test_the_book_is_cut_at_the_first_fable_and_before_the_announcements_whatever_is_added(tmp_path: Path) -> None:
    bare = write_aesop(tmp_path)
    corpus = load_corpus("aesop", tmp_path)
    assert corpus.train.startswith("THE WOLF AND THE LAMB\n\n\nWhen the Hare awoke")
    assert (len(corpus.train), len(corpus.test)) == (119_933, 17_761)
    assert corpus.whole[corpus.begin :].startswith(corpus.train + corpus.test + "ANNOUNCEMENTS\n")
    assert "Lamb a little distance below" in corpus.test
    assert "introduction" not in corpus.train
    path = tmp_path / "aesop" / "49010-0.txt"
    path.with_name("49010-0.txt.gz").unlink()
    whole = f"Licence @\n*** START OF THIS EBOOK ***\n{bare}End of the Project Gutenberg EBook\n*** END OF IT ***\nMore"
    path.write_bytes(b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode("utf-8"))
    found = load_corpus("aesop", tmp_path)
    assert (found.train, found.test) == (corpus.train, corpus.test)
    assert found.whole.startswith("Licence @\n")
    assert found.title(0) == corpus.title(0) == "THE WOLF AND THE LAMB"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("THE WOLF AND THE LAMB", "THE WOLF AND A LAMB", "has no line THE WOLF AND THE LAMB, the heading of the"),
        ("ANNOUNCEMENTS", "NOTICES", "has no line ANNOUNCEMENTS, where the text ends"),
        (
            "ANNOUNCEMENTS",
            "x" * 1700 + "\nANNOUNCEMENTS",
            r"has 139,395 characters .* instead of 137,694: 64 streams would have 19 chunks of 100, not 18",
        ),
        ("ANNOUNCEMENTS", "x" * 1500 + "\nANNOUNCEMENTS", ""),
    ],
    ids=["first", "last", "longer", "a little longer"],
)
def test_another_edition_is_refused_with_what_does_not_fit(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = write_aesop(tmp_path).replace(old, new)
    (tmp_path / "aesop" / "49010-0.txt.gz").write_bytes(gzip.compress(text.encode("utf-8")))
    if not message:
        assert len(load_corpus("aesop", tmp_path).train) == 119_933 + 1501, "streams are as long as they were"
        return
    with pytest.raises(Damaged, match=message) as error:
        load_corpus("aesop", tmp_path)
    assert "Fetch https://www.gutenberg.org/files/49010/49010-0.txt" in (error.value.hint or "")


def test_a_passage_belongs_to_the_last_title_before_it_and_an_article_goes_to_the_next(made_up_data: Path) -> None:
    aesop, wikitext2 = load_corpus("aesop", made_up_data), load_corpus("wikitext-2", made_up_data)
    second = aesop.train.index("THE TALE OF Æ 2\n")
    places = {second - 2: "1", second: "2", second + 60: "2"}
    assert {at: aesop.title(at) for at in places} == {at: f"THE TALE OF Æ {number}" for at, number in places.items()}
    assert [wikitext2.title(at) for at in (0, len(wikitext2.train) - 1)] == ["", "Page 3 of valid"]
    pages = [wikitext2.article(wikitext2.train.index(f"Page {page} of valid")) for page in range(4)]
    assert "".join(pages) == wikitext2.train[wikitext2.train.index("Page 0") :]
    assert [page.count(" = = More = = ") for page in pages] == [1, 1, 1, 1]


def test_the_train_split_is_used_where_it_is_there_and_its_absence_is_told(made_up_data: Path, tmp_path: Path) -> None:
    absent = load_corpus("wikitext-2", made_up_data)
    assert (absent.train_split, "not at hand" in absent.note) == ("the valid split", True)
    assert "Page 0 of valid" in absent.train
    write_wikitext2(tmp_path, "train", "valid", "test")
    present = load_corpus("wikitext-2", tmp_path)
    assert (present.train_split, present.note) == ("the train split", "")
    assert ("Page 0 of train" in present.train, "Page 0 of test" in present.test) == (True, True)
    for split in ("train", "valid", "test"):
        (tmp_path / "wikitext-2" / f"{split}.txt.gz").unlink()
        (tmp_path / "wikitext-2" / f"wiki.{split}.tokens").write_text(f" = {split} = \n")
    corpus = load_corpus("wikitext-2", tmp_path)
    assert (corpus.train, corpus.test) == (" = train = \n", " = test = \n"), "the names of their publication"


def test_a_file_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"49010-0.txt is not in .*aesop") as error:
        load_corpus("aesop", tmp_path)
    assert "another data folder with --data DIR or the environment variable DUALFORM_DATA" in (error.value.hint or "")
    write_wikitext2(tmp_path, "valid")
    with pytest.raises(NotFound, match=r"test.txt is not in .*wikitext-2"):
        load_corpus("wikitext-2", tmp_path)
    write_aesop(tmp_path)
    path = tmp_path / "aesop" / "49010-0.txt.gz"
    for content in (path.read_bytes()[:50], gzip.compress(b"\xff\xfe no UTF-8")):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"49010-0.txt.gz cannot be read"):
            load_corpus("aesop", tmp_path)


def recipe(batch: int, unroll: int, steps: int) -> Recipe:
    return Recipe(embedding=4, projection=0, hidden=4, lr=1e-3, clip=1.0, batch=batch, steps=steps, unroll=unroll)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 90), st.integers(1, 6), st.integers(1, 9), st.integers(1, 12))
def test_positions_name_the_tokens_read_and_streams_read_on(length: int, batch: int, unroll: int, steps: int) -> None:
    ids = np.random.default_rng(length).integers(0, 9, length)
    own = recipe(batch, unroll, steps)
    if length - 1 < batch * unroll:
        with pytest.raises(BadInput, match=f"each of {batch} streams needs a chunk of {unroll}"):
            next(chunks(ids, own))
        return
    of_a_pass, read = chunks_of_a_pass(length, own), list(chunks(ids, own))
    assert [chunk.opens for chunk in read] == [step % of_a_pass == 0 for step in range(steps)]
    for chunk in read:
        assert chunk.positions.shape == (batch, unroll)
        np.testing.assert_array_equal(chunk.inputs, ids[chunk.positions])
        np.testing.assert_array_equal(chunk.targets, ids[chunk.positions + 1])
    visits = np.bincount(np.concatenate([chunk.positions.ravel() for chunk in read]), minlength=length)
    reach = of_a_pass * batch * unroll
    assert reach <= length - 1 < reach + batch * unroll + unroll
    assert visits[reach:].sum() == 0
    assert np.ptp(visits[:reach]) <= 1


def test_streams_are_runs_of_chunks_side_by_side_as_the_papers_code_cuts_them() -> None:
    """Against the indices of its sampler, written out: chunk 18 b + step for stream b of 64, of 100 characters each."""
    ids, own = np.arange(119_933), recipe(64, 100, 20)
    assert chunks_of_a_pass(len(ids), own) == 18
    for step, chunk in enumerate(chunks(ids, own)):
        expected = np.array([(stream * 18 + step % 18) * 100 for stream in range(64)])
        np.testing.assert_array_equal(chunk.positions, expected[:, None] + np.arange(100))


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=80), st.sampled_from(["character", "word"]))
@example("<unk> Æsop's\n\n “Fox”—\u0301 \U0001f98a\t!", "character")
@example("<unk> a  b\n\nc \n d", "word")
def test_every_token_stands_where_its_offsets_say_and_none_is_lost(text: str, unit: Unit) -> None:
    vocabulary = Vocabulary(text, unit)
    tokens = vocabulary.encode(text)
    words = [tokens.word(at) for at in range(len(tokens))]
    assert [vocabulary.words[number] for number in tokens.ids] == words
    assert unit == "word" or words == list(text)
    assert all(unit == "character" or word == "\n" or "\n" not in word for word in words)
    # Between tokens there is nothing but space.
    gaps = [text[end:start] for end, start in zip([0, *tokens.ends], [*tokens.starts, len(text)], strict=True)]
    assert all(not gap.strip() and "\n" not in gap for gap in gaps)


def test_tokens_are_numbered_in_order_and_unknown_words_told_and_unknown_characters_refused() -> None:
    assert Vocabulary("Æb\na b", "character").words == ("\n", " ", "a", "b", "Æ")
    assert Vocabulary("b Crow a", "word").words == (UNKNOWN, "Crow", "a", "b")
    words = Vocabulary("b a <unk>\n", "word")
    tokens = words.encode("b z\na")
    assert tokens.ids.tolist() == [3, words.unknown, 0, 2]
    assert tokens.word(1) == "z"
    assert len(Vocabulary(" ".join(f"w{number}" for number in range(40_000)), "word")) == 40_001
    characters = Vocabulary("bba", "character")
    assert characters.unknown == -1
    with pytest.raises(BadInput, match=r"the network was not trained with 'x', 'é'\.") as error:
        characters.encode("abéx")
    assert error.value.field == "prompt"


def test_tokens_are_found_by_character_and_cut_behind_one() -> None:
    tokens = Vocabulary("one two  three", "word").encode("one two  three")
    assert [tokens.first_from(at) for at in (0, 1, 4, 8, 9, 10)] == [0, 1, 1, 2, 2, 3]
    cut = {(2, 2): ["two", "three"], (2, 9): ["one", "two", "three"], (1, 1): ["two"], (0, 5): ["one"]}
    for given_, expected in cut.items():
        last = tokens.ending(*given_)
        assert ([last.word(at) for at in range(len(last))], last.text) == (expected, tokens.text)
