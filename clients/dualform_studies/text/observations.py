"""What the paper observes in section 5.5 and appendix C, with verdicts that are computed from a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, Beside, Claim, Verdict, verdict
from dualform_studies.pages.folder import Report
from dualform_studies.pages.words import percent
from dualform_studies.text.ranks import BEST

LEADING = 100
"""Positions among which the paper's passages are looked for."""
_MOST, _SOME = 2 / 3, 1 / 3
_APART, _SOMEWHAT_APART = 0.75, 0.6
_MARGIN = 1e-9
"""So that two of three are two thirds."""


def claims_of(report: Report) -> list[Claim]:
    """Of the tables whose queries were asked."""
    claims: list[Claim] = []
    for prompt in report["prompts"]:
        if prompt["table"] is not None:
            claims += _of_table(prompt, report["corpus"])
            claims += (_prevalent(told, heading_of(prompt)) for told in report["prevalence"] if _of(told, prompt))
    return claims


def _of(told: Report, prompt: Report) -> bool:
    return bool(told["table"] == prompt["table"])


def is_most(of_ten: int, of_all: int) -> bool:
    """Whether two thirds of the best are of a form, or of all there are where these are fewer."""
    return _share(of_ten, of_all) >= _MOST


def _share(of_ten: int, of_all: int) -> float:
    return of_ten / max(1, min(BEST, of_all)) + _MARGIN


def _prevalent(told: Report, heading: str) -> Claim:
    queries = told["of_ten"]
    most = sum(is_most(of_ten, told["of_all"]) for of_ten in queries)
    return Claim(
        f"section 5.5, Table {told['table']}",
        f"So do those attended to by other queries of the form, {told['claim']}.",
        "one query",
        f"{most} of {len(queries)} queries of the test text ({told['in_the_test_text']} have the form); on average "
        f"{sum(queries) / len(queries):.1f} of their {BEST} best",
        verdict(most / len(queries) + _MARGIN, _MOST, _SOME),
        f"Of two thirds of the queries (in part: one third), two thirds of the {BEST} best are of the form.",
        heading,
    )


def heading_of(prompt: Report) -> str:
    """The heading that a prompt stands under."""
    table = prompt["table"]
    return f"Table {table} of the paper" if table else f"Prompt {prompt['name'].removeprefix('prompt-')}"


def _of_table(prompt: Report, corpus: Report) -> Iterator[Claim]:
    section, heading = f"section 5.5, Table {prompt['table']}", heading_of(prompt)
    ranks = [row["rank_here"] for row in prompt["published"] if _leads(row) and row["rank_here"] is not None]
    if ranks:
        share = sum(rank <= LEADING for rank in ranks) / len(ranks)
        yield Claim(
            section,
            f"The passages that get most of the attention of “{_words(prompt)}” are the three shown.",
            "ranks 1, 2, 3",
            f"ranks {', '.join(f'{rank:,}' for rank in ranks)} of {corpus['tokens_read']:,} positions",
            verdict(share + _MARGIN, _MOST, _SOME),
            f"Two thirds of them (in part: one third) are among the {LEADING} positions with the greatest sums.",
            heading,
        )
    for form in prompt["forms"]:
        yield Claim(
            section,
            f"The passages attended to most show {form['claim']}.",
            "3 of 3",
            f"{form['of_ten']} of the {BEST} best; of all {corpus['tokens_read']:,} positions {form['of_all']} do",
            verdict(_share(form["of_ten"], form["of_all"]), _MOST, _SOME),
            f"Two thirds of the {BEST} best (in part: one third), or of all there are where these are fewer; counted "
            f"where {form['rule']}.",
            heading,
        )
        if form["told_apart"] is not None:
            yield Claim(
                section,
                "The attention is contextual: the same sentence structure on another topic gets less of it.",
                "one example of another topic, not attended to",
                f"a case of the form has the greater sum in {percent(form['told_apart'], '.3g')} of the pairs with one "
                "that its page alone rules out",
                verdict(form["told_apart"], _APART, _SOMEWHAT_APART),
                f"In {percent(_APART, '.3g')} of all pairs (in part: {percent(_SOMEWHAT_APART, '.3g')}; chance: 50 %).",
                heading,
            )
    yield from _negative(prompt, ranks, section, heading)


def _negative(prompt: Report, ranks: Sequence[int], section: str, heading: str) -> Iterator[Claim]:
    """The example of the paper that is not attended to, where the training text has it."""
    others = [row["rank_here"] for row in prompt["published"] if not _leads(row) and row["rank_here"] is not None]
    if not ranks:
        return
    for negative in others:
        behind = sum(negative > rank for rank in ranks)
        found: Verdict = FAILS if negative <= BEST else HOLDS if behind == len(ranks) else IN_PART
        yield Claim(
            section,
            "The passage on a singer, of a similar structure, is not attended to.",
            "not among the best",
            f"rank {negative:,}, behind {behind} of the {len(ranks)} passages shown",
            found,
            f"It is not among the {BEST} best, and behind all passages shown (in part: not among the {BEST} best).",
            heading,
        )


def _leads(row: Report) -> bool:
    return str(row["rank"]).startswith("Top")


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
        ranks = [row["rank_here"] for row in prompt["published"] if _leads(row) and row["rank_here"] is not None]
        if ranks:
            told = ", ".join(f"{rank:,}" for rank in ranks)
            rows.append(Beside(f"ranks of the passages of Table {prompt['table']}", told, text="1, 2, 3").plain())
    return rows
