"""The paper's observations of texts (section 5.5, appendix C), and what prompts led to, as report.json has it.

Whether what the paper sees in the passages of one query is so of other queries of the same form is asked of the test
text; the paper's own query is not among the others, where it was taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform_studies.claims import (
    FAILS,
    HOLDS,
    IN_PART,
    Beside,
    Claim,
    Verdict,
    judge,
    judged,
)
from dualform_studies.report import Report, percent
from dualform_studies.text.attention import BEST, Attention, Questions, Standard, best, count_best
from dualform_studies.text.corpora import Tokens
from dualform_studies.text.prompts import CONTEXT, Cases, Form, Passage, Prompt, cut
from dualform_studies.text.task import Task

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


def is_most(of_ten: int) -> bool:
    """Whether two thirds of the best are of a form."""
    return of_ten / BEST >= _MOST


def _prevalent(told: Report) -> Claim:
    queries = told["of_ten"]
    most = sum(map(is_most, queries))
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
        ours = f"{_ranks(shown)} of {corpus['tokens_read']:,} positions"
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


def _ranks(rows: list[Report]) -> str:
    """The rank of each passage of the paper, in the paper's order."""
    ranks = (row["rank_here"] for row in rows)
    return f"ranks {', '.join('not read' if rank is None else f'{rank:,}' for rank in ranks)}"


def _words(prompt: Report) -> str:
    """The last words of a query, with its token in brackets."""
    query = prompt["query"]
    before = " ".join(query["before"].split())[-24:] + (" " if query["before"][-1:].isspace() else "")
    token = "space" if query["token"].isspace() else query["token"]
    return f"…{before}[{token}]"


def beside_paper(report: Report, paper: Mapping[str, tuple[str, str]]) -> list[Report]:
    """Figures of the recipe and of the outcome beside those of the paper's text and of its code (`Beside`).

    `paper` has those of the paper by their names here, each a pair of what its text and what its code says.
    """
    corpus, recipe = report["corpus"], report["recipe"]
    ours = {
        "tokens of the training text": f"{corpus['train_tokens']:,}",
        "tokens that a pass reads": f"{corpus['tokens_of_a_pass']:,}",
        "different tokens": f"{corpus['vocabulary']:,}",
        "units of the LSTM": f"{recipe['hidden']:,}",
        "streams of so many tokens a step": f"{recipe['batch']} of {recipe['unroll']}",
        "updates": f"{recipe['steps']:,}",
    }
    rows = [Beside(what, value, *paper.get(what, ("", ""))).plain() for what, value in ours.items()]
    for prompt in report["prompts"]:
        shown = [row for row in prompt["published"] if row["leads"]]
        if any(row["rank_here"] is not None for row in shown):
            what = f"ranks of the passages of Table {prompt['table']}"
            rows.append(Beside(what, _ranks(shown), text="1, 2, 3").plain())
    return rows


_MOST_CHECKED = 12
"""Queries of a form: each costs a pass over all keys."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries of one form."""

    form: Form
    cases: Cases
    """Of the training text."""
    in_the_test_text: int
    """How many tokens of the test text are of the form, the paper's own query left out."""
    asked: Sequence[Tokens]
    """What the network reads for each query, which is its last token: _MOST of them at most, evenly chosen, and none
    where the test text has none."""


def samples_of(prompts: Iterable[Prompt], standards: Mapping[str, Standard], task: Task) -> list[Sample]:
    """One for each form of a prompt that comes from the paper, where a token's own surroundings decide of the form."""
    found = []
    for prompt in prompts:
        if prompt.published is None:
            continue
        own = prompt.place if prompt.published.origin == "test" else None
        standard = standards[prompt.name]
        for form, cases in zip(standard.forms, standard.cases, strict=True):
            if not form.article:
                places = form.cases(task.test, task.corpus).places
                places = places[places != own] if own is not None else places
                asked = [task.test.ending(int(place), CONTEXT) for place in _evenly(places)]
                found.append(Sample(form, cases, len(places), asked))
    return found


def _evenly(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[_MOST] or fewer of int64[n], from the first to the last."""
    return places[np.unique(np.linspace(0, len(places) - 1, min(_MOST_CHECKED, len(places))).round().astype(np.int64))]


def asked_of(samples: Iterable[Sample]) -> list[Tokens]:
    """What the network reads for all of them, in order."""
    return [tokens for sample in samples for tokens in sample.asked]


def prevalence_of(samples: Sequence[Sample], attention: Attention) -> list[Report]:
    """One entry for each sample; `attention` has the sums by position of all their queries, in order."""
    positions = attention.positions
    rows = iter(() if attention.of_others is None else attention.of_others.sums)
    told = []
    for sample in samples:
        of_ten = [count_best(positions, next(rows), sample.cases) for _ in sample.asked]
        told.append(
            {
                "table": sample.form.table,
                "claim": sample.form.claim,
                "in_the_test_text": sample.in_the_test_text,
                "of_ten": of_ten,
                "of_all": int(np.isin(positions, sample.cases.places).sum()),
            }
        )
    return told


PASSAGES = 5
"""Training passages of a prompt; the paper shows three."""


def findings(asking: Questions, attention: Attention, task: Task, standards: Mapping[str, Standard]) -> list[Report]:
    """One entry for each prompt; `standards` are of the prompts that come from the paper, by name."""
    return [
        _finding(prompt, asking.tokens[number], attention, number, task, standards.get(prompt.name))
        for number, prompt in enumerate(asking.prompts)
    ]


def _finding(
    prompt: Prompt, tokens: Tokens, attention: Attention, number: int, task: Task, standard: Standard | None
) -> Report:
    positions, sums = attention.positions, attention.by_position.sums[number]
    read = cut(tokens, len(tokens) - 1)
    found: Report = {
        "name": prompt.name,
        "text": prompt.text,
        # Its last token marked; what follows that is space, or was not read.
        "query": vars(Passage(read.before, read.token, read.after + prompt.after)),
        "passages": [
            {
                "position": int(positions[place]),
                "sum": float(sums[place]),
                "times_read": int(attention.by_position.counts[place]),
                "title": task.corpus.title(int(task.train.starts[positions[place]])),
                "passage": vars(cut(task.train, int(positions[place]))),
            }
            for place in best(sums, PASSAGES)
        ],
        "table": None,
        "published": [],
        "forms": [],
        "digests": attention.digests(number),
    }
    if standard is None:
        return found
    of_ten, of_all = standard.of_the_best(positions, sums), standard.of_all(positions)
    elsewhere, told_apart = standard.elsewhere(positions), standard.told_apart(positions, sums)
    return found | {
        "table": standard.table.number,
        "remark": standard.table.remark,
        "unmarked": standard.table.unmarked,
        "published": [
            {
                "rank": row.rank,
                "leads": row.leads,
                "title": row.page,
                "passage": vars(row.passage),
                "rank_here": rank,
            }
            for row, rank in zip(standard.table.rows, standard.ranks(positions, sums), strict=True)
        ],
        "forms": [
            {
                "claim": form.claim,
                "rule": form.rule,
                "of_ten": of_ten[at],
                "of_all": of_all[at],
                "elsewhere": elsewhere[at],
                "told_apart": told_apart[at],
            }
            for at, form in enumerate(standard.forms)
        ],
    }


def standards_of(prompts: Sequence[Prompt], task: Task) -> dict[str, Standard]:
    """What the paper shows for each prompt that comes from it, in the training text at hand."""
    return {
        prompt.name: Standard.of(prompt.published, task.train, task.corpus)
        for prompt in prompts
        if prompt.published is not None
    }
