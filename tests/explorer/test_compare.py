"""Two pages side by side: the parts of both along one margin, and their differences."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
import torch
from torch import nn

import dualform
from dualform_explorer.compare import Page, another, compare_link, compare_panel, params_of
from dualform_explorer.filter import Chip
from dualform_explorer.state import State
from tests.explorer.served import served
from tests.trainings import learn

ONE = State("", "shapes", 22, "4", ("dataset", "label"))
OTHERS = {
    "an earlier step": replace(ONE, at=20),
    "another example": replace(ONE, row=3),
    "a filter": replace(ONE, chips=(Chip.of(False, ("dataset",), ("noise <b>",)),)),
    "another query set": replace(ONE, query_set="noise"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_parts_are_contributions_along_the_margin_of_the_first(memory, info, other):
    panel = compare_panel(Page(memory, info, "run", ONE), Page(memory, info, "run", other))
    first, second = (side.answer for side in panel.sides)
    top, rival = first.predicted[0], first.other[0]
    assert not panel.why
    where = "dataset <> 'noise <b>'" if other.chips else None
    for state, answer, mask, side in ((ONE, first, None, "one"), (other, second, where, "other")):
        told = memory.contributions("4", state.item, ("dataset",), mask, state.at)
        assert answer.margin == pytest.approx(told.output[0][top] - told.output[0][rival])
        groups = {group: own[top] - own[rival] for group, own in zip(told.groups, told.sums[0], strict=True)}
        found = {own.part.said: getattr(own, side) for own in panel.parts if own.part.kind == "group"}
        assert {group: value for group, value in found.items() if value is not None} == groups
    differences = sum(own.difference for own in panel.parts)
    assert differences == pytest.approx(second.margin - first.margin, abs=1e-5)


def test_an_address_holds_both_sides_and_leads_back(folder, info):
    address = compare_link(ONE, OTHERS["an earlier step"])
    params = [tuple(own.split("=", 1)) for own in address.removeprefix("compare?").split("&")]
    assert params_of(params, "a") == ONE.params()
    assert another(info, ONE) == replace(ONE, at=info.steps // 2)
    assert another(info, OTHERS["a filter"]) == ONE
    with served({"run": lambda: dualform.open(folder), "again": lambda: dualform.open(folder)}) as pages:
        page = pages.get("/explore?memory=run&item=shapes/22").text
        link = unescape(re.search(r'href="(compare\?[^"]+)"', page)[1])
        assert link == compare_link(*(replace(own, memory="run") for own in (ONE, another(info, ONE))))
        both = pages.get("/" + link.replace("b.memory=run", "b.memory=again"))
        assert both.status == 200
        assert "data-failure" not in both.text
        assert both.text.count('data-part="margin"') == 1
        assert "<option selected>again</option>" in both.text
        assert pages.get("/compare?a.memory=run&a.item=shapes/3&b.memory=run&b.item=none/3").status == 400
        assert pages.get("/compare?a.memory=none").status == 404


def test_other_numbers_of_outputs_are_not_subtracted(memory, info, tmp_path):
    model = nn.Sequential(nn.Linear(36, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(8, 36, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    with dualform.Recorder(model, optimizer, tmp_path / "three", quiet=True) as recorder:
        with recorder.step(label=labels):
            learn(optimizer, nn.functional.cross_entropy(model(inputs), labels))
        recorder.query_set("test", inputs, label=labels)
    with dualform.open(tmp_path / "three") as three:
        state = State("", "test", 0, "0", ("label",))
        panel = compare_panel(Page(memory, info, "run", ONE), Page(three, three.info(), "three", state))
    assert panel.parts == ()
    assert "different numbers of outputs" in panel.why


@pytest.mark.parametrize("column", ["sample", "step"])
def test_a_group_with_a_part_on_one_side_has_its_own_value_on_the_other(memory, info, column):
    """Each side names its largest groups, which differ: the rest of one side may hold those of the other."""
    one, other = (replace(ONE, by=(column,), at=at) for at in (None, 40))
    panel = compare_panel(Page(memory, info, "run", one), Page(memory, info, "run", other))
    first = panel.sides[0].answer
    top, rival = first.predicted[0], first.other[0]
    for state, name in ((one, "one"), (other, "other")):
        told = memory.contributions("4", state.item, (column,), None, state.at)
        groups = {group: own[top] - own[rival] for group, own in zip(told.groups, told.sums[0], strict=True)}
        parts = [own for own in panel.parts if own.part.kind == "group"]
        assert len(parts) > 8
        for own in parts:
            assert getattr(own, name) == pytest.approx(groups[own.part.said], abs=1e-6)
    assert sum(own.difference for own in panel.parts) == pytest.approx(
        panel.sides[1].answer.margin - first.margin, abs=1e-5
    )


def test_a_group_that_was_not_computed_is_in_what_remains(memory, info, monkeypatch):
    monkeypatch.setattr("dualform_explorer.groups._MOST_SUMMED", 4)
    monkeypatch.setattr("dualform_explorer.groups._LARGEST", 5)
    one, other = (replace(ONE, by=("step",), at=at) for at in (None, 20))
    panel = compare_panel(Page(memory, info, "run", one), Page(memory, info, "run", other))
    assert [own.part.said for own in panel.parts if own.part.kind == "rest"] == [("all others",)]
    for own in panel.parts:
        assert None not in (own.one, own.other), own.part.said


def test_groups_of_other_columns_are_not_subtracted(memory, info):
    """Label 3 is not step 3."""
    one, other = (replace(ONE, by=(column,)) for column in ("label", "step"))
    panel = compare_panel(Page(memory, info, "run", one), Page(memory, info, "run", other))
    assert panel.parts == ()
    assert panel.why == "The left side is grouped by label, the right side by step."
