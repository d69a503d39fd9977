"""Tables 2 to 7 of the paper, word for word: its query passages and the training passages it found for them.

The text version of the paper that these rows were taken from had lost some of the bold type that marks tokens. There
the mark stands where the other rows of the same table have it, and `marked` is False. Table 2 came with its three
passages in one cell; where each ends is our reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dualform_studies.text.passages import Passage


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

    @property
    def sign(self) -> str:
        """Its name in figures: P1 is Top-1, N the example that is not attended to."""
        return f"P{self.rank[-1]}" if self.leads else self.rank[0]


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
    def unmarked(self) -> list[str]:
        """The rows whose marks are ours."""
        return [row.rank for row in (self.query, *self.rows) if not row.marked]


AESOP = (
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

WIKITEXT2 = (
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
