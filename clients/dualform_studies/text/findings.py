"""What prompts led to, as report.json has it: training passages with their sums, datapoints, and the paper's own rows.

Everything that the page shows is here, so that prompts asked later are shown beside those asked before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dualform.methods import Answers
from dualform_studies.pages.folder import Report
from dualform_studies.text.attention import Attention, Questions, best
from dualform_studies.text.passages import Passage, cut
from dualform_studies.text.prompts import Prompt
from dualform_studies.text.ranks import Standard
from dualform_studies.text.runs import Task
from dualform_studies.text.tokens import Tokens

PASSAGES = 5
"""Training passages of a prompt; the paper shows three."""


def findings(
    asking: Questions, attention: Attention, memory: Answers, task: Task, standards: Mapping[str, Standard]
) -> list[Report]:
    """One entry for each prompt; `memory` tells the columns of slots and needs no keys for that. `standards` are of the
    prompts that come from the paper, by name."""
    told = _Teller(asking, attention, memory, task, standards)
    return [told.prompt(number) for number in range(len(asking.prompts))]


class _Teller:
    def __init__(
        self, asking: Questions, attention: Attention, memory: Answers, task: Task, standards: Mapping[str, Standard]
    ) -> None:
        self._asking, self._attention, self._memory = asking, attention, memory
        self._task, self._standards = task, standards
        self._positions = attention.positions

    def prompt(self, number: int) -> Report:
        prompt, tokens = self._asking.prompts[number], self._asking.tokens[number]
        rows, asked = self._asking.rows[number], self._asking.asked(number)
        own = self._attention.by_position.sums[rows.stop - 1]
        signed = self._attention.by_position_signed.sums[number]
        leading, lacking = set(best(own, PASSAGES).tolist()), self._task.vocabulary.lacks(tokens)
        return {
            "name": prompt.name,
            "text": prompt.text,
            "query": vars(_query(prompt, tokens)),
            "table": None if prompt.published is None else prompt.published.number,
            "remark": "" if prompt.published is None else prompt.published.remark,
            "unmarked": [] if prompt.published is None else prompt.published.unmarked,
            "length": len(tokens),
            "in_the_text": prompt.published is None or prompt.place is not None,
            "unread": self._unread(prompt),
            "passages": [self._passage(rows.stop - 1, place) for place in best(own, PASSAGES)],
            "of_these_also_signed": len(leading & set(best(signed, PASSAGES).tolist())),
            "hits": self._hits(number),
            "tokens": [
                {
                    "of": tokens.word(at),
                    "unknown": bool(lacking[at]),
                    **self._passage(row, int(best(self._attention.by_position.sums[row], 1)[0])),
                }
                for at, row in zip(asked, range(rows.start, rows.stop), strict=True)
            ],
            "published": self._published(number),
            "forms": self._forms(number),
            "digests": self._attention.digests(number),
        }

    def _unread(self, prompt: Prompt) -> int | None:
        """The place of a query that stands in the training text where no stream comes; None for every other one."""
        if prompt.published is None or prompt.published.origin != "train" or prompt.place is None:
            return None
        return None if np.isin(prompt.place, self._positions) else prompt.place

    def _passage(self, row: int, place: int) -> Report:
        """One training position and what stands there."""
        position = int(self._positions[place])
        text = self._task.train
        return {
            "position": position,
            "sum": float(self._attention.by_position.sums[row, place]),
            "times_read": int(self._attention.by_position.counts[place]),
            "title": self._task.corpus.title(int(text.starts[position])),
            "passage": vars(cut(text, position)),
        }

    def _hits(self, number: int) -> list[Report]:
        hits = self._attention.hits
        records = self._memory.slots(hits.slots[number], hits.space).records()
        return [{**record, "score": float(s)} for record, s in zip(records, hits.scores[number], strict=True)]

    def _published(self, number: int) -> list[Report]:
        """The paper's passages, and how they rank here where the training text has them (1: the best)."""
        standard = self._standards.get(self._asking.prompts[number].name)
        if standard is None:
            return []
        own = self._attention.by_position.sums[self._asking.last[number]]
        signed = self._attention.by_position_signed.sums[number]
        ranks, ranks_signed = (standard.ranks(self._positions, sums) for sums in (own, signed))
        return [
            {
                "rank": row.rank,
                "leads": row.leads,
                "sign": row.sign,
                "title": row.page,
                "passage": vars(row.passage),
                "rank_here": rank,
                "rank_signed": other,
            }
            for row, rank, other in zip(standard.table.rows, ranks, ranks_signed, strict=True)
        ]

    def _forms(self, number: int) -> list[Report]:
        """How many of the best positions are of the form that the paper sees in its passages."""
        standard = self._standards.get(self._asking.prompts[number].name)
        if standard is None:
            return []
        own = self._attention.by_position.sums[self._asking.last[number]]
        of_ten, of_all = standard.of_the_best(self._positions, own), standard.of_all(self._positions)
        elsewhere, told_apart = standard.elsewhere(self._positions), standard.told_apart(self._positions, own)
        return [
            {
                "claim": form.claim,
                "rule": form.rule,
                "of_ten": of_ten[at],
                "of_all": of_all[at],
                "elsewhere": elsewhere[at],
                "told_apart": told_apart[at],
            }
            for at, form in enumerate(standard.forms)
        ]


def _query(prompt: Prompt, tokens: Tokens) -> Passage:
    """The end of the prompt with its last token marked; what follows that is space, or was not read."""
    read = cut(tokens, len(tokens) - 1)
    return Passage(read.before, read.token, read.after + prompt.after)


def passage_of(entry: Report) -> Passage:
    return Passage(**entry["passage"])


def standards_of(prompts: Sequence[Prompt], task: Task) -> dict[str, Standard]:
    """What the paper shows for each prompt that comes from it, in the training text at hand."""
    return {
        prompt.name: Standard.of(prompt.published, task.train, task.corpus)
        for prompt in prompts
        if prompt.published is not None
    }
