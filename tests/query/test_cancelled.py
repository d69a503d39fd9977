"""An asker that goes away stops the work, and harms nobody else's."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.errors import Cancelled, EmptyMask
from dualform.questions import GroupSum, Output, TopK, Vectors
from tests.query import arrays

QUERY = Vectors(np.ones((1, 4), dtype=np.float32))
QUESTIONS = [
    TopK("fc", QUERY),
    TopK("fc", QUERY, by=("label",)),
    GroupSum("fc", QUERY, by=("label",)),
    GroupSum("fc", QUERY, by=("label",), score="abs"),
    TopK("fc", QUERY, score="cosine"),
    GroupSum("fc", QUERY, by=("label",), score="cosine"),
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


def test_a_memory_without_slots_says_so():
    empty = arrays.engine(arrays.memory({"fc": np.ones((0, 4), np.float32)}, {"label": []}))
    with pytest.raises(EmptyMask, match="this memory holds no slots yet"):
        empty.ask(QUESTIONS[0])
    assert empty.info().slots == {"sample": 0}
