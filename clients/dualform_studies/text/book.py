"""Where the book "Aesop's Fables" is cut into a text to train on and a text to test on.

The paper's published code counts characters of Project Gutenberg's file: it leaves out the first 17,563 and the last
22,356, tests on as many as a tenth of the whole file before these last, and trains on what remains. Gutenberg has
reissued the file since, and copies without its header and footer are about, so the counts fit no file of today. They
fit one cut of the text, and that is made by what stands there: from the heading of the first fable to the line
ANNOUNCEMENTS, the last 17,761 characters of which are the test text. A file of 177,613 characters, 973 of them before
the book's first, has both ends and the tenth just there, and 18 chunks of 100 characters for each of 64 streams.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dualform.errors import Damaged

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


@dataclass(frozen=True)
class Cut:
    """Characters of the file, counted from 0."""

    begin: int
    """First of the training text."""
    test: int
    """First of the test text, which follows at once."""
    end: int
    """One past the test text."""


def cut_book(text: str, path: object) -> Cut:
    """The cut of a file with lines that end in a line feed alone.

    Raises Damaged, naming the file at `path`, where a line that the cut goes by is not there, or the fables between do
    not make the chunks of the paper's code.
    """
    first = re.search(rf"(?m)^{FIRST_FABLE}$", text)
    if first is None:
        raise _other(path, f"has no line {FIRST_FABLE}, the heading of the first fable")
    end = re.compile(rf"(?m)^{END}$").search(text, first.end())
    if end is None:
        raise _other(path, f"has no line {END}, where the text ends")
    cut = Cut(first.start(), end.start() - TEST, end.start())
    chunks = (cut.test - cut.begin) // _UNROLL // _STREAMS
    if chunks != _CHUNKS:
        raise _other(
            path,
            f"has {cut.end - cut.begin:,} characters between the lines {FIRST_FABLE} and {END} instead of 137,694: "
            f"{_STREAMS} streams would have {max(0, chunks)} chunks of {_UNROLL}, not {_CHUNKS}",
        )
    return cut


def _other(path: object, what: str) -> Damaged:
    return Damaged(f"{path} {what}.", hint=f"It is another edition, or only a part of the book. Fetch {BOOK}.")
