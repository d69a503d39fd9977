"""Which labels are taken for which: counted by hand, and each number leads to its examples."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

import dualform
from dualform_explorer.address import read_state
from dualform_explorer.examples import examples_of, rated
from dualform_explorer.start import query_set_panel
from tests.cases import some
from tests.explorer.served import served


@pytest.mark.parametrize("query_set", ["shapes", "noise"])
def test_counts_are_those_of_labels_and_outputs(memory, info, query_set):
    panel = query_set_panel(memory, info, query_set)
    stored = memory.query_set(query_set)
    read = stored.outputs.argmax(axis=1)
    for row, label in some(enumerate(panel.confusion.classes)):
        for column, output in enumerate(panel.confusion.classes):
            expected = np.flatnonzero((stored.labels == label) & (read == output))
            assert panel.confusion.counts[row][column] == len(expected)
            there = query_set_panel(memory, info, query_set, f"{label}-{output}")
            assert [card.row for card in there.cards] == expected.tolist()
            assert there.chosen == len(expected)
            assert examples_of(memory, info, query_set).among(f"{label}-{output}").tolist() == expected.tolist()


def test_a_number_leads_to_its_examples_and_from_one_to_the_next(folder, memory):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        start = pages.get("/").text
        cell = re.search(r'href="(\./\?set=shapes&amp;cell=(\d)-(\d)#set-shapes)" aria-label="[^"]*: (\d+)"', start)
        address, label, read, count = (unescape(own) for own in cell.groups())
        there = pages.get("/" + address.removeprefix("./").partition("#")[0]).text
        part = there[there.index('id="set-shapes"') : there.index('id="set-noise"')]
        assert f"Label {label}, predicted {read}" in part
        assert f"{count}</data> of" in part
        link = unescape(re.search(rf'href="(explore\?[^"]*among={label}-{read})"', part)[1])
        page = pages.get("/" + link).text
        assert f"{label} as {read}</a>" in page
        assert re.search(rf'1</data> of <data class="n" value="{count}"', page)
        assert pages.get("/?set=shapes&cell=0-99999").status == 200
        assert pages.get("/?set=shapes&cell=<script>").text.count("<script>") == start.count("<script>")


def test_the_start_page_shows_a_few_examples_and_more_by_a_link(folder, memory, info):
    few, more = (query_set_panel(memory, info, "shapes", own) for own in ("", "misclassified"))
    rows = examples_of(memory, info, "shapes").misclassified.tolist()
    assert [card.row for card in few.cards] == rows[:12]
    assert [card.row for card in more.cards] == rows[:60]
    assert (few.more, more.more) == (len(rows) > 12, False)
    everything = query_set_panel(memory, info, "shapes", "all")
    assert [card.row for card in everything.cards] == list(range(min(60, everything.examples.count)))
    with served({"run": lambda: dualform.open(folder)}) as pages:
        start, there = pages.get("/").text, pages.get("/?set=shapes&cell=misclassified").text
    assert ("cell=misclassified#set-shapes" in start) == (len(rows) > 12)
    assert there.count("among=misclassified") == start.count("among=misclassified") + len(rows[12:60])


def test_what_is_no_cell_is_a_fault(info):
    for wrong in ("0-", "a-b", "0-1-2", "-1"):
        assert [fault.parameter for fault in read_state([("item", "shapes/3"), ("among", wrong)], info).faults] == [
            "among"
        ]
    assert read_state([("item", "shapes/3"), ("among", "0-1")], info).state.among == "0-1"


def test_labels_beyond_the_outputs_are_not_counted_as_misclassified_before_an_ablation(memory, info):
    """No ablation could correct them, and the page counts none of them as misclassified."""
    examples = examples_of(memory, info, "shapes")
    labels = examples.labels.copy()
    labels[:5] = examples.outputs.shape[1] + 3
    beyond = replace(examples, labels=labels)
    found = rated(memory, beyond, "4", "dataset <> 'noise <b>'")
    assert found.rows.tolist() == list(range(5, len(labels)))
    wrong = found.answer.labels != found.answer.predicted
    assert found.rates.misclassified == int(wrong.sum()) == len(beyond.misclassified)
