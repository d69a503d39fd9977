"""An asker that goes away stops the work, and harms nobody else's."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dualform import kernels
from dualform.errors import Cancelled, EmptyMask
from dualform.query import groups
from dualform.query.score.canonical import score_pairs
from dualform.query.view import Cache
from dualform.query.where import mask
from dualform.questions import Distribution, GroupSum, Output, TopK, Vectors
from tests.query import arrays

QUERY = Vectors(np.ones((1, 4), dtype=np.float32))
QUESTIONS = [
    TopK("fc", QUERY),
    TopK("fc", QUERY, by=("label",)),
    GroupSum("fc", QUERY, by=("label",)),
    GroupSum("fc", QUERY, by=("label",), score="abs"),
    TopK("fc", QUERY, score="cosine"),
    GroupSum("fc", QUERY, by=("label",), score="cosine"),
    Distribution("fc", QUERY),
    Distribution("fc", QUERY, score="cosine"),
    Output("fc", QUERY),
    Output("fc", QUERY, kernel="softmax"),
    Output("fc", QUERY, initial=False),
]


def engine():
    made = arrays.memory(
        {"fc": np.ones((50, 4), np.float32)},
        {"label": [slot % 3 for slot in range(50)]},
        values={"fc": np.ones((50, 2), np.float32)},
        initial={"fc.weight": np.ones((2, 4), np.float32), "fc.bias": np.ones(2, np.float32)},
    )
    return arrays.engine(made)


NAMES = [
    "topk",
    "topk by",
    "signed sums",
    "absolute sums",
    "topk by cosine",
    "sums of cosines",
    "distribution",
    "distribution of cosines",
    "output",
    "softmax",
    "slots alone",
]


@pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)
def test_a_question_stops_at_any_moment_and_can_be_asked_again(question):
    asked = engine()
    for moment in range(4):
        checks = iter([False] * moment + [True] * 100)
        try:
            asked.ask(question, cancelled=lambda checks=checks: next(checks))
        except Cancelled:
            continue
        break
    else:
        moment = 4
    assert moment > 0
    asked.ask(question)
    with pytest.raises(Cancelled, match="the question was given up before its answer was ready"):
        asked.ask(question, cancelled=lambda: True)


@pytest.mark.parametrize("where", ["label <> 1", "slot <> 1"], ids=["of samples", "of slots"])
def test_a_mask_is_given_up_between_blocks_of_slots(monkeypatch, where):
    monkeypatch.setattr(mask, "_CHUNK", 10)
    evaluated, evaluate = [], mask._evaluate
    monkeypatch.setattr(mask, "_evaluate", lambda *own: evaluated.append(1) or evaluate(*own))
    asked = engine()
    with pytest.raises(Cancelled):
        asked.ask(TopK("fc", QUERY, where=where), cancelled=lambda: len(evaluated) == 2)
    assert len(evaluated) == 2
    assert asked.ask(TopK("fc", QUERY, where=where)).scan.slots_matching in (33, 49)
    assert len(evaluated) == 2 + 5


@pytest.mark.parametrize("by", ["label", "slot", "dataset"])
def test_groups_are_given_up_between_blocks_of_slots(monkeypatch, by):
    monkeypatch.setattr(groups, "_BLOCK", 10)
    checks, ranked, asked = [], [], engine()
    monkeypatch.setattr(groups, "dense", lambda *own: ranked.append(own))
    with pytest.raises(Cancelled):
        asked.ask(GroupSum("fc", QUERY, by=(by,)), cancelled=lambda: checks.append(1) or len(checks) == 7)
    assert ranked == []


def test_who_waits_for_what_another_makes_may_give_up_alone():
    cache, made, go = Cache(1000), threading.Event(), threading.Event()

    def make():
        made.set()
        assert go.wait(60)
        return 1

    def gone():
        raise Cancelled("gone")

    found = []
    maker = threading.Thread(target=lambda: found.append(cache.get("a", make)))
    maker.start()
    assert made.wait(60)
    with pytest.raises(Cancelled):
        cache.get("a", lambda: 2, gone)
    go.set()
    maker.join(60)
    assert found == [1]
    assert cache.get("a", lambda: 2, gone) == 1


def test_a_memory_without_slots_says_so():
    empty = arrays.engine(arrays.memory({"fc": np.ones((0, 4), np.float32)}, {"label": []}))
    with pytest.raises(EmptyMask, match="This memory does not contain any slots yet"):
        empty.ask(QUESTIONS[0])
    assert empty.info().slots == {"sample": 0}


def test_rows_are_given_up_between_the_files_that_they_are_read_from():
    matrix = np.ones((40, 4), np.float32)
    keys, rows, looks = arrays.keys_of(matrix, 10), np.arange(40), list[int]()
    scores = score_pairs(keys, rows, np.zeros(40, np.int64), QUERY.rows, lambda: looks.append(1))
    assert scores.tolist() == [4.0] * 40
    assert len(looks) >= len(keys.sources) == 4 or kernels.library() is None
