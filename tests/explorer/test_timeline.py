"""Outputs over the training: those of the memory as of each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dualform_explorer.panels import training
from dualform_explorer.panels.training import timeline_panel
from dualform_explorer.state import State
from dualform_explorer.view import View

STATE = State("", "shapes", 3, "4", ("dataset", "label"))


@pytest.mark.parametrize("row", [3, 22])
def test_margins_are_those_of_the_memory_at_each_step(memory, info, row):
    panel = timeline_panel(View(memory, info, replace(STATE, row=row)))
    assert (panel.layer, panel.steps[0], panel.steps[-1], len(panel.steps)) == ("4", 0, info.steps, training.POINTS)
    names = [line.name for line in panel.margins]
    assert str(memory.query_set("shapes").labels[row]) in names
    leading = set()
    for place, step in enumerate(panel.steps):
        output = np.asarray(memory.output("4", f"shapes/{row}", at_step=step), dtype=np.float64)[0]
        leading.add(str(output.argmax()))
        for line in panel.margins:
            others = np.delete(output, int(line.name)).max()
            assert line.values[place] == pytest.approx(output[int(line.name)] - others)
    assert leading <= set(names)


def test_with_less_time_fewer_steps_are_shown_evenly(memory, info, monkeypatch):
    monkeypatch.setattr(training, "SECONDS", 0.0)
    panel = timeline_panel(View(memory, info, STATE))
    assert (panel.steps, panel.asked) == ((info.steps,), training.POINTS)
    assert all(len(line.values) == 1 for line in panel.margins)
    found = list(training._from_coarse_to_fine(list(range(9))))
    assert found[:3] == [8, 0, 4]
    assert sorted(found) == list(range(9))


def test_lines_of_one_chart_have_different_colours():
    assert training._apart([3, 259, 279, 289]) == [3, 9, 0, 1]
    assert training._apart([1, 4, 7]) == [1, 4, 7]
