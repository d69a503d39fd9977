"""Tables 2 to 7 of the paper, word for word, and prompts: texts whose last token asks what it was trained on.

The text version of the paper that the rows were taken from had lost some of the bold type that marks tokens. There the
mark stands where the other rows of the same table have it, and `marked` is False. Table 2 came with its three passages
in one cell; where each ends is our reading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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

    @property
    def forms(self) -> list[Form]:
        return [form for form in FORMS if form.table == self.number]

    @property
    def unmarked(self) -> list[str]:
        """The rows whose marks are ours."""
        return [row.rank for row in (self.query, *self.rows) if not row.marked]


AESOP_TABLES = (
    PublishedTable(
        3,
        'a concept of "doing something fast"',
        "test",
        Row(
            "Query",
            Passage("Wolf was glad to take himself off as f", "a", "st as his legs would carry him"),
            marked=False,
        ),
        (
            Row(
                "Top-1",
                Passage(
                    "When the Hare awoke, the Tortoise was not in sight; and running as f",
                    "a",
                    "st as he could, he found her comfortably dozing at their goal.",
                ),
                marked=False,
            ),
            Row(
                "Top-2",
                Passage(
                    "But the Stork with his long legs easily followed them to the water, and kept on eating them as f",
                    "a",
                    "st as he could.",
                ),
            ),
            Row(
                "Top-3",
                Passage(
                    "The poor Mule made room for him as f",
                    "a",
                    "st as he could, and the Horse went proudly on his way.",
                ),
                marked=False,
            ),
        ),
    ),
    PublishedTable(
        4,
        'a phrase of form "a + adjective/single + word starting with d"',
        "test",
        Row(
            "Query",
            Passage("The Wolf stood high up the stream and the Lamb a little ", "d", "istance below."),
            marked=False,
        ),
        (
            Row(
                "Top-1",
                Passage(
                    "when the Pigeons had let him come in, they found that he slew more of them in a single ",
                    "d",
                    "ay than the Kite could",
                ),
            ),
            Row(
                "Top-2",
                Passage(
                    "all the advantages that you mention, yet when I hear the bark of but a single ",
                    "d",
                    "og, I faint with terror",
                ),
                marked=False,
            ),
            Row(
                "Top-3",
                Passage(
                    "GREAT Cloud passed rapidly over a country which was parched by heat, but did not let "
                    "fall a single ",
                    "d",
                    "rop to refresh it.",
                ),
            ),
        ),
    ),
    PublishedTable(
        5,
        'a phrase of form "at" plus some timing or counting related concept',
        "train",
        Row(
            "Query",
            Passage(
                "The Squirrel takes a look at them—he can do no more. At",
                " ",
                "one time he is called away; at another, even dragged off in the Lion's service.",
            ),
        ),
        (
            Row(
                "Top-1",
                Passage(
                    "at seeing an elephant. Is it his great bulk that you so much admire? Mere size is nothing. At",
                    " ",
                    "most it can only frighten little girls and boys",
                ),
            ),
            Row(
                "Top-2",
                Passage(
                    "At times he would snap at his prey, and at",
                    " ",
                    "times play with him and lick him with his tongue,",
                ),
            ),
            Row(
                "Top-3",
                Passage(
                    "As the Log did not move, they swam round it, keeping a safe distance away, and at",
                    " ",
                    "last one by one hopped upon it.",
                ),
            ),
        ),
    ),
)

WIKITEXT2_TABLES = (
    PublishedTable(
        2,
        "pages about warships, and a similar sentence structure",
        "test",
        Row(
            "Query",
            Passage("Her ", "principal", " role was for combat in the English Channel and other European"),
            "Ironclad warship",
        ),
        (
            Row(
                "Top-1",
                Passage("Her sailing rig also was removed . Her ", "main", " battery guns were replaced with new"),
                "Portuguese ironclad",
            ),
            Row(
                "Top-2",
                Passage("between the two funnels . Her ", "secondary", " armament consisted of fourteen 15 cm"),
                "SMS Markgraf",
            ),
            Row(
                "Top-3",
                Passage("single mounts . Her ", "primary", " offensive weapon was her five 450 mm."),
                "Italian cruiser Aretusa",
            ),
            Row(
                "Negative",
                Passage("written especially for the singer . Her ", "first", " hit song in America was her rendition"),
                "Nina Simone",
            ),
        ),
    ),
    PublishedTable(
        6,
        'some "contributions of somebody on something"',
        "test",
        Row(
            "Query",
            Passage(
                "her painting was printed opposite that of Tommy Watson , who was by this time famous , "
                "particularly for his ",
                "contribution",
                " to the design of a new building for",
            ),
            "Josepha Petrick Kemarre",
        ),
        (
            Row(
                "Top-1",
                Passage(
                    "In February 1960, for his ",
                    "contribution",
                    " to the film industry, Olivier was inducted into the Hollywood Walk of Fame",
                ),
                "Laurence Olivier",
                marked=False,
            ),
            Row(
                "Top-2",
                Passage(
                    "he was appointed as honorary Assistant Superintendent of Police by the Singapore Police "
                    "Force in recognition for his ",
                    "contribution",
                    " as consultant",
                ),
                "Khoo Kheng-Hor",
            ),
            Row(
                "Top-3",
                Passage("Colby did not credit Weizenbaum for his ", "contribution", " to the program ."),
                "History of AI",
            ),
        ),
    ),
    PublishedTable(
        7,
        '"somebody rating (or commenting on) something (e.g. movie/song)"',
        "test",
        Row(
            "Query",
            Passage(
                'IGN \'s Matt gave "The " a score of 9 @.@ 4 out of 10, describing ',
                "it",
                ' as " a in storytelling " which " refreshingly " lacked traditional Christmas references',
            ),
            "The Snowmen",
            marked=False,
        ),
        (
            Row(
                "Top-1",
                Passage(
                    'Den of Geek writer named it the "finest" stand @-@ alone episode of the second season, '
                    "describing ",
                    "it",
                    ' as "a genuinely creepy 45 @-@ minute horror movie"',
                ),
                "Irresistible (film)",
            ),
            Row(
                "Top-2",
                Passage(
                    'NME felt that it was the "most impressive" song on the album, describing ',
                    "it",
                    " as a \"gorgeously sparse prayer built around Adam Clayton's bassline and Bono's rough\"",
                ),
                "Moment of Surrender",
            ),
            Row(
                "Top-3",
                Passage(
                    "James from magazine gave the film 2 out of 5 stars, describing ", "it", " as \"' Alien' meets"
                ),
                "Species (film)",
                marked=False,
            ),
        ),
    ),
)


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
