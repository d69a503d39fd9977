"""The panel that answers first: a margin, and the parts that add up to it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform_explorer.drawing import span
from dualform_explorer.filter import Chip
from dualform_explorer.panels import answer
from dualform_explorer.panels.answer import answer_panel
from dualform_explorer.state import State
from tests.explorer.served import served
from tests.trainings import take_steps

PLAIN = State("", "shapes", 3, "4", ("dataset", "label"))
WITHOUT = replace(PLAIN, chips=(Chip.of(False, ("dataset",), ("noise <b>",)),))
WHERE = "dataset <> 'noise <b>'"


@pytest.mark.parametrize("row", range(0, 60, 7))
@pytest.mark.parametrize(("state", "where", "at"), [(PLAIN, None, None), (WITHOUT, WHERE, None), (PLAIN, None, 40)])
def test_parts_are_those_of_contributions_and_add_up(memory, info, row, state, where, at):
    panel = answer_panel(memory, info, replace(state, row=row, at=at, layer="0"))
    answer = memory.contributions("4", f"shapes/{row}", ("dataset",), where, at)
    output, label = answer.output[0], int(memory.query_set("shapes").labels[row])
    whole = np.asarray(memory.output("4", f"shapes/{row}", None, at))[0]  # a filter does not change what is explained
    top, second = np.argsort(-whole, kind="stable")[:2].tolist()
    other = second if top == label else label
    assert (panel.layer, panel.predicted[0], panel.other[0], panel.wrong) == ("4", top, other, top != label)
    assert panel.margin == output[top] - output[other]
    assert (None if where is None else int(output.argmax())) == (panel.becomes and panel.becomes[0])
    found = {part.said: part.value for part in panel.parts if part.kind == "group"}
    assert found == {group: own[top] - own[other] for group, own in zip(answer.groups, answer.sums[0], strict=True)}
    assert panel.parts[0].begin == 0.0
    for before, after in zip(panel.parts, panel.parts[1:], strict=False):
        assert after.begin == pytest.approx(before.end)
    residual = answer.residual[0][top] - answer.residual[0][other]
    assert panel.parts[-1].end == pytest.approx(panel.margin - residual, abs=1e-9)


def test_without_the_initial_weights(memory, info):
    panel = answer_panel(memory, info, replace(PLAIN, initial=False))
    assert {part.kind for part in panel.parts} == {"group"}
    assert panel.parts[-1].end == pytest.approx(panel.margin, abs=1e-5)


def test_of_many_groups_the_others_are_one_part(memory, info):
    panel = answer_panel(memory, info, replace(PLAIN, by=("sample", "label")))
    groups = [part for part in panel.parts if part.kind == "group"]
    rest = [part for part in panel.parts if part.kind == "rest"]
    assert (len(groups), [part.said for part in rest]) == (10, [("50 more",)])
    assert panel.parts[-1].end == pytest.approx(panel.margin, abs=1e-5)
    *named, others = panel.told
    assert [abs(own.value) for own in named] == sorted((abs(own.value) for own in panel.parts[:-1]), reverse=True)[:4]
    assert sum(own.value for own in (*named, others)) == pytest.approx(panel.margin, abs=1e-5)
    assert others.said == ("all others",)


def test_one_group_more_than_are_drawn_has_its_own_bar(memory, info, monkeypatch):
    count = len({own[0] for own in memory.contributions("4", "shapes/3", "sample").groups})
    for most, rest in ((count - 1, 0), (count - 2, 2)):
        monkeypatch.setattr(answer, "_MOST", most)
        panel = answer_panel(memory, info, replace(PLAIN, by=("sample",)))
        assert [part.said for part in panel.parts if part.kind == "rest"] == [(f"{rest} more",)] * (rest > 0)


def test_a_page_says_it_in_a_sentence_and_a_bar_removes_its_group(folder):
    with served({"run": lambda: dualform.open(folder)}) as pages:
        text = pages.get("/explore?item=shapes/3&open=data,layers,training,record").text
    sentence = " ".join(re.sub("<[^>]*>", "", re.search(r'id="sentence">(.*?)</p>', text, re.DOTALL)[1]).split())
    assert re.fullmatch(
        r"Predicted 3( frame)?, as labelled, ahead of \d( \w+)? by [\d.]+: initial weights [+\u2212][\d.]+, "
        r"bias [+\u2212][\d.]+, noise &lt;b&gt; [+\u2212]?[\d.]+, shapes [+\u2212]?[\d.]+\.",
        sentence,
    ), sentence
    table = text[text.index('id="waterfall"') :]
    assert 'aria-label="without shapes"' in table[: table.index("</table>")]
    assert table.index('data-part="initial"') < table.index('data-part="group"') < table.index('data-part="margin"')
    assert text.index('id="panel-answer"') < text.index('id="panel-output"')


def test_a_page_leads_from_a_new_winner_to_what_speaks_for_it(folder, memory, info):
    def third(chip: Chip, row: int) -> bool:
        panel = answer_panel(memory, info, replace(PLAIN, row=row, chips=(chip,)))
        return panel.becomes[0] not in (panel.predicted[0], panel.other[0])

    labels = [Chip.of(False, ("label",), (own,)) for own in range(4)]
    state = next(replace(PLAIN, row=row, chips=(chip,)) for chip in labels for row in range(60) if third(chip, row))
    panel = answer_panel(memory, info, state)
    target = f"{panel.becomes[0]}-{panel.other[0]}"
    with served({"run": lambda: dualform.open(folder)}) as pages:
        text = pages.get(f"/explore?{state.query()}").text
        there = re.search(r'id="why-changed">.*?href="([^"]*)"', text)[1].replace("&amp;", "&")
        assert f"target={target}" in there
        assert 'id="sums"' in pages.get("/" + there).text
        assert "why-changed" not in pages.get(f"/explore?{PLAIN.query()}").text


def test_outputs_that_no_recorded_layer_gives_have_no_answer(tmp_path):
    class Softmax(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).softmax(1)

    torch.manual_seed(0)
    model, x = Softmax(), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        take_steps(recorder, optimizer, 4, lambda _: model(x)[:, 0].sum(), label=range(6), sample=range(6))
        recorder.query_set("test", x)
    with dualform.open(tmp_path / "run") as memory:
        assert answer_panel(memory, memory.info(), State("", "test", 0, "layer", ("label",))).layer == ""
    with served({"run": lambda: dualform.open(tmp_path / "run")}) as pages:
        text = pages.get("/explore?item=test/0").text
    assert re.search(r'<section id="panel-answer"[^>]* hidden>', text)


def test_a_bar_spans_what_it_adds():
    assert 'x="50.00" y="2" width="100.00"' in span(0.0, 2.0, (-1.0, 3.0), "part")
    assert 'x="0.00" y="2" width="150.00"' in span(2.0, -1.0, (-1.0, 3.0), "part")
    assert 'x1="50.00"' in span(2.0, -1.0, (-1.0, 3.0), "part")
