"""What the paper observes in section 5.5 and appendix C, with verdicts that are computed from a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, Beside, Claim, Verdict, verdict, verdict_at_most
from dualform_studies.pages.folder import Report
from dualform_studies.pages.words import percent
from dualform_studies.text.ranks import BEST

LEADING = 100
"""Positions among which the paper's passages are looked for, where they are not among the best."""
ENOUGH = 10
"""Cases that a verdict needs: of a form in the training text, or queries of the test text."""
_MOST, _SOME = 2 / 3, 1 / 3
_APART, _SOMEWHAT_APART = 0.75, 0.6


def claims_of(report: Report) -> list[Claim]:
    """Of the tables whose queries were asked, where there are cases enough."""
    claims: list[Claim] = []
    for prompt in report["prompts"]:
        if prompt["table"] is not None:
            claims += _of_table(prompt, report["corpus"])
            claims += (_prevalent(told, heading_of(prompt)) for told in _others(prompt, report) if _enough(told))
    return claims


def without_verdict(prompt: Report, report: Report) -> Iterator[str]:
    """A sentence for each observation of a prompt's table that has too few cases for a verdict."""
    if prompt["table"] is not None and not any(row["rank_here"] for row in prompt["published"] if row["leads"]):
        yield "What was read of the training text has none of the passages that the paper shows: they have no rank."
    for form in prompt["forms"]:
        if form["of_all"] < ENOUGH:
            yield (
                f"Of all positions of the training text {form['of_all']} show {form['claim']}, and a verdict needs "
                f"{ENOUGH}."
            )
        elif form["told_apart"] is not None and form["elsewhere"] < ENOUGH:
            yield (
                f"On other pages there are {form['elsewhere']} positions of the same structure, and a verdict on "
                f"topics needs {ENOUGH}."
            )
    for told in _others(prompt, report):
        if len(told["of_ten"]) < ENOUGH:
            yield (
                f"The test text has {told['in_the_test_text'] or 'no'} other tokens that show {told['claim']}, and a "
                f"verdict on other queries needs {ENOUGH}."
            )


def _others(prompt: Report, report: Report) -> list[Report]:
    """How other queries of the prompt's forms fare."""
    return [told for told in report["prevalence"] if told["table"] == prompt["table"]]


def _enough(told: Report) -> bool:
    return len(told["of_ten"]) >= ENOUGH <= int(told["of_all"])


def is_most(of_ten: int) -> bool:
    """Whether two thirds of the best are of a form."""
    return of_ten / BEST >= _MOST


def _prevalent(told: Report, heading: str) -> Claim:
    queries = told["of_ten"]
    most = sum(map(is_most, queries))
    return Claim(
        f"section 5.5, Table {told['table']}",
        f"The passages attended to by other queries that show {told['claim']} show it, too.",
        "one query",
        f"{most} of {len(queries)} queries of the test text ({told['in_the_test_text']} others have the form); on "
        f"average {sum(queries) / len(queries):.1f} of their {BEST} best positions",
        verdict(most / len(queries), _MOST, _SOME),
        f"Of two thirds of the queries (in part: one third), two thirds of the {BEST} best are of the form.",
        heading,
    )


def heading_of(prompt: Report) -> str:
    """The heading that a prompt stands under."""
    table = prompt["table"]
    return f"Table {table} of the paper" if table else f"Prompt {prompt['name'].removeprefix('prompt-')}"


def _of_table(prompt: Report, corpus: Report) -> Iterator[Claim]:
    section, heading = f"section 5.5, Table {prompt['table']}", heading_of(prompt)
    shown = [row for row in prompt["published"] if row["leads"]]
    if any(row["rank_here"] is not None for row in shown):
        last = max(inf if row["rank_here"] is None else row["rank_here"] for row in shown)
        yield Claim(
            section,
            f"The passages that get most of the attention of “{_words(prompt)}” are the three shown.",
            "ranks 1, 2, 3",
            f"{_ranks(shown)} of {corpus['tokens_read']:,} positions",
            verdict_at_most(last, BEST, LEADING),
            f"All are among the {BEST} positions with the greatest sums; in part: among {LEADING}. One that was not "
            "read counts against it.",
            heading,
        )
    for form in prompt["forms"]:
        if form["of_all"] < ENOUGH:
            continue
        yield Claim(
            section,
            f"The passages attended to most show {form['claim']}.",
            f"3 of 3: {prompt['remark']}",
            f"{form['of_ten']} of the {BEST} best positions; of all {corpus['tokens_read']:,} positions "
            f"{form['of_all']} do",
            verdict(form["of_ten"] / BEST, _MOST, _SOME),
            f"Two thirds of the {BEST} best (in part: one third); counted where {form['rule']}.",
            heading,
        )
        if form["told_apart"] is not None and form["elsewhere"] >= ENOUGH:
            yield Claim(
                section,
                "The attention is contextual: the same sentence structure on another topic gets less of it.",
                "one example of another topic, not attended to",
                f"a case of the form has the greater sum in {percent(form['told_apart'], '.3g')} of the pairs of "
                f"{form['of_all']:,} cases with {form['elsewhere']:,} that their page alone rules out",
                verdict(form["told_apart"], _APART, _SOMEWHAT_APART),
                f"In {percent(_APART, '.3g')} of all pairs (in part: {percent(_SOMEWHAT_APART, '.3g')}; chance: 50 %).",
                heading,
            )
    yield from _negative(prompt, section, heading)


def _negative(prompt: Report, section: str, heading: str) -> Iterator[Claim]:
    """The example of the paper that is not attended to, where the training text has it and passages that are."""
    read = [row for row in prompt["published"] if row["rank_here"] is not None]
    ranks = [row["rank_here"] for row in read if row["leads"]]
    if not ranks:
        return
    for negative in (row["rank_here"] for row in read if not row["leads"]):
        behind = sum(negative > rank for rank in ranks)
        found: Verdict = FAILS if negative <= BEST else HOLDS if behind == len(ranks) else IN_PART
        yield Claim(
            section,
            "The passage on a singer, of a similar structure, is not attended to.",
            "not among the best",
            f"rank {negative:,}, behind {behind} of the {len(ranks)} passages shown that were read",
            found,
            f"It is not among the {BEST} best, and behind all passages shown (in part: not among the {BEST} best).",
            heading,
        )


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
