"""The answer that an agent gets is that of the explorer's page."""

from __future__ import annotations

import numpy as np
import pytest

from dualform_explorer.panels.answer import answer_panel
from dualform_explorer.state import read_state
from dualform_explorer.view import View
from tests.agents.test_tools import asked

WHERE = "label <> 1"


@pytest.mark.parametrize("arguments", [{}, {"by": "step"}, {"at_step": 2}, {"where": WHERE}], ids=str)
async def test_parts_are_contributions_and_add_up_to_the_margin(memory, arguments):
    told = (await asked(memory, "answer", query="test/1", **arguments)).structured_content
    given = {"where": arguments.get("where"), "at_step": arguments.get("at_step")}
    found = memory.contributions(told["layer"], "test/1", tuple(told["by"]), **given)
    top, other = told["predicted"]["output"], told["less"]["output"]
    whole = np.asarray(memory.output(told["layer"], "test/1", at_step=given["at_step"]))[0]
    assert top == whole.argmax()
    groups = {group: own[top] - own[other] for group, own in zip(found.groups, found.sums[0], strict=True)}
    parts = {tuple(own["part"]): own["value"] for own in told["parts"] if own["kind"] == "group"}
    assert {group: pytest.approx(value) for group, value in parts.items()} == groups
    assert sum(own["value"] for own in told["parts"]) == pytest.approx(told["margin"], abs=1e-5)
    assert ("placebo" in told) == ("where" in arguments)
    if "where" in arguments:
        assert told["placebo"]["verdict"] in ("unusual", "within the random range")


async def test_the_sentence_is_that_of_the_page(memory):
    told = (await asked(memory, "answer", query="test/1")).structured_content
    state = read_state([("item", "test/1")], memory.info()).state
    panel = answer_panel(View(memory, memory.info(), state))
    assert told["sentence"] == panel.words
    assert told["sentence"].startswith(f"Predicted {panel.predicted[0]}")
    assert all(f"{part.value:+.4g}" in told["sentence"] for part in panel.told)
