"""What prompts led to, as report.json has it: training passages with their sums, datapoints, and the paper's own rows.

Everything that the page shows is here, so that prompts asked later are shown beside those asked before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dualform.methods import Answers
from dualform_studies.pages.claims import Beside
from dualform_studies.pages.folder import Report
from dualform_studies.text.attention import Attention, Questions, best
from dualform_studies.text.corpora import Corpus
from dualform_studies.text.passages import Passage, cut, find
from dualform_studies.text.prompts import Prompt
from dualform_studies.text.published import PublishedTable
from dualform_studies.text.tokens import Tokens

_PASSAGES = 5
"""Training passages of a prompt; the paper shows three."""


def findings(
    asking: Questions, attention: Attention, memory: Answers, corpus: Corpus, trained_on: Tokens
) -> list[Report]:
    """One entry for each prompt; `memory` tells the columns of slots and needs no keys for that."""
    told = _Teller(asking, attention, memory, corpus, trained_on)
    return [told.prompt(number) for number in range(len(asking.prompts))]


class _Teller:
    def __init__(
        self, asking: Questions, attention: Attention, memory: Answers, corpus: Corpus, trained_on: Tokens
    ) -> None:
        self._asking, self._attention, self._memory = asking, attention, memory
        self._corpus, self._trained_on = corpus, trained_on
        self._positions = attention.positions

    def prompt(self, number: int) -> Report:
        prompt, tokens = self._asking.prompts[number], self._asking.tokens[number]
        rows, asked = self._asking.rows[number], self._asking.asked(number)
        own = self._attention.by_position.sums[rows.stop - 1]
        absolute = self._attention.by_position_absolute.sums[number]
        leading = set(best(own, _PASSAGES).tolist())
        return {
            "name": prompt.name,
            "text": prompt.text,
            "query": vars(_query(prompt, tokens)),
            "table": None if prompt.published is None else prompt.published.number,
            "remark": "" if prompt.published is None else prompt.published.remark,
            "unmarked": [] if prompt.published is None else prompt.published.unmarked,
            "length": len(tokens),
            "in_the_text": prompt.found,
            "passages": [self._passage(rows.stop - 1, place) for place in best(own, _PASSAGES)],
            "of_these_also_by_absolute_sums": len(leading & set(best(absolute, _PASSAGES).tolist())),
            "hits": self._hits(number),
            "tokens": [
                {
                    "of": tokens.word(at),
                    "unknown": bool(tokens.ids[at] == 0),
                    **self._passage(row, int(best(self._attention.by_position.sums[row], 1)[0])),
                }
                for at, row in zip(asked, range(rows.start, rows.stop), strict=True)
            ],
            "published": [] if prompt.published is None else self._published(prompt.published, own),
            "digests": self._attention.digests(number, rows),
        }

    def _passage(self, row: int, place: int) -> Report:
        """One training position and what stands there."""
        position = int(self._positions[place])
        passage = cut(self._trained_on, position)
        return {
            "position": position,
            "sum": float(self._attention.by_position.sums[row, place]),
            "times_read": int(self._attention.by_position.counts[place]),
            "title": self._corpus.title(self._trained_on.text, int(self._trained_on.starts[position])),
            "passage": vars(passage),
        }

    def _hits(self, number: int) -> list[Report]:
        hits = self._attention.hits
        records = self._memory.slots(hits.slots[number], hits.space).records()
        return [{**record, "score": float(s)} for record, s in zip(records, hits.scores[number], strict=True)]

    def _published(self, table: PublishedTable, sums: Any) -> list[Report]:
        """The paper's passages, and how they rank here where the training text has them (1: the best)."""
        told = []
        for row in table.rows:
            rank = None
            if (place := find(self._trained_on.text, row.passage)) is not None:
                read = np.flatnonzero(self._positions == self._trained_on.first_from(place[1]))
                # A short training may not have come so far in the text.
                rank = 1 + int((sums > sums[read[0]]).sum()) if len(read) else None
            told.append({"rank": row.rank, "title": row.page, "passage": vars(row.passage), "rank_here": rank})
        return told


def beside_paper(prompts: Sequence[Report]) -> list[Report]:
    """Of each table of the paper whose passages stand in the training text: their ranks here (`Beside`)."""
    told = []
    for prompt in prompts:
        ranks = [row["rank_here"] for row in prompt["published"] if row["rank_here"] is not None]
        if ranks:
            ours = ", ".join(f"{rank:,}" for rank in ranks)
            told.append(Beside(f"ranks of the passages of Table {prompt['table']}", ours, text="1, 2, 3").plain())
    return told


def _query(prompt: Prompt, tokens: Tokens) -> Passage:
    """The prompt with its last token marked; what follows that is space, or was not read."""
    start, end = int(tokens.starts[-1]), int(tokens.ends[-1])
    return Passage(prompt.text[:start], prompt.text[start:end], prompt.text[end:] + prompt.after)


def passage_of(entry: Report) -> Passage:
    return Passage(**entry["passage"])
