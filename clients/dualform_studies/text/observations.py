"""What prompts ask of a training, and the paper's observations of texts (section 5.5, appendix C) in the answers.

"We sum all attention weights which go to the same training token position" (section 5.5): one sum over the passes in
which a token was read. The paper's published code sums absolute values, and so do the answers here; the signed sums,
which are what equation 13 adds up, are asked for beside them.

Whether what the paper sees in the passages of one query is so of other queries of the same form is asked of the test
text; the paper's own query is not among the others, if it was taken from there.

Shapes: m prompts, o other queries, d of a key, P token positions of the training text that were read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupSums, Hits
from dualform.questions import GroupSum, TopK, Vectors
from dualform_studies.claims import FAILS, HOLDS, IN_PART, Claim, Verdict, judge, judged
from dualform_studies.report import Report, percent
from dualform_studies.text.corpora import Corpus, Tokens
from dualform_studies.text.prompts import Cases, Form, Passage, Prompt, PublishedTable, cut, find
from dualform_studies.text.training import CONTEXT, LAYER, LanguageModel, Question, Task, last_queries

HITS = 10
"""Single training datapoints that a prompt asks for, beside sums."""
BEST = 10
"""Positions that are held against a form."""
PASSAGES = 5
"""Training passages of a prompt; the paper shows three."""
_MOST_CHECKED = 12
"""Queries of a form: each costs a pass over all keys."""


@dataclass(frozen=True, eq=False)
class Standard:
    """What a table of the paper shows, in the training text at hand."""

    table: PublishedTable
    places: Sequence[int | None]
    """Of each of its rows: which token of the training text is marked; None where the text has not the passage."""
    forms: Sequence[tuple[Form, Cases]]

    @classmethod
    def of(cls, table: PublishedTable, tokens: Tokens, corpus: Corpus) -> Standard:
        found = (find(tokens.text, row.passage) for row in table.rows)
        places = [None if place is None else tokens.first_from(place[1]) for place in found]
        return cls(table, places, [(form, form.cases(tokens, corpus)) for form in table.forms])

    def report(self, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> Report:
        """The table's rows and forms, held against sums float64[P] of positions int64[P], ascending."""
        return {
            "table": self.table.number,
            "remark": self.table.remark,
            "unmarked": self.table.unmarked,
            "published": [
                {
                    "rank": row.rank,
                    "leads": row.leads,
                    "title": row.page,
                    "passage": vars(row.passage),
                    "rank_here": None if place is None else rank(positions, sums, place),
                }
                for row, place in zip(self.table.rows, self.places, strict=True)
            ],
            "forms": [_held_against(form, cases, positions, sums) for form, cases in self.forms],
        }


def _held_against(form: Form, cases: Cases, positions: NDArray[np.int64], sums: NDArray[np.float64]) -> Report:
    """How many of the BEST positions are of a form, how many of all are, and how many its article alone rules out; and
    the chance that a case has a greater sum than one of these (0.5 if the article makes no difference).
    """
    own, elsewhere = np.isin(positions, cases.places), np.isin(positions, cases.elsewhere)
    return {
        "claim": form.claim,
        "rule": form.rule,
        "of_ten": count_best(positions, sums, cases),
        "of_all": int(own.sum()),
        "elsewhere": int(elsewhere.sum()),
        "told_apart": _greater(sums[own], sums[elsewhere]),
    }


class Sample(NamedTuple):
    """Queries of one form."""

    form: Form
    cases: Cases
    """Of the training text."""
    in_the_test_text: int
    """How many tokens of the test text are of the form, the paper's own query left out."""
    asked: Sequence[Tokens]
    """What the network reads for each query, which is its last token: _MOST_CHECKED of them at most, evenly chosen, and
    none if the test text has none."""


def sample_of(form: Form, cases: Cases, prompt: Prompt, task: Task) -> Sample:
    """Other queries of the form of a prompt that comes from the paper."""
    places = form.cases(task.test, task.corpus).places
    if prompt.published is not None and prompt.published.origin == "test" and prompt.place is not None:
        places = places[places != prompt.place]
    chosen = np.unique(np.linspace(0, len(places) - 1, min(_MOST_CHECKED, len(places))).round().astype(np.int64))
    asked = [task.test.ending(int(place), CONTEXT) for place in places[chosen]]
    return Sample(form, cases, len(places), asked)


@dataclass(frozen=True, eq=False)
class Inquiry:
    """What some prompts ask of a training."""

    prompts: Sequence[Prompt]
    tokens: Sequence[Tokens]
    """What the network reads of each."""
    standards: Mapping[str, Standard]
    """By name, of the prompts that come from the paper."""
    samples: Sequence[Sample]
    """One for each form of these whose tokens are told by their own surroundings."""

    @classmethod
    def of(cls, prompts: Sequence[Prompt], task: Task) -> Inquiry:
        """Raises BadInput for a prompt with a character that the vocabulary does not have."""
        encoded = [task.vocabulary.encode(prompt.text) for prompt in prompts]
        published = [(prompt, prompt.published) for prompt in prompts if prompt.published is not None]
        standards = {prompt.name: Standard.of(table, task.train, task.corpus) for prompt, table in published}
        samples = [
            sample_of(form, cases, prompt, task)
            for prompt, _ in published
            for form, cases in standards[prompt.name].forms
            if not form.article
        ]
        return cls(prompts, [tokens.ending(len(tokens) - 1, CONTEXT) for tokens in encoded], standards, samples)

    @property
    def others(self) -> list[Tokens]:
        """What the network reads for the other queries of all samples, in order."""
        return [tokens for sample in self.samples for tokens in sample.asked]

    @property
    def scored(self) -> int:
        """How often all keys are scored: for the best and two sums of each prompt, and one sum of each other query."""
        return 3 * len(self.prompts) + len(self.others)

    def questions(self, network: LanguageModel) -> tuple[NDArray[np.float32], list[Question]]:
        """float32[m, d], the prompts as queries, and the questions whose answers are `findings` made of."""
        queries = last_queries(network, self.tokens)
        last = Vectors(queries)
        asked: list[Question] = [
            TopK(LAYER, last, k=HITS, score="abs"),
            GroupSum(LAYER, last, by=("position",), score="abs"),
            GroupSum(LAYER, last, by=("position",)),
        ]
        if self.others:
            others = Vectors(last_queries(network, self.others))
            asked.append(GroupSum(LAYER, others, by=("position",), score="abs"))
        return queries, asked

    def findings(
        self, task: Task, hits: Hits, sums: GroupSums, signed: GroupSums, of_others: GroupSums | None = None
    ) -> tuple[list[Report], list[Report]]:
        """What the answers to `questions` say: one entry for each prompt, and one for each sample."""
        positions = np.array([position for (position,) in sums.groups], dtype=np.int64)
        prompts = []
        for prompt, tokens, digest, own in zip(
            self.prompts, self.tokens, _digests(positions, hits, signed), sums.sums, strict=True
        ):
            read = cut(tokens, len(tokens) - 1)
            found: Report = {
                "name": prompt.name,
                "text": prompt.text,
                # Its last token marked; what follows that is space, or was not read.
                "query": vars(Passage(read.before, read.token, read.after + prompt.after)),
                "passages": [
                    {
                        "position": int(positions[place]),
                        "sum": float(own[place]),
                        "times_read": int(sums.counts[place]),
                        "title": task.corpus.title(int(task.train.starts[positions[place]])),
                        "passage": vars(cut(task.train, int(positions[place]))),
                    }
                    for place in best(own, PASSAGES)
                ],
                "table": None,
                "published": [],
                "forms": [],
                "digests": digest,
            }
            if prompt.name in self.standards:
                found |= self.standards[prompt.name].report(positions, own)
            prompts.append(found)
        rows = iter(() if of_others is None else of_others.sums)
        prevalence = [
            {
                "table": sample.form.table,
                "claim": sample.form.claim,
                "in_the_test_text": sample.in_the_test_text,
                "of_ten": [count_best(positions, next(rows), sample.cases) for _ in sample.asked],
                "of_all": int(np.isin(positions, sample.cases.places).sum()),
            }
            for sample in self.samples
        ]
        return prompts, prevalence


def _digests(positions: NDArray[np.int64], hits: Hits, signed: GroupSums) -> Iterator[dict[str, str]]:
    """Of each prompt one for its best datapoints and one for its signed sums: equal where all their bits are."""
    for slots, scores, sums in zip(hits.slots, hits.scores, signed.sums, strict=True):
        parts = {"top_k": (slots, scores), "sums": (positions, signed.counts, sums)}
        yield {
            name: hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in arrays)).hexdigest()
            for name, arrays in parts.items()
        }


def best(sums: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """int64[k]: where the k greatest of float64[P] are, greatest first, the first of equals before the others."""
    return np.argsort(-sums, kind="stable")[:k]


def count_best(positions: NDArray[np.int64], sums: NDArray[np.float64], cases: Cases) -> int:
    """How many of the BEST positions are among the cases of a form."""
    return int(np.isin(positions[best(sums, BEST)], cases.places).sum())


def rank(positions: NDArray[np.int64], sums: NDArray[np.float64], place: int) -> int | None:
    """1 for the greatest; None where the position is not among those int64[P], ascending, that have sums."""
    at = int(np.searchsorted(positions, place))
    if at == len(positions) or positions[at] != place:
        return None
    return 1 + int((sums > sums[at]).sum())


_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


def _greater(ours: NDArray[np.float64], others: NDArray[np.float64]) -> float | None:
    """The share of all pairs in which ours is greater, where equal ones count half."""
    if not len(ours) or not len(others):
        return None
    ordered = np.sort(others)
    below, not_above = (np.searchsorted(ordered, ours, side=side) for side in _SIDES)
    return float((below + not_above).mean() / (2 * len(others)))


ENOUGH = 10
"""Cases that a verdict needs: of a form in the training text, or queries of the test text."""
_MOST = 2 / 3


def claims_of(report: Report) -> list[Claim]:
    """Of the tables whose queries were asked, where there are cases enough."""
    claims: list[Claim] = []
    for prompt in report["prompts"]:
        if prompt["table"] is not None:
            claims += _of_table(prompt, report["corpus"])
            claims += (
                _prevalent(told)
                for told in report["prevalence"]
                if told["table"] == prompt["table"] and len(told["of_ten"]) >= ENOUGH <= told["of_all"]
            )
    return claims


def _prevalent(told: Report) -> Claim:
    queries = told["of_ten"]
    most = sum(of_ten / BEST >= _MOST for of_ten in queries)
    return judge(
        "text.other-queries",
        most / len(queries),
        f"{most} of {len(queries)} queries of the test text ({told['in_the_test_text']} others have the form); on "
        f"average {sum(queries) / len(queries):.1f} of their {BEST} best positions",
        table=told["table"],
        form=told["claim"],
        best=BEST,
    )


def _of_table(prompt: Report, corpus: Report) -> Iterator[Claim]:
    words = {"table": prompt["table"], "best": BEST}
    shown = [row for row in prompt["published"] if row["leads"]]
    if any(row["rank_here"] is not None for row in shown):
        last = max(inf if row["rank_here"] is None else row["rank_here"] for row in shown)
        ours = f"{ranks_in_words(shown)} of {corpus['tokens_read']:,} positions"
        yield judge("text.passages", last, ours, query=_words(prompt), **words)
    for form in prompt["forms"]:
        if form["of_all"] < ENOUGH:
            continue
        yield judge(
            "text.form",
            form["of_ten"] / BEST,
            f"{form['of_ten']} of the {BEST} best positions; of all {corpus['tokens_read']:,} positions "
            f"{form['of_all']} do",
            form=form["claim"],
            remark=prompt["remark"],
            rule=form["rule"],
            **words,
        )
        if form["told_apart"] is not None and form["elsewhere"] >= ENOUGH:
            yield judge(
                "text.context",
                form["told_apart"],
                f"a case of the form has the greater sum in {percent(form['told_apart'], '.3g')} of the pairs of "
                f"{form['of_all']:,} cases with {form['elsewhere']:,} that their page alone rules out",
                **words,
            )
    yield from _negative(prompt, words)


def _negative(prompt: Report, words: Mapping[str, Any]) -> Iterator[Claim]:
    """The example of the paper that is not attended to, where the training text has it and passages that are."""
    read = [row for row in prompt["published"] if row["rank_here"] is not None]
    ranks = [row["rank_here"] for row in read if row["leads"]]
    if not ranks:
        return
    for negative in (row["rank_here"] for row in read if not row["leads"]):
        behind = sum(negative > rank for rank in ranks)
        found: Verdict = FAILS if negative <= BEST else HOLDS if behind == len(ranks) else IN_PART
        ours = f"rank {negative:,}, behind {behind} of the {len(ranks)} passages shown that were read"
        yield judged("text.singer", found, ours, **words)


def ranks_in_words(rows: list[Report]) -> str:
    """The rank of each passage of the paper, in the paper's order."""
    ranks = (row["rank_here"] for row in rows)
    return f"ranks {', '.join('not read' if rank is None else f'{rank:,}' for rank in ranks)}"


def _words(prompt: Report) -> str:
    """The last words of a query, with its token in brackets."""
    query = prompt["query"]
    before = " ".join(query["before"].split())[-24:] + (" " if query["before"][-1:].isspace() else "")
    token = "space" if query["token"].isspace() else query["token"]
    return f"…{before}[{token}]"
