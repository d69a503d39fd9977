"""What prompts ask of a training, and how its answers read.

Shapes: n queries (tokens of prompts), m prompts, d of a key, P token positions of the training text, S steps.

"We sum all attention weights which go to the same training token position" (section 5.5): one sum over the passes in
which a token was read. The weights are summed as they are, with their sign, as the text says and as equation 13 adds
them up; the paper's published code for images takes absolute values, so the sums of those are asked for, too, to see
whether they would lead elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.answers import GroupSums, Hits
from dualform.questions import GroupSum, TopK, Vectors
from dualform_studies.text.network import LAYER, LanguageModel
from dualform_studies.text.prompts import Prompt
from dualform_studies.text.tokens import Tokens, Vocabulary

Question: TypeAlias = TopK | GroupSum

HITS = 10
"""Single training datapoints that a prompt asks for, beside sums."""
_ASKED = 160
"""Tokens of a prompt that are asked about, from its end: each costs a pass over all keys."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Every token of some prompts as a query."""

    prompts: Sequence[Prompt]
    tokens: Sequence[Tokens]
    """Of each prompt."""
    rows: Sequence[slice]
    """Of each prompt: its queries among all."""
    queries: NDArray[np.float32]
    """float32[n, d]."""

    @property
    def last(self) -> list[int]:
        """int[m]: the query of each prompt's last token."""
        return [rows.stop - 1 for rows in self.rows]

    @property
    def scored(self) -> int:
        """Queries over all questions: those of last tokens are in four, the others in one."""
        return len(self.queries) + 3 * len(self.prompts)

    def asked(self, prompt: int) -> range:
        """Which tokens of a prompt have a query."""
        count = len(self.tokens[prompt])
        return range(count - (self.rows[prompt].stop - self.rows[prompt].start), count)

    def questions(self) -> list[Question]:
        last = Vectors(self.queries[self.last])
        return [
            TopK(LAYER, last, k=HITS),
            GroupSum(LAYER, Vectors(self.queries), by=("position",)),
            GroupSum(LAYER, last, by=("position",), score="abs"),
            GroupSum(LAYER, last, by=("step",)),
        ]


@dataclass(frozen=True, eq=False)
class Attention:
    """The answers, in the order of `Questions.questions`."""

    hits: Hits
    by_position: GroupSums
    by_position_absolute: GroupSums
    by_step: GroupSums

    @property
    def positions(self) -> NDArray[np.int64]:
        """int64[P]: the positions that were read, ascending."""
        return np.array([position for (position,) in self.by_position.groups], dtype=np.int64)

    def digests(self, prompt: int, rows: slice) -> dict[str, str]:
        """One for the best datapoints of a prompt and one for its sums: equal where all their bits are."""
        parts = {
            "top_k": [self.hits.slots[prompt], self.hits.scores[prompt]],
            "sums": [self.positions, self.by_position.counts, self.by_position.sums[rows]],
        }
        return {
            name: hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in arrays)).hexdigest()
            for name, arrays in parts.items()
        }


def prepare(network: LanguageModel, vocabulary: Vocabulary, prompts: Sequence[Prompt]) -> Questions:
    """Let the network read each prompt from a state of zeros, and keep the LSTM's input at each of its tokens."""
    device = next(network.parameters()).device
    tokens = [vocabulary.encode(prompt.text) for prompt in prompts]
    queries, rows, begin = [], [], 0
    for one in tokens:
        queries.append(network.queries(torch.from_numpy(one.ids).to(device)).cpu().numpy()[-_ASKED:])
        rows.append(slice(begin, begin + len(queries[-1])))
        begin = rows[-1].stop
    return Questions(prompts, tokens, rows, np.concatenate(queries))


def best(sums: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """int64[k]: where the k greatest of float64[P] are, greatest first, the first of equals before the others."""
    return np.argsort(-sums, kind="stable")[:k]
