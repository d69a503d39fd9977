"""Next to the output: whether the change of the prediction is more than random filters of its size bring."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import dualform
from dualform.answers.placebos import CENTRAL
from dualform.errors import BadInput, Inexact, ServiceError
from dualform.methods import Answers
from dualform.questions import Placebo
from dualform_explorer.filter import Chip
from dualform_explorer.numbers import rounded
from dualform_explorer.panels.answer import SETS, Interval, Verdict, placebo_panel
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
    own = panel.verdict
    assert own is not None
    assert (own.change, own.unusual, own.flips) == (found.change[0], found.unusual[0], found.flips[0])
    assert [own.random.low, own.random.high] == np.quantile(found.random_changes[0], CENTRAL).tolist()
    assert (own.random.sets, own.removed, own.total) == (found.random, found.removed, found.total)
    assert own.siblings is None, "three siblings decide nothing"
    assert own.words == ("unusual" if own.unusual else "as random")


def test_it_is_asked_of_the_output_layer_whatever_layer_the_page_shows(memory, info):
    assert placebo_panel(memory, info, replace(STATE, layer="0")) == placebo_panel(memory, info, STATE)


def verdict(change: float, unusual: bool, siblings: Interval | None) -> Verdict:
    return Verdict(unusual, 0, 1, change, Interval(50, -1.0, 1.0), siblings, 0.1, 6, 60, "samples")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (verdict(0.5, False, None), "as random"),
        (verdict(-3.0, True, None), "unusual"),
        (verdict(-3.0, False, Interval(9, -4.0, 2.0)), "as its siblings"),
    ],
)
def test_a_verdict_in_words(own, words):
    assert own.words == words


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"chips": ()}, ""),
        ({"chips": (), "initial": False}, ""),
        ({"initial": False}, "Random sets are drawn only with W₀ and bias."),
    ],
)
def test_nothing_is_asked_that_says_nothing(memory, info, changes, note):
    counted = Counted(memory)
    panel = placebo_panel(counted, info, replace(STATE, **changes))
    assert (panel.verdict, panel.note, panel.asked) == (None, note, bool(note))
    assert counted.asked == 0


def test_without_a_known_output_layer_the_panel_says_so(memory, info):
    counted = Counted(memory)
    panel = placebo_panel(counted, replace(info, output_layer=""), STATE)
    assert (panel.note, counted.asked) == ("Random sets are drawn only for the output layer.", 0)


@pytest.mark.parametrize("kind", [BadInput, Inexact, ServiceError])
def test_a_refusal_is_a_short_note(memory, info, kind):
    panel = placebo_panel(Counted(memory, kind("this server draws none.")), info, STATE)
    assert (panel.verdict, panel.note) == (None, "No random sets: this server draws none.")


def test_the_page_shows_it_only_under_a_filter(folder):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        plain = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
        filtered = pages.get("/explore?item=shapes/3&without=label:1&open=data,layers,training,record").text
        wrong = pages.get("/explore?item=shapes/3&where=label%20=").text
    part = re.compile(r'<section id="panel-placebo".*?</section>', re.DOTALL)
    assert part.search(plain)[0].endswith("hidden></section>")
    own = part.search(filtered)[0]
    assert re.search(r'id="verdict">(unusual|as random|\d → \d: (unusual|as random))<', own)
    assert "50 random removals of" in re.sub("<[^>]*>", "", own)
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
    counts = [((after == labels) & wrong).sum(), wrong.sum(), ((after != labels) & right).sum(), right.sum()]
    said = (
        f"Corrected {counts[0]} of {counts[1]}, broken {counts[2]} of {counts[3]} of shapes; random sets of that size "
        f"correct {rounded(random[0])}, break {rounded(random[1])} (median of 50)."
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
