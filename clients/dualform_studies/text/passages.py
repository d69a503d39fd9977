"""Passages of a text with one token marked: cut around a token, or found from a quotation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dualform_studies.pages.items import MarkedPassage
from dualform_studies.text.tokens import Tokens

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
        return MarkedPassage(_one_line(self.before), _visible(self.token), _one_line(self.after))


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


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _visible(token: str) -> str:
    return {" ": "␣", "\n": "↵"}.get(token, token)
