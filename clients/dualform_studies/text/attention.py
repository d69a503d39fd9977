"""What prompts ask of a training, how its answers read, and where the paper's own passages come among them.

"We sum all attention weights which go to the same training token position" (section 5.5): one sum over the passes in
which a token was read. The paper's published code sums absolute values, and so do the answers here; the signed sums,
which are what equation 13 adds up, are asked for beside them.

Shapes: m prompts, o other queries, d of a key, P token positions of the training text that were read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Hits
from dualform.questions import GroupSum, TopK, Vectors
from dualform_studies.text.corpora import Corpus, Tokens, Vocabulary
from dualform_studies.text.prompts import CONTEXT, Cases, Form, Prompt, PublishedTable, find, forms_of
from dualform_studies.text.training import LAYER, LanguageModel, last_queries

Question: TypeAlias = TopK | GroupSum

HITS = 10
"""Single training datapoints that a prompt asks for, beside sums."""


def read_by(vocabulary: Vocabulary, prompts: Sequence[Prompt]) -> list[Tokens]:
    """What the network reads of each prompt. Raises BadInput for one with a character that it does not know."""
    encoded = (vocabulary.encode(prompt.text) for prompt in prompts)
    return [tokens.ending(len(tokens) - 1, CONTEXT) for tokens in encoded]


@dataclass(frozen=True, eq=False)
class Questions:
    """The last tokens of some prompts as queries."""

    prompts: Sequence[Prompt]
    tokens: Sequence[Tokens]
    """Of each prompt."""
    queries: NDArray[np.float32]
    """float32[m, d]."""
    others: NDArray[np.float32] | None = None
    """float32[o, d]: queries of the test text (observations.py)."""

    @property
    def scored(self) -> int:
        """How often all keys are scored: for the best and two sums of each prompt, and one sum of each other query."""
        return 3 * len(self.prompts) + (0 if self.others is None else len(self.others))

    def questions(self) -> dict[str, Question]:
        """By the fields of `Attention` that their answers become."""
        last = Vectors(self.queries)
        asked: dict[str, Question] = {
            "hits": TopK(LAYER, last, k=HITS, score="abs"),
            "by_position": GroupSum(LAYER, last, by=("position",), score="abs"),
            "by_position_signed": GroupSum(LAYER, last, by=("position",)),
        }
        if self.others is not None:
            asked["of_others"] = GroupSum(LAYER, Vectors(self.others), by=("position",), score="abs")
        return asked


@dataclass(frozen=True, eq=False)
class Attention:
    """The answers to `Questions.questions`."""

    hits: Hits
    by_position: GroupSums
    by_position_signed: GroupSums
    of_others: GroupSums | None = None

    @property
    def positions(self) -> NDArray[np.int64]:
        """int64[P]: the positions that were read, ascending."""
        return np.array([position for (position,) in self.by_position.groups], dtype=np.int64)

    def digests(self, prompt: int) -> dict[str, str]:
        """One for the best datapoints of a prompt and one for its signed sums: equal where all their bits are."""
        parts = {
            "top_k": [self.hits.slots[prompt], self.hits.scores[prompt]],
            "sums": [self.positions, self.by_position_signed.counts, self.by_position_signed.sums[prompt]],
        }
        return {
            name: hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in arrays)).hexdigest()
            for name, arrays in parts.items()
        }


def prepare(
    network: LanguageModel, vocabulary: Vocabulary, prompts: Sequence[Prompt], others: Sequence[Tokens] = ()
) -> Questions:
    """Let the network read each prompt and `others` from a state of zeros, and keep the LSTM's input at the last token
    of each.
    """
    tokens = read_by(vocabulary, prompts)
    of_others = last_queries(network, others) if others else None
    return Questions(prompts, tokens, last_queries(network, tokens), of_others)


def best(sums: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """int64[k]: where the k greatest of float64[P] are, greatest first, the first of equals before the others."""
    return np.argsort(-sums, kind="stable")[:k]


_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
BEST = 10
"""Positions that are held against a form."""


@dataclass(frozen=True, eq=False)
class Standard:
    """What a table of the paper shows, in the training text at hand."""

    table: PublishedTable
    places: Sequence[int | None]
    """Of each of its rows: which token of the training text is marked; None where the text has not the passage."""
    forms: Sequence[Form]
    cases: Sequence[Cases]
    """Of each form."""

    @classmethod
    def of(cls, table: PublishedTable, tokens: Tokens, corpus: Corpus) -> Standard:
        found = (find(tokens.text, row.passage) for row in table.rows)
        places = [None if place is None else tokens.first_from(place[1]) for place in found]
        forms = forms_of(table.number)
        return cls(table, places, forms, [form.cases(tokens, corpus) for form in forms])

    def ranks(self, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> list[int | None]:
        """Of each row its rank (1: the greatest) among sums float64[P] of positions int64[P], ascending; None where the
        text does not have it, or the training has not come so far in the text."""
        return [None if place is None else rank(positions, sums, place) for place in self.places]

    def of_the_best(self, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> list[int]:
        """Of each form: how many of the BEST positions are of it."""
        return [count_best(positions, sums, cases) for cases in self.cases]

    def of_all(self, positions: NDArray[np.int64]) -> list[int]:
        """Of each form: how many of all positions are of it."""
        return [int(np.isin(positions, cases.places).sum()) for cases in self.cases]

    def elsewhere(self, positions: NDArray[np.int64]) -> list[int]:
        """Of each form: how many of all positions its article alone rules out."""
        return [int(np.isin(positions, cases.elsewhere).sum()) for cases in self.cases]

    def told_apart(self, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> list[float | None]:
        """Of each form: the chance that a case of it has a greater sum than one that its article alone rules out (0.5
        where the article makes no difference); None where there are not both.
        """
        return [
            _greater(sums[np.isin(positions, cases.places)], sums[np.isin(positions, cases.elsewhere)])
            for cases in self.cases
        ]


def count_best(positions: NDArray[np.int64], sums: NDArray[np.float64], cases: Cases) -> int:
    """How many of the BEST positions are among the cases of a form."""
    return int(np.isin(positions[best(sums, BEST)], cases.places).sum())


def rank(positions: NDArray[np.int64], sums: NDArray[np.float64], place: int) -> int | None:
    """1 for the greatest; None where the position is not among those int64[P], ascending, that have sums."""
    at = int(np.searchsorted(positions, place))
    if at == len(positions) or positions[at] != place:
        return None
    return 1 + int((sums > sums[at]).sum())


def _greater(ours: NDArray[np.float64], others: NDArray[np.float64]) -> float | None:
    """The share of all pairs in which ours is greater, where equal ones count half."""
    if not len(ours) or not len(others):
        return None
    ordered = np.sort(others)
    below, not_above = (np.searchsorted(ordered, ours, side=side) for side in _SIDES)
    return float((below + not_above).mean() / (2 * len(others)))
