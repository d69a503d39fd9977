"""The texts of section 5.5, "Aesop's Fables" and WikiText-2, found in a folder; and their tokens.

    DIR/aesop/49010-0.txt                DIR/wikitext-2/train.txt, valid.txt, test.txt (or wiki.train.tokens, …)

DIR is the folder given, else that of the environment variable DUALFORM_DATA, else a cache folder of the user; every
file may be gzipped. Nothing is downloaded: WikiText-2 has no home of its own any more, and Project Gutenberg reissues
its books, so that no hash would hold.

The paper's published code counts characters of Project Gutenberg's file: it leaves out the first 17,563 and the last
22,356, tests on as many as a tenth of the whole file before these last, and trains on what remains. Gutenberg has
reissued the file since, and copies without its header and footer are about, so the counts fit no file of today. They
fit one cut of the text, and that is made by what stands there: from the heading of the first fable to the line
ANNOUNCEMENTS, the last 17,761 characters of which are the test text. A file of 177,613 characters, 973 of them before
the book's first, has both ends and the tenth just there, and 18 chunks of 100 characters for each of 64 streams.

A token is a character, or a word as spaces and line ends set it apart; a line end is a token of its own. Words that the
vocabulary does not have become <unk>, and keep their place; a character that it does not have is refused. Shape: n
tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.extras import missing_package
from dualform_studies.assignment import damaged, data_folder, find_file, missing_file, read_file

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

BOOK = "https://www.gutenberg.org/files/49010/49010-0.txt"
FIRST_FABLE, END = "THE WOLF AND THE LAMB", "ANNOUNCEMENTS"
TEST = 17_761
"""Characters of the test text."""
_STREAMS, _UNROLL, _CHUNKS = 64, 100, 18
"""How the code reads the fables: so many streams, of chunks of so many characters, so many of each stream."""

INFERRED = (
    f"The text begins at the heading of the first fable and ends at the line {END}; the test text is the last "
    f"{TEST:,} characters before that line. The paper's code counts characters of Project Gutenberg's file instead "
    "(without the first 17,563 and the last 22,356, a tenth of the file being the test text). That both cuts are the "
    "same is inferred: they are for a file of 177,613 characters, 973 of them before the book's first. How long that "
    "day's header and footer were, each by itself, cannot be told from the code, and every character more of the "
    "header would move the place at which each stream begins; nor can it be told which characters more its vocabulary "
    "had."
)


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

    @cached_property
    def _titles(self) -> list[tuple[int, str]]:
        """Every title with its first character.

        They are of the whole text, as the empty lines above the first may have been cut away.
        """
        found = re.finditer(self.heading, self.whole, re.MULTILINE)
        return [(0, ""), *((match.start(1), match.group(1)) for match in found), (len(self.whole), "")]

    def _title_above(self, at: int) -> int:
        """The number of the title above character `at` of the training text, 0 if there is none."""
        return bisect_right(self._titles, self.begin + at, lo=1, hi=len(self._titles) - 1, key=lambda one: one[0]) - 1

    def title(self, at: int) -> str:
        """The title above character `at` of the training text, empty if there is none: a fable's, or an article's."""
        return self._titles[self._title_above(at)][1]

    def article(self, at: int) -> str:
        """What stands between the title above character `at` of the training text and the next one."""
        above = self._title_above(at)
        return self.whole[self._titles[above][0] : self._titles[above + 1][0]]


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
    path = find_file(folder, "49010-0.txt")
    if path is None:
        raise missing_file("49010-0.txt", folder, f"Fetch {BOOK} and put it there")
    other, text = f"It is another edition, or only a part of the book. Fetch {BOOK}.", _read(path)
    first = re.search(rf"(?m)^{FIRST_FABLE}$", text)
    if first is None:
        raise damaged(path, f"has no line {FIRST_FABLE}, the heading of the first fable", other)
    end = re.compile(rf"(?m)^{END}$").search(text, first.end())
    if end is None:
        raise damaged(path, f"has no line {END}, where the text ends", other)
    begin, test, stop = first.start(), end.start() - TEST, end.start()
    chunks = (test - begin) // _UNROLL // _STREAMS
    if chunks != _CHUNKS:
        what = (
            f"has {stop - begin:,} characters between the lines {FIRST_FABLE} and {END} instead of 137,694: {_STREAMS} "
            f"streams would have {max(0, chunks)} chunks of {_UNROLL}, not {_CHUNKS}"
        )
        raise damaged(path, what, other)
    return Corpus(
        name="aesop",
        unit="character",
        whole=text,
        begin=begin,
        train=text[begin:test],
        test=text[test:stop],
        train_split="the fables, without the end of the appendix",
        note=INFERRED,
        heading=_CAPITALS,
    )


_ABSENT = (
    "The train split of WikiText-2, of 2,088,628 tokens, is not at hand: the network is trained on the valid split, so "
    "it knows fewer words and far fewer pages than the paper's."
)


def _wikitext2(folder: Path) -> Corpus:
    """Word by word, as published (Merity et al., 2017). The train split if it is there, else the valid split."""
    paths = {split: find_file(folder, f"{split}.txt", f"wiki.{split}.tokens") for split in ("train", "valid", "test")}
    split, texts = "train" if paths["train"] else "valid", []
    for needed in (split, "test"):
        path = paths[needed]
        if path is None:
            raise missing_file(f"{needed}.txt", folder, f"Put wiki.{needed}.tokens of WikiText-2 (word level) there")
        texts.append(_read(path))
    return Corpus(
        name="wikitext-2",
        unit="word",
        whole=texts[0],
        begin=0,
        train=texts[0],
        test=texts[1],
        train_split=f"the {split} split",
        note="" if split == "train" else _ABSENT,
        heading=r"^ = ([^=\n]+) = $",
    )


def _read(path: Path) -> str:
    """The text with lines that end in a line feed alone, without the mark that some editors begin a file with."""
    try:
        return read_file(path).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise damaged(path, f"cannot be read ({error})") from None


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
        """Raises MissingPackage if `tokenizers` is not installed."""
        try:
            from tokenizers import Tokenizer
            from tokenizers.models import WordLevel
        except ImportError as error:
            raise missing_package(error) or error from None
        splitter = _splitter(unit)
        distinct = {word for word, _ in splitter.pre_tokenize_str(text)} | ({UNKNOWN} if unit == "word" else set())
        self.words = tuple(sorted(distinct))
        """By id."""
        ids = {word: number for number, word in enumerate(self.words)}
        self.unknown = ids.get(UNKNOWN, -1)
        """Id of <unk>; -1 for characters, which have none."""
        self.tokenizer = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
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


def _splitter(unit: Unit) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Sequence, Split

    if unit == "character":
        return Split(Regex(r"[\s\S]"), "isolated")
    return Sequence([Split(Regex("[^\\S\n]+"), "removed"), Split("\n", "isolated")])
