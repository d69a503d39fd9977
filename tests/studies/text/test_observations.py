"""What a report's claims are, and where there are none; from made-up reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Figure, Paragraph, Table
from dualform_studies.pages.page import Page
from dualform_studies.text.course_page import show_course
from dualform_studies.text.observations import beside_paper, claims_of, without_verdict
from dualform_studies.text.prompt_page import show_prompt
from dualform_studies.text.streams import reads_evenly

_ROWS = [("Top-1", "P1"), ("Top-2", "P2"), ("Top-3", "P3"), ("Negative", "N")]
_PASSAGE = {"before": "The Wolf stood ", "token": "d", "after": ""}


def told(ranks: list[int | None], of_ten: int, of_all: int, apart: float | None = None, elsewhere: int = 40) -> Report:
    """A report of one table's prompt, with ranks of its passages and one form, and of one prompt of a user's own."""
    passages = [
        {"rank": name, "leads": name != "Negative", "sign": sign, "rank_here": rank, "rank_signed": rank, "title": ""}
        | {"passage": _PASSAGE}
        for (name, sign), rank in zip(_ROWS, ranks, strict=False)
    ]
    form = {"claim": "x", "rule": "y", "of_ten": of_ten, "of_all": of_all, "told_apart": apart, "elsewhere": elsewhere}
    prompt: dict[str, Any] = {
        "name": "table-2",
        "table": 2,
        "remark": "warships",
        "query": _PASSAGE,
        "published": passages,
        "forms": [form],
    }
    own = {"table": None, "name": "prompt-1", "published": [], "forms": []}
    return {
        "prompts": [prompt, own],
        "corpus": {"tokens_read": 5000, "trained_on": "the valid split", "unit": "word"},
        "recipe": {"hidden": 200, "steps": 1234},
        "prevalence": [],
    }


def other_queries(of_ten: list[int], of_all: int) -> Report:
    return {"table": 2, "claim": "x", "in_the_test_text": 40, "of_ten": of_ten, "of_all": of_all}


@pytest.mark.parametrize(
    ("ranks", "verdict"),
    [
        ([1, 2, 10], "holds"),
        ([1, 2, 11], "holds in part"),
        ([100, 90, 99], "holds in part"),
        ([90, 99, 50_000], "does not hold"),
        ([1, 2, 101], "does not hold"),
        ([1, 2, None], "does not hold"),
    ],
)
def test_the_passages_shown_are_the_best_or_among_the_leading(ranks: list[int | None], verdict: str) -> None:
    first, *_ = claims_of(told(ranks, 7, 50))
    assert first.verdict == verdict
    assert "the three shown" in first.claim


@pytest.mark.parametrize(
    ("report", "verdicts"),
    [
        (told([None, None, None], 7, 50), ["holds"]),
        (told([None, None, None], 6, 50), ["holds in part"]),
        (told([None, None, None], 3, 50), ["does not hold"]),
        (told([None, None, None], 0, 10, 0.75), ["does not hold", "holds"]),
        (told([None, None, None], 0, 10, 0.6), ["does not hold", "holds in part"]),
        (told([1, 2, 3, 301], 7, 50), ["holds", "holds", "holds"]),
        (told([1, 2, 300, 40], 7, 50), ["does not hold", "holds", "holds in part"]),
        (told([1, 2, 3, 10], 7, 50), ["holds", "holds", "does not hold"]),
    ],
)
def test_verdicts_follow_from_the_criteria(report: Report, verdicts: list[str]) -> None:
    assert [claim.verdict for claim in claims_of(report)] == verdicts


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (told([None, None, None], 2, 3), ["none of the passages", "3 show x"]),
        (told([1, 2, 3], 2, 9, 0.9), ["9 show x"]),
        (told([1, 2, 3], 2, 10, 0.9, elsewhere=9), ["there are 9 positions of the same structure"]),
    ],
)
def test_a_handful_of_cases_has_no_verdict_and_the_page_says_so(report: Report, words: list[str]) -> None:
    kept = [claim.claim for claim in claims_of(report)]
    assert not any("contextual" in claim for claim in kept)
    assert ("The passages attended to most show x." in kept) == (report["prompts"][0]["forms"][0]["of_all"] >= 10)
    sentences = list(without_verdict(report["prompts"][0], report))
    assert len(sentences) == len(words)
    assert all(word in sentence for word, sentence in zip(words, sentences, strict=True))
    assert list(without_verdict(report["prompts"][1], report)) == []


@pytest.mark.parametrize(
    ("of_ten", "expected"),
    [([7] * 8 + [6] * 4, "holds"), ([7] * 4 + [6] * 6, "holds in part"), ([7] * 3 + [6] * 7, "does not hold")],
)
def test_other_queries_count_by_two_thirds_of_the_best(of_ten: list[int], expected: str) -> None:
    report = told([None, None, None], 0, 50)
    report["prevalence"] = [other_queries(of_ten, 50), other_queries(of_ten, 50) | {"table": 3}]
    *_, claim = claims_of(report)
    assert claim.verdict == expected
    assert f"of {len(of_ten)} queries of the test text (40 others have the form)" in claim.ours


@pytest.mark.parametrize(("of_ten", "of_all"), [([], 50), ([10] * 9, 50), ([7] * 12, 9)])
def test_few_other_queries_have_no_verdict(of_ten: list[int], of_all: int) -> None:
    report = told([None, None, None], 0, 50)
    report["prevalence"] = [other_queries(of_ten, of_all)]
    assert len(claims_of(report)) == 1
    said = " ".join(without_verdict(report["prompts"][0], report))
    assert ("other tokens that show x" in said) == (len(of_ten) < 10)


def test_a_claim_names_the_query_and_the_passages() -> None:
    first, second, *_ = claims_of(told([1, 4000, None], 7, 50))
    assert "“…The Wolf stood [d]”" in first.claim
    assert first.heading == "Table 2 of the paper"
    assert first.ours == "ranks 1, 4,000, not read of 5,000 positions"
    assert second.paper == "3 of 3: warships"


def test_ranks_beside_the_papers_are_those_of_the_passages_that_lead() -> None:
    report = told([1, 20, 3, 7], 7, 50)
    report["corpus"] |= {"train_tokens": 6000, "tokens_of_a_pass": 5000, "vocabulary": 9}
    report["recipe"] |= {"batch": 4, "unroll": 12}
    *_, ranks = beside_paper(report, {})
    assert ranks["ours"] == "ranks 1, 20, 3"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([1, None, 3, 7], "; of Table 2 of the paper: P1, P3, passages shown by their rank there; N, its example"),
        ([None, None, None, None], "by rank), and"),
    ],
)
def test_a_caption_explains_the_signs_that_its_figure_has(ranks: list[int | None], words: str, tmp_path: Path) -> None:
    report = told(ranks, 7, 50)
    prompt = report["prompts"][0] | {"in_the_text": True, "unread": None, "unmarked": [], "length": 1}
    prompt |= {"of_these_also_signed": 0, "passages": []}
    prompt["tokens"] = [{"of": "d", "unknown": False, "passage": _PASSAGE, "title": "", "sum": 1.0}]
    page = Page(tmp_path, "made up")
    page.figure = lambda path, caption: page.items.append(Figure(path.stem, caption))  # type: ignore[method-assign]
    show_prompt(page, prompt, report)
    (caption,) = (item.caption for item in page.items if isinstance(item, Figure))
    assert words in caption


@pytest.mark.parametrize(
    ("steps", "of_a_pass", "evenly"), [(36, 18, True), (40, 18, False), (5, 18, True), (18, 18, True), (19, 18, False)]
)
def test_tokens_are_read_equally_often_within_one_pass_and_at_the_end_of_each(
    steps: int, of_a_pass: int, evenly: bool
) -> None:
    assert reads_evenly(steps, of_a_pass) is evenly


@pytest.mark.parametrize(
    ("updates", "words"), [([18, 36], "read equally often"), ([20, 36, 40], "After 20, 40 updates")]
)
def test_a_course_says_where_tokens_were_not_read_equally_often(updates: list[int], words: str, tmp_path: Path) -> None:
    entries = [{"updates": at, "passes": at / 18, "perplexity": 2.0, "tables": []} for at in updates]
    page = Page(tmp_path, "made up")
    page.figure = lambda path, caption: None  # type: ignore[method-assign]
    show_course(page, {"course": entries, "corpus": {"chunks_of_a_pass": 18}, "preset": "laptop"})
    assert words in "".join(item.text for item in page.items if isinstance(item, Paragraph))
    (table,) = (item for item in page.items if isinstance(item, Table))
    assert "rank" not in table.caption
