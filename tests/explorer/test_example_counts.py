"""Examples of a query set whose layers see tokens: how many there are, and which of the stored rows are whose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import dualform
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform_explorer.panels.example import query_panel
from dualform_explorer.state import State, read_state
from dualform_explorer.view import Snapshot, View
from tests.explorer.recorded_text import WORDS

EXAMPLES = 8
QUERY_SETS = ("held", "unseen", "labelled")


@pytest.fixture(scope="module")
def texts(text_folder: Path) -> Iterator[Answers]:
    with dualform.open(text_folder) as opened:
        yield opened


def older(info):
    """As of a record that does not say how many examples its query sets have."""
    return replace(info, query_sets=tuple(replace(own, examples=None) for own in info.query_sets))


@pytest.mark.parametrize("query_set", QUERY_SETS)
def test_a_query_set_has_as_many_examples_as_it_was_given(texts, query_set):
    info, state = texts.info(), State("", query_set, 3, "3", ("label",))
    assert Snapshot(texts, info).examples_of(query_set).count == EXAMPLES
    panel = query_panel(View(texts, info, state))
    assert (panel.count, panel.tokens, panel.token, panel.after) == (EXAMPLES, WORDS, WORDS - 1, 4)
    assert View(texts, info, state).query() == f"{query_set}/3:{WORDS - 1}"
    assert query_panel(View(texts, info, replace(state, row=EXAMPLES - 1))).after is None
    assert View(texts, info, state).moved(100).row == EXAMPLES - 1


@pytest.mark.parametrize("query_set", QUERY_SETS)
def test_an_item_is_held_against_the_examples_and_not_against_their_tokens(texts, query_set):
    info = texts.info()
    assert read_state([("item", f"{query_set}/{EXAMPLES - 1}")], info).state is not None
    (fault,) = read_state([("item", f"{query_set}/{EXAMPLES}")], info).faults
    assert fault.message == f"The query set {query_set} has no example '8': it has 0 to 7."
    assert [name for name, _ in fault.choices] == [f"{query_set}/0", f"{query_set}/7"]


def test_the_label_of_a_token_is_that_of_its_example(texts):
    info, labels = texts.info(), texts.query_set("labelled").labels
    for token in (0, WORDS - 1):
        panel = query_panel(View(texts, info, State("", "labelled", 5, "3", ("label",), token=token)))
        assert panel.label == labels[5 * WORDS + token]


def test_where_a_record_does_not_say_how_many_each_stored_row_stands_for_itself(texts):
    info = older(texts.info())
    for query_set in QUERY_SETS:
        assert Snapshot(texts, info).examples_of(query_set).count == EXAMPLES * WORDS
    state = State("", "unseen", 3, "3", ("label",))
    assert View(texts, info, state).query() == "unseen/3"
    (fault,) = read_state([("item", "unseen/64")], info).faults
    assert fault.message == "The query set unseen has no example '64': it has no more than 64."
    assert [name for name, _ in fault.choices] == ["unseen/0"]
    with pytest.raises(NotFound, match=r"no example 64"):
        query_panel(View(texts, info, replace(state, row=64)))


def test_where_a_record_does_not_say_how_many_outputs_or_labels_do(memory, info):
    assert Snapshot(memory, older(info)).examples_of("shapes").count == 60
