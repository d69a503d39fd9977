"""What the paper sees in the passages of its tables, as rules that decide of each token whether it is a case of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform_studies.text.corpora import Corpus
from dualform_studies.text.tokens import Tokens


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
_TIMES = (
    "one|once|two|twice|three|last|first|most|least|length|times?|night|noon|midnight|dawn|daybreak|sunrise|sunset|"
    "evening|morning|present|moment|hour"
)
SHIPS = r"\b(?:war|battle)?(?:ship|cruiser|ironclad|destroyer|frigate|submarine)s?\b"
HER = r"(?<!\S)(?-i:Her) (?P<token>\S)"

FORMS = (
    Form(
        3,
        'the word "fast"',
        "the marked letter is the a of fast, faster or fastest",
        r"\bf(?P<token>a)st(?:er|est)?\b",
    ),
    Form(
        3,
        '"fast" in the sense of quickly',
        "the marked letter is the a of fast after as, so, too, how or very, or of faster or fastest (being held or "
        "stuck fast does not count)",
        r"\b(?:(?P<degree>as|so|too|how|very)\s+)?\bf(?P<token>a)st(?(degree)(?:er|est)?|(?:er|est))\b",
    ),
    Form(
        4,
        '"a", one more word, and a word that starts with d',
        "the marked letter is the d that begins the second word after a or an",
        r"\ban?\s+[\w\u2019'-]+\s+(?P<token>d)\w",
    ),
    Form(
        5,
        'the word "at"',
        "the marked token is the space, or the line's end, after at",
        r"\bat(?P<token>\s)",
    ),
    Form(
        5,
        '"at" before a word of time or number',
        "the marked token is the space, or the line's end, after at, and a word of time or number follows (also after "
        "the, the same or this)",
        rf"\bat(?P<token>\s)(?:(?:the|this)\s+(?:same\s+)?)?(?:{_TIMES})\b",
    ),
    Form(
        2,
        'a word after "Her" on a page that names ships',
        "the marked word follows Her, on a page that names ships three times or more",
        HER,
        SHIPS,
    ),
    Form(
        6,
        'the word "contribution"',
        "the marked word is contribution or contributions",
        r"(?<!\S)(?P<token>contributions?)(?!\S)",
    ),
    Form(
        7,
        '"it" after a verb of saying or judging',
        "the marked word is it, after a verb of saying or judging (describing, calling, considering, rating, praising, "
        "naming, finding, comparing, or a form of these)",
        r"\b(?:(?:describ|call|consider|rat|prais|nam|compar|find)(?:ing|ed|es|e|s)?|found) (?P<token>it)(?!\S)",
    ),
)
"""One table may have several."""


def forms_of(table: int) -> list[Form]:
    return [form for form in FORMS if form.table == table]
