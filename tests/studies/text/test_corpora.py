from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dualform.errors import Damaged, NotFound
from dualform_studies.text.corpora import load_corpus
from tests.studies.text.made_up import write_aesop, write_wikitext2


def test_the_book_is_cut_at_the_first_fable_and_before_the_announcements(texts: Path) -> None:
    corpus = load_corpus("aesop", texts)
    assert corpus.train.startswith("THE WOLF AND THE LAMB\n\n\nWhen the Hare awoke")
    assert (len(corpus.train), len(corpus.test)) == (119_933, 17_761)
    assert corpus.whole[corpus.begin :].startswith(corpus.train + corpus.test + "ANNOUNCEMENTS\n")
    assert "Lamb a little distance below" in corpus.test
    assert "introduction" not in corpus.train


def test_what_project_gutenberg_adds_changes_no_character_of_either_text(tmp_path: Path) -> None:
    bare = write_aesop(tmp_path)
    expected = load_corpus("aesop", tmp_path)
    path = tmp_path / "aesop" / "49010-0.txt"
    (path.parent / "49010-0.txt.gz").unlink()
    whole = f"Licence @\n*** START OF THIS EBOOK ***\n{bare}End of the Project Gutenberg EBook\n*** END OF IT ***\nMore"
    path.write_bytes(b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode("utf-8"))
    found = load_corpus("aesop", tmp_path)
    assert (found.train, found.test) == (expected.train, expected.test)
    assert found.whole.startswith("Licence @\n")
    assert found.title(0) == expected.title(0) == "THE WOLF AND THE LAMB"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("THE WOLF AND THE LAMB", "THE WOLF AND A LAMB"), "has no line THE WOLF AND THE LAMB, the heading of the"),
        (("ANNOUNCEMENTS", "NOTICES"), "has no line ANNOUNCEMENTS, where the text ends"),
        (
            ("ANNOUNCEMENTS", "x" * 1700 + "\nANNOUNCEMENTS"),
            r"has 139,395 characters .* instead of 137,694: 64 streams would have 19 chunks of 100, not 18",
        ),
    ],
)
def test_another_edition_is_refused_with_what_does_not_fit(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    text = write_aesop(tmp_path).replace(*change)
    (tmp_path / "aesop" / "49010-0.txt.gz").write_bytes(gzip.compress(text.encode("utf-8")))
    with pytest.raises(Damaged, match=message) as error:
        load_corpus("aesop", tmp_path)
    assert "Fetch https://www.gutenberg.org/files/49010/49010-0.txt" in (error.value.hint or "")


def test_a_few_characters_more_leave_the_streams_as_long_as_they_are(tmp_path: Path) -> None:
    text = write_aesop(tmp_path).replace("ANNOUNCEMENTS", f"{'x' * 1500}\nANNOUNCEMENTS")
    (tmp_path / "aesop" / "49010-0.txt.gz").write_bytes(gzip.compress(text.encode("utf-8")))
    assert len(load_corpus("aesop", tmp_path).train) == 119_933 + 1501


def test_a_passage_belongs_to_the_last_title_before_it(texts: Path) -> None:
    aesop, wikitext2 = load_corpus("aesop", texts), load_corpus("wikitext-2", texts)
    assert aesop.title(0) == "THE WOLF AND THE LAMB"
    second = aesop.train.index("THE TALE OF Æ 2\n")
    assert aesop.title(second - 2) == "THE TALE OF Æ 1"
    assert aesop.title(second) == aesop.title(second + 60) == "THE TALE OF Æ 2"
    assert wikitext2.title(0) == ""
    assert wikitext2.title(len(wikitext2.train) - 1) == "Page 3 of valid"


def test_an_article_goes_from_its_title_to_the_next(texts: Path) -> None:
    wikitext2 = load_corpus("wikitext-2", texts)
    pages = [wikitext2.article(wikitext2.train.index(f"Page {page} of valid")) for page in range(4)]
    assert "".join(pages) == wikitext2.train[wikitext2.train.index("Page 0") :]
    assert [page.count(" = = More = = ") for page in pages] == [1, 1, 1, 1]


def test_the_train_split_is_used_where_it_is_there_and_its_absence_is_told(texts: Path, tmp_path: Path) -> None:
    absent = load_corpus("wikitext-2", texts)
    assert (absent.train_split, "not at hand" in absent.note) == ("the valid split", True)
    assert "Page 0 of valid" in absent.train
    write_wikitext2(tmp_path, "train", "valid", "test")
    present = load_corpus("wikitext-2", tmp_path)
    assert (present.train_split, present.note) == ("the train split", "")
    assert "Page 0 of train" in present.train
    assert "Page 0 of test" in present.test


def test_files_keep_the_names_that_they_were_published_under(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"wiki.{split}.tokens").write_text(f" = {split} = \n")
    corpus = load_corpus("wikitext-2", tmp_path)
    assert (corpus.train, corpus.test) == (" = train = \n", " = test = \n")


def test_a_file_that_is_not_there_is_named_with_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"49010-0.txt is not in .*aesop") as error:
        load_corpus("aesop", tmp_path)
    assert error.value.hint == (
        "Fetch https://www.gutenberg.org/files/49010/49010-0.txt and put it there; name another data folder with "
        "--data DIR or the environment variable DUALFORM_DATA."
    )
    write_wikitext2(tmp_path, "valid")
    with pytest.raises(NotFound, match=r"test.txt is not in .*wikitext-2"):
        load_corpus("wikitext-2", tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_aesop(tmp_path)
    path = tmp_path / "aesop" / "49010-0.txt.gz"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(Damaged, match=r"49010-0.txt.gz cannot be read"):
        load_corpus("aesop", tmp_path)
    path.write_bytes(gzip.compress(b"\xff\xfe no UTF-8"))
    with pytest.raises(Damaged, match=r"49010-0.txt.gz cannot be read"):
        load_corpus("aesop", tmp_path)
