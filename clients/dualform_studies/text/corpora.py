"""The texts of section 5.5: "Aesop's Fables" and WikiText-2, found in a folder.

    DIR/aesop/49010-0.txt                DIR/wikitext-2/train.txt, valid.txt, test.txt (or wiki.train.tokens, …)

DIR is the folder given, else that of the environment variable DUALFORM_DATA, else a cache folder of the user; every
file may be gzipped. Nothing is downloaded: WikiText-2 has no home of its own any more, and Project Gutenberg reissues
its books, so that no hash would hold.
"""

from __future__ import annotations

import gzip
import re
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from dualform.errors import Damaged, NotFound
from dualform_studies.data_folder import DATA_VARIABLE, data_folder
from dualform_studies.text.book import BOOK, INFERRED, cut_book

Unit: TypeAlias = Literal["character", "word"]


@dataclass(frozen=True)
class Corpus:
    """One text to train on, and one to test on."""

    name: str
    unit: Unit
    """What a token is."""
    whole: str
    """What the vocabulary is taken from; the training text is a part of it."""
    begin: int
    """First character of the training text in `whole`."""
    train: str
    test: str
    train_split: str
    """Which part of the corpus is trained on."""
    note: str = ""
    """What a reader of the results must know of that."""
    heading: str = ""
    """Regular expression of a line that is a title, in its first group."""

    def title(self, at: int) -> str:
        """The title above character `at` of the training text, empty where there is none: a fable's, or an article's.

        Titles are looked for in the whole text, as the empty lines above the first may have been cut away.
        """
        titles = _titles(self.heading, self.whole)
        following = _title_after(titles, self.begin + at)
        return titles[following - 1][1] if following else ""

    def article(self, at: int) -> str:
        """What stands between the title above character `at` of the training text and the next one."""
        titles = _titles(self.heading, self.whole)
        following = _title_after(titles, self.begin + at)
        end = titles[following][0] if following < len(titles) else len(self.whole)
        return self.whole[titles[following - 1][0] if following else 0 : end]


@lru_cache(maxsize=8)
def _titles(heading: str, text: str) -> list[tuple[int, str]]:
    """Every title with its first character."""
    return [(match.start(1), match.group(1)) for match in re.finditer(heading, text, re.MULTILINE)]


def _title_after(titles: list[tuple[int, str]], at: int) -> int:
    """Number of the first title that begins after character `at`."""
    return bisect_right(titles, at, key=lambda title: title[0])


def load_corpus(name: str, data: Path | None = None) -> Corpus:
    """The corpus `aesop` or `wikitext-2`.

    Raises NotFound, saying which file belongs where, for one that is not there; Damaged for one that cannot be read, or
    is another text than the paper's.
    """
    folder = data_folder(data) / name
    return _aesop(folder) if name == "aesop" else _wikitext2(folder)


_CAPITALS = r"\n{4,}([^a-z\n]*[A-Z]{2}[^a-z\n]*)(?=\n\n)"


def _aesop(folder: Path) -> Corpus:
    """J. H. Stickney's book, cut where the paper's code cuts it; its vocabulary is that of the whole file."""
    path = _first(folder, "49010-0.txt")
    if path is None:
        raise _missing("49010-0.txt", folder, f"Fetch {BOOK} and put it there")
    text = _read(path)
    cut = cut_book(text, path)
    return Corpus(
        name="aesop",
        unit="character",
        whole=text,
        begin=cut.begin,
        train=text[cut.begin : cut.test],
        test=text[cut.test : cut.end],
        train_split="the fables, without the end of the appendix",
        note=INFERRED,
        heading=_CAPITALS,
    )


_ABSENT = (
    "The train split of WikiText-2, of 2,088,628 tokens, is not at hand: the network is trained on the valid split, so "
    "it knows fewer words and far fewer pages than the paper's."
)


def _wikitext2(folder: Path) -> Corpus:
    """Word by word, as published (Merity et al., 2017). The train split where it is there, else the valid split."""
    paths = {split: _first(folder, f"{split}.txt", f"wiki.{split}.tokens") for split in ("train", "valid", "test")}
    split = "train" if paths["train"] else "valid"
    for needed in (split, "test"):
        if paths[needed] is None:
            raise _missing(f"{needed}.txt", folder, f"Put wiki.{needed}.tokens of WikiText-2 (word level) there")
    train, test = (_read(path) for path in (paths[split], paths["test"]) if path is not None)
    return Corpus(
        name="wikitext-2",
        unit="word",
        whole=train,
        begin=0,
        train=train,
        test=test,
        train_split=f"the {split} split",
        note="" if split == "train" else _ABSENT,
        heading=r"^ = ([^=\n]+) = $",
    )


def _first(folder: Path, *names: str) -> Path | None:
    candidates = [folder / f"{name}{end}" for name in names for end in (".gz", "")]
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> str:
    """The text with lines that end in a line feed alone, without the mark that some editors begin a file with."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise Damaged(f"{path} cannot be read ({error}).", hint="Remove the file and fetch it again.") from None
    return text.replace("\r\n", "\n")


def _missing(file: str, folder: Path, what: str) -> NotFound:
    return NotFound(
        f"{file} is not in {folder}.",
        hint=f"{what}; name another data folder with --data DIR or the environment variable {DATA_VARIABLE}.",
        field="data",
    )
