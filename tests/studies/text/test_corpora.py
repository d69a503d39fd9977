from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dualform.errors import Damaged, NotFound
from dualform_studies.text.corpora import load_corpus
from tests.studies.text.made_up import write_aesop, write_wikitext2


def test_the_appendix_is_the_test_text_and_the_announcements_are_neither(texts: Path) -> None:
    corpus = load_corpus("aesop", texts)
    assert corpus.train.startswith("CONTENTS\n\nTHE TALE\nAPPENDIX\n")
    assert corpus.train.count("THE TALE OF") == 12
    assert "APPENDIX" not in corpus.test
    assert "ANNOUNCEMENTS" not in corpus.test
    assert corpus.test.count(".") == 6


def test_what_project_gutenberg_adds_belongs_to_no_text(tmp_path: Path) -> None:
    bare = write_aesop(tmp_path)
    expected = load_corpus("aesop", tmp_path)
    path = tmp_path / "aesop" / "49010-0.txt"
    (path.parent / "49010-0.txt.gz").unlink()
    whole = (
        f"Licence\r\n*** START OF THIS EBOOK ***\r\n{bare}End of the Project Gutenberg EBook\n*** END OF IT ***\nMore"
    )
    path.write_bytes(b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").replace("\r\r", "\r").encode("utf-8"))
    found = load_corpus("aesop", tmp_path)
    assert (found.train, found.test) == (expected.train, expected.test)


def test_a_passage_belongs_to_the_last_title_before_it(texts: Path) -> None:
    aesop, wikitext2 = load_corpus("aesop", texts), load_corpus("wikitext-2", texts)
    assert aesop.title(aesop.train, 3) == ""
    assert aesop.title(aesop.train, len(aesop.train)) == "THE TALE OF ÆIIIIIIIIIIII"
    second = aesop.train.index("THE TALE OF ÆII\n")
    assert aesop.title(aesop.train, second + 60) == "THE TALE OF ÆII"
    assert aesop.title(aesop.train, second - 2) == "THE TALE OF ÆI"
    assert wikitext2.title(wikitext2.train, len(wikitext2.train)) == "Page 3 of valid"
    assert wikitext2.title(wikitext2.test, wikitext2.test.index("= = More")) == "Page 0 of test"


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
    path.write_bytes(gzip.compress(b"A book without an end."))
    with pytest.raises(Damaged, match="no line APPENDIX"):
        load_corpus("aesop", tmp_path)
