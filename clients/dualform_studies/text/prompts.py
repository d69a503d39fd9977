"""Tables 2 to 7 of the paper, and prompts: texts whose last token asks what it was trained on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform_studies.report import MarkedPassage
from dualform_studies.text.corpora import Corpus, Tokens
from dualform_studies.text.training import CONTEXT


@dataclass(frozen=True)
class Form:
    table: int
    """Of the paper, that shows passages of this form."""
    claim: str
    """What the rule finds, as the object of "the passages show …"; what the paper sees in them stands with its table.
    """
    rule: str
    """When a token is a case of it, in words."""
    pattern: str
    """The same as a regular expression; the group `token` begins where the token does. Case does not count."""
    article: str = ""
    """Regular expression that the token's article must match three times at least."""

    def cases(self, tokens: Tokens, corpus: Corpus) -> Cases:
        """Those of the training text."""
        # Within a lookahead, what one match takes is there for the next one.
        matches = re.finditer(f"(?=(?:{self.pattern}))", tokens.text, re.IGNORECASE)
        starts = [match.start("token") for match in matches]
        about = re.compile(self.article, re.IGNORECASE)
        on_topic = [not self.article or len(about.findall(corpus.article(start))) >= _MENTIONS for start in starts]
        places = np.searchsorted(tokens.starts, np.array(starts, dtype=np.int64))
        chosen = np.array(on_topic, dtype=np.bool_)
        return Cases(np.unique(places[chosen]), np.unique(places[~chosen]))


@dataclass(frozen=True, eq=False)
class Cases:
    """Tokens of a training text, by number and ascending."""

    places: NDArray[np.int64]
    """Those of a form."""
    elsewhere: NDArray[np.int64]
    """Those that would be, were their article another one."""


_MENTIONS = 3


_BEFORE, _AFTER = 90, 60
"""Characters on either side of the token, at most; only whole words are shown."""
_GAP = r"(?:\s|<unk>(?:\s*,)?)*"
"""What a quotation may leave out or put elsewhere: space, and unknown words with the comma after them."""
_QUOTES = {"'": "['\\u2019]", '"': '["\\u201c\\u201d]'}


@dataclass(frozen=True)
class Passage:
    """A stretch of a text, exactly as it stands there."""

    before: str
    token: str
    after: str

    def marked(self) -> MarkedPassage:
        """As a page shows it: in one line, with a token that is nothing but space made visible."""
        before, after = (re.sub(r"\s+", " ", text) for text in (self.before, self.after))
        return MarkedPassage(before, {" ": "␣", "\n": "↵"}.get(self.token, self.token), after)


def cut(tokens: Tokens, at: int) -> Passage:
    """The passage around token number `at`."""
    text, start, end = tokens.text, int(tokens.starts[at]), int(tokens.ends[at])
    before, after = text[max(0, start - _BEFORE) : start], text[end : end + _AFTER]
    if start > _BEFORE:
        before = re.sub(r"^\S*\s+(?=.*\S)", "", before, count=1, flags=re.DOTALL)
    if end + _AFTER < len(text):
        after = re.sub(r"(?<=\S)\s+\S*$", "", after)
    return Passage(before, text[start:end], after)


def find(text: str, quoted: Passage) -> tuple[int, int, int, int] | None:
    """Where a quotation stands in a text: its first character, the token's, one past the token, one past its last.

    Spaces, line ends and the shape of quotation marks count for nothing, nor does <unk>, which printed quotations leave
    out; None where there is no such place.
    """
    token = r"\s" if quoted.token.isspace() else _GAP + "(?P<own>" + _spelt(quoted.token) + ")"
    pattern = f"{_spelt(quoted.before)}(?P<token>{token}){_GAP}{_spelt(quoted.after)}"
    match = re.search(pattern, text)
    if match is None:
        return None
    own = "token" if quoted.token.isspace() else "own"
    return match.start(), match.start(own), match.end(own), match.end()


def _spelt(quotation: str) -> str:
    letters = re.sub(_GAP, "", quotation)
    return _GAP.join(_QUOTES.get(letter, re.escape(letter)) for letter in letters)


@dataclass(frozen=True)
class Row:
    rank: str
    passage: Passage
    page: str = ""
    """Title of the page that it was taken from, where the paper gives one."""
    marked: bool = True
    """Whether the mark is the paper's."""

    @property
    def leads(self) -> bool:
        """Whether the paper shows it as attended to most, and not as an example that is not attended to."""
        return self.rank.startswith("Top")


@dataclass(frozen=True)
class PublishedTable:
    number: int
    """Of the table."""
    remark: str
    """What the paper sees in the passages."""
    origin: Literal["test", "train"]
    """The text that the query was taken from."""
    query: Row
    rows: tuple[Row, ...]
    forms: tuple[Form, ...] = ()
    """What the passages have in common."""

    @property
    def unmarked(self) -> list[str]:
        """The rows whose marks are ours."""
        return [row.rank for row in (self.query, *self.rows) if not row.marked]


def published_tables(study: str) -> tuple[PublishedTable, ...]:
    """Those of a study, as published.toml has them."""
    read = tomllib.loads((Path(__file__).parent / "published.toml").read_text(encoding="utf-8"))
    return tuple(
        PublishedTable(
            table["number"],
            table["remark"],
            table["origin"],
            _row(table["query"]),
            tuple(map(_row, table["row"])),
            tuple(Form(table["number"], **form) for form in table["form"]),
        )
        for table in read["table"]
        if table["study"] == study
    )


def _row(read: dict[str, Any]) -> Row:
    return Row(read["rank"], Passage(*read["passage"]), read.get("title", ""), read.get("marked", True))


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str
    """What the network reads; the last token of it is the query."""
    after: str = ""
    """How the passage goes on. The network does not read it."""
    published: PublishedTable | None = None
    """The table of the paper that the query comes from."""
    place: int | None = None
    """Which token of the text that a query of the paper was taken from the query is; None where that text does not have
    it, and its words are those printed."""


def paper_prompt(tokens: Tokens, table: PublishedTable) -> Prompt:
    """The query of a table with what stands before it, cut from the text that it was taken from if this has it."""
    name, quoted = f"table-{table.number}", table.query.passage
    found = find(tokens.text, quoted)
    if found is None:
        return Prompt(name, quoted.before + quoted.token, quoted.after, table)
    _, start, end, last = found
    place = tokens.first_from(start)
    first = int(tokens.starts[max(0, place + 1 - CONTEXT)])
    return Prompt(name, tokens.text[first:end], tokens.text[end:last], table, place)


def own_prompts(texts: Sequence[str], first: int = 1) -> list[Prompt]:
    """Prompts as a user words them, numbered from `first`. Raises BadInput for one without a token."""
    for text in texts:
        if not text.strip():
            raise BadInput("prompt must not be empty.", hint='For example --prompt "the Fox and the".', field="prompt")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise BadInput(f"the prompt {text!r} is not UTF-8.", hint="Pass text in UTF-8.", field="prompt")
    return [Prompt(f"prompt-{number}", text) for number, text in enumerate(texts, start=first)]
