"""Next to the output: whether the change of the prediction is more than random filters of its size bring."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import dualform
from dualform.answers import Placebos
from dualform.answers.outputs import CENTRAL
from dualform.errors import BadInput, Inexact, ServiceError
from dualform.methods import Answers
from dualform.questions import Placebo
from dualform_explorer.examples import SETS
from dualform_explorer.filter import Chip
from dualform_explorer.numbers import rounded
from dualform_explorer.panels.answer import PlaceboPanel, placebo_panel
from dualform_explorer.state import State
from tests.explorer.served import served

WHERE = "label <> 1"
STATE = State("", "shapes", 3, "4", ("dataset", "label"), chips=(Chip.of(False, ("label",), (1,)),))


class Counted(Answers):
    """Whoever answers, with a count of placebos; `refused`: in their place."""

    def __init__(self, answers: Answers, refused: Exception | None = None) -> None:
        self.answers, self.refused, self.asked = answers, refused, 0

    def ask(self, question):
        if isinstance(question, Placebo):
            self.asked += 1
            if self.refused is not None:
                raise self.refused
        return self.answers.ask(question)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("row", [3, 4, 7])
@pytest.mark.parametrize("at", [None, 40])
def test_a_verdict_is_the_memorys(memory, info, row, at):
    panel = placebo_panel(memory, info, replace(STATE, row=row, at=at))
    found = memory.placebo("4", f"shapes/{row}", WHERE, SETS, at)
    own = panel.answer
    assert own is not None
    np.testing.assert_array_equal(own.changes, found.changes)
    np.testing.assert_array_equal(own.outcomes, found.outcomes)
    random, siblings = panel.nulls
    low, high = np.quantile(found.random_changes[0], CENTRAL)
    assert (random.name, random.judges) == (
        f"50 removals of about {found.removed} of {found.total} samples at random",
        True,
    )
    assert random.range == f"{rounded(float(low))} to {rounded(float(high))}"
    assert not siblings.judges, "three siblings decide nothing"
    assert panel.verdict == ("unusual" if found.unusual[0] else "as random")
    assert ("The prediction changes" in panel.prediction) == found.flips[0]


def test_it_is_asked_of_the_output_layer_whatever_layer_the_page_shows(memory, info):
    assert placebo_panel(memory, info, replace(STATE, layer="0")).words == placebo_panel(memory, info, STATE).words


def panel(change: float, siblings: tuple[float, ...] = (), flips: float = 0.0, becomes: int = 0) -> PlaceboPanel:
    """Of a filter under which the margin changes so; random sets change it by -1 to 1, and a share of them `flips`."""
    random = np.linspace(-1.0, 1.0, 50)
    outcomes = [becomes, *(np.arange(50) < 50 * flips).astype(int).tolist(), *(0 for _ in siblings)]
    one = np.array([0])
    answer = Placebos(
        one, one, one + 1, np.array([2.0]), np.array([[change, *random, *siblings]]), np.array([outcomes]), 50,
        tuple(f"label = {number}" for number in range(len(siblings))), "", 6, 60, "samples",
    )  # fmt: skip
    return PlaceboPanel(True, answer, None, "0", str(becomes))


MINUS = "\N{MINUS SIGN}"
NINE = tuple(np.linspace(-4.0, 2.0, 9).tolist())


@pytest.mark.parametrize(
    ("own", "verdict", "words"),
    [
        (
            panel(0.5),
            "as random",
            f"changes by 0.500; by {MINUS}0.950 to 0.950 in 50 removals of about 6 of 60 samples at random. ",
        ),
        (
            panel(-3.0, becomes=1, flips=0.92),
            "unusual",
            "0 led by 2.00, and is 1.00 behind 1. Of the random removals, 92\u202f% change it, too, so the flip alone "
            "says little, but the size of the change is unusual.",
        ),
        (panel(-3.0, NINE), "as its siblings", "in 9 other removals of its kind (label = 0, label = 1, …). "),
        (panel(-3.0, NINE[:3]), "unusual", "at random. The prediction stays 0; none of the random removals change it."),
    ],
)
def test_a_verdict_in_words(own, verdict, words):
    assert own.verdict == verdict
    assert words in own.words


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"chips": ()}, ""),
        ({"chips": (), "initial": False}, ""),
        ({"initial": False}, "Random sets are drawn only with the initial weights and the bias."),
    ],
)
def test_nothing_is_asked_that_says_nothing(memory, info, changes, note):
    counted = Counted(memory)
    panel = placebo_panel(counted, info, replace(STATE, **changes))
    assert (panel.answer, panel.verdict, panel.note, panel.asked) == (None, "", note, bool(note))
    assert counted.asked == 0


def test_without_a_known_output_layer_the_panel_says_so(memory, info):
    counted = Counted(memory)
    panel = placebo_panel(counted, replace(info, output_layer=""), STATE)
    assert (panel.note, counted.asked) == ("Random sets are drawn only for the output layer.", 0)


@pytest.mark.parametrize("kind", [BadInput, Inexact, ServiceError])
def test_a_refusal_is_a_short_note(memory, info, kind):
    panel = placebo_panel(Counted(memory, kind("this server draws none.")), info, STATE)
    assert (panel.answer, panel.words) == (None, "No random sets: this server draws none.")


def test_the_page_shows_it_only_under_a_filter(folder):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        plain = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
        filtered = pages.get("/explore?item=shapes/3&without=label:1&open=data,layers,training,record").text
        wrong = pages.get("/explore?item=shapes/3&where=label%20=").text
    part = re.compile(r'<section id="panel-placebo".*?</section>', re.DOTALL)
    assert part.search(plain)[0].endswith("hidden></section>")
    own = part.search(filtered)[0]
    assert re.search(r'id="verdict">(unusual|as random)<', own)
    assert re.search(r"50 removals of about [\d,]+ of [\d,]+ samples at random", re.sub("<[^>]*>", "", own))
    assert part.search(wrong)[0].endswith("hidden></section>")


def test_a_change_stands_next_to_base_rates_over_its_query_set(folder, memory):
    """And on the start page, next to what a random set does."""
    labels = memory.query_set("shapes").labels
    before, after = (
        np.asarray(memory.output("4", "shapes", own)).argmax(1) for own in (None, "dataset <> 'noise <b>'")
    )
    wrong, right = before != labels, before == labels
    tested = memory.placebo("4", "shapes", "dataset <> 'noise <b>'", 50)
    random = [np.median(own[1:51]) for own in (tested.corrected, tested.broken)]
    as_many = [(own[1:51] >= own[0]).sum() for own in (tested.corrected, tested.broken)]
    counts = [((after == labels) & wrong).sum(), wrong.sum(), ((after != labels) & right).sum(), right.sum()]
    said = (
        f"In all of shapes, corrected: {counts[0]} of {counts[1]} misclassified (random removals: "
        f"{rounded(random[0])} in the median, as many in {as_many[0]} of 50); broken: {counts[2]} of {counts[3]} "
        f"correct (random removals: {rounded(random[1])} in the median, as many in {as_many[1]} of 50)."
    )
    assert counts[0] > 0
    with served({"run": lambda: dualform.open(folder)}) as pages:
        start = pages.get("/").text
        page = pages.get("/explore?item=shapes/3&layer=4&by=dataset,label&without=dataset:noise%20%3Cb%3E").text
    for text in (start, page):
        words = re.sub(r"\s+", " ", re.sub("<[^>]+>", "", text))
        assert said in words
    assert "for the recorded weights" in page
    assert "no forecast of a retraining" in page
