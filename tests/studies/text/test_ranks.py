"""The rules of the paper's passages, ranks among sums, and what follows from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dualform_studies.pages.folder import Report
from dualform_studies.text.checkpoints import updates_to_stop_at
from dualform_studies.text.corpora import Corpus
from dualform_studies.text.course import extrapolations, middle_ranks
from dualform_studies.text.forms import forms_of
from dualform_studies.text.passages import Passage
from dualform_studies.text.published import AESOP, WIKITEXT2, PublishedTable, Row
from dualform_studies.text.ranks import Standard, rank
from dualform_studies.text.tokens import Vocabulary

_SHIP = "a ship , another ship , a cruiser and more . "


def corpus(text: str, heading: str = "") -> Corpus:
    return Corpus("made up", "character", text, 0, text, "", "all of it", heading=heading)


@pytest.mark.parametrize(
    ("table", "number", "text"),
    [
        (3, 0, "ran as f|ast as f|aster, breakfast, fasten and the F|ASTEST"),
        (
            3,
            1,
            "as f|ast as, too\nf|ast, so f|aster, the F|ASTEST, held fast, stuck\nfast, fast till, as fasten, has fast",
        ),
        (4, 0, "a little |distance, an old |dog, a d, a day, the single dog, a\nmost |delightful a great big deal"),
        (5, 0, "At| one, at|\nthe, hat one, at."),
        (5, 1, "At| one time, at the, at|\nlast, at a fire, at| the same moment, at| twice"),
        (6, 0, "his |contribution to |contributions contributor contribution."),
        (7, 0, "describing |it as, rated |it , it was, found |it hard, bit it"),
    ],
)
def test_forms_find_the_tokens_that_their_rules_word(table: int, number: int, text: str) -> None:
    """A bar stands before each of them."""
    plain = text.replace("|", "")
    tokens = Vocabulary(plain, "word" if table > 5 else "character").encode(plain)
    bars = [at for at, letter in enumerate(text) if letter == "|"]
    expected = [tokens.first_from(bar - count) for count, bar in enumerate(bars)]
    assert forms_of(table)[number].cases(tokens, corpus(plain)).places.tolist() == expected


def test_a_form_of_articles_sets_apart_what_stands_in_others() -> None:
    text = f" = One = \n Her main {_SHIP}\n = Two = \n Her first song . A ship . her last \n"
    tokens = Vocabulary(text, "word").encode(text)
    cases = forms_of(2)[0].cases(tokens, corpus(text, r"^ = ([^=\n]+) = $"))
    assert [tokens.word(at) for at in cases.places] == ["main"]
    assert [tokens.word(at) for at in cases.elsewhere] == ["first"]


def test_ranks_are_those_of_a_sorted_list() -> None:
    draw = np.random.default_rng(1)
    positions, sums = np.flatnonzero(draw.random(300) < 0.7), draw.normal(size=300)
    sums = sums[positions]
    ordered = positions[np.argsort(-sums)].tolist()
    for place in range(300):
        assert rank(positions, sums, place) == (ordered.index(place) + 1 if place in ordered else None)
    assert rank(positions, np.zeros(len(positions)), int(positions[5])) == 1


def test_a_standard_counts_the_best_and_tells_topics_apart() -> None:
    text = "\n".join(f" = {n} = \n Her w{n} sailed {_SHIP if n % 2 else ''}\n" for n in range(30))
    tokens = Vocabulary(text, "word").encode(text)
    words = {"Top-1": "w1", "Top-3": "w3", "Negative": "nothing"}
    rows = tuple(Row(rank, Passage("Her ", word, " sailed")) for rank, word in words.items())
    table = PublishedTable(2, "", "test", Row("Query", Passage("", "x", "")), rows)
    standard = Standard.of(table, tokens, corpus(text, r"^ = ([^=\n]+) = $"))
    places = [next(at for at in range(len(tokens)) if tokens.word(at) == f"w{n}") for n in range(30)]
    assert standard.places == [places[1], places[3], None]
    assert standard.comparable
    assert standard.cases[0].places.tolist() == places[1::2]
    assert standard.cases[0].elsewhere.tolist() == places[0::2]
    sums = np.zeros(len(tokens))
    sums[places[1::2]] = np.arange(15) + 1.0
    sums[places[0]] = 8.0
    positions = np.arange(len(tokens))
    assert standard.ranks(positions, sums) == [16, 15, None]
    assert standard.of_the_best(positions, sums) == [9]
    assert standard.of_all(positions) == [15]
    assert standard.elsewhere(positions) == [15]
    pairs = [(a > b) + (a == b) / 2 for a in sums[places[1::2]] for b in sums[places[0::2]]]
    assert standard.told_apart(positions, sums) == [pytest.approx(np.mean(pairs))]
    assert Standard(table, [None], forms_of(2), standard.cases[:1]).told_apart(positions[:2], sums[:2]) == [None]


@pytest.mark.parametrize(
    ("steps", "of_a_pass", "expected"),
    [
        (360, 18, [36, 72, 108, 144, 180, 216, 252, 288, 324, 360]),
        (54, 18, [18, 36, 54]),
        (60, 18, [18, 36, 60]),
        (6, 18, [1, 2, 3, 4, 5, 6]),
        (30, 18, [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]),
        (1, 1, [1]),
    ],
)
def test_checkpoints_end_whole_passes_and_the_training(steps: int, of_a_pass: int, expected: list[int]) -> None:
    assert updates_to_stop_at(steps, of_a_pass) == expected


def course(ranks: list[list[int | None]], every: int = 100) -> list[Report]:
    """Checkpoints with the ranks of a table's passages, of which the fourth is the one that is not attended to."""
    return [
        {
            "updates": every * at,
            "tables": [{"table": 3, "passages": [{"leads": n < 3, "rank": rank} for n, rank in enumerate(told)]}],
        }
        for at, told in enumerate(ranks, start=1)
    ]


def test_middle_ranks_are_geometric_means_of_what_was_read() -> None:
    told = course([[None, None], [10, None], [4, 25]])
    assert middle_ranks(told, 3) == [(200, pytest.approx(10)), (300, pytest.approx(10))]


def test_the_example_that_is_not_attended_to_is_no_part_of_the_middle() -> None:
    assert middle_ranks(course([[2, None, 8, 5000], [None, None, None, 7]]), 3) == [(100, pytest.approx(4))]


def test_a_power_of_the_updates_is_drawn_on_exactly() -> None:
    ranks: list[list[int | None]] = [[10**8 // (100 * at) ** 2] for at in range(1, 7)]
    (sentence,) = extrapolations(course(ranks), 2400)
    assert "between 400 and 600 updates" in sentence
    assert "by a factor of 0.25 with each doubling" in sentence
    assert "comes to 17 at the paper's 2,400 updates, 2.0 doublings further" in sentence
    assert list(extrapolations(course(ranks), 600)) == []
    assert list(extrapolations([], 600)) == []


def test_ranks_that_do_not_fall_are_drawn_on_to_nothing() -> None:
    rising: list[list[int | None]] = [[10 * at] for at in range(1, 7)]
    (sentence,) = extrapolations(course(rising), 5000)
    assert "It does not fall" in sentence
    (sentence,) = extrapolations(course(rising[:2]), 5000)
    assert "too few checkpoints" in sentence


def test_the_papers_own_passages_are_of_their_forms() -> None:
    for table in AESOP:
        for row in (table.query, *table.rows):
            whole = row.passage.before + row.passage.token + row.passage.after
            tokens = Vocabulary(whole, "character").encode(whole)
            own = replace(corpus(whole), heading=r"^\0$")
            for form in forms_of(table.number):
                assert len(row.passage.before) in form.cases(tokens, own).places, (table.number, row.rank, form.rule)


def test_a_table_tells_the_passages_that_lead_from_the_one_that_does_not() -> None:
    table = next(table for table in WIKITEXT2 if table.number == 2)
    assert [(row.leads, row.sign) for row in table.rows] == [(True, "P1"), (True, "P2"), (True, "P3"), (False, "N")]
