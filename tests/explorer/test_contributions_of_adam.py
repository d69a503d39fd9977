"""Under AdamW a page answers with contributions as under SGD: of groups, of the samples of one, and of single slots."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch

import dualform
from dualform_explorer import panels
from dualform_explorer.address import read_state
from dualform_explorer.filter import Chip
from dualform_explorer.groups import expected_seconds
from dualform_explorer.numbers import lasting
from dualform_explorer.panels import PANELS, Waiting, panel_of
from dualform_explorer.panels.data import samples_panel, slots_panel, sums_panel
from dualform_explorer.panels.layers import ranks_panel
from dualform_explorer.state import State, link
from tests.cases import pairwise
from tests.explorer.recorded import record
from tests.explorer.served import served

STATE = State("", "shapes", 3, "4", ("dataset", "label"), score="contribution", target="1-2", open=("data",))
GROUP = Chip.of(True, ("dataset", "label"), ("shapes", 1))
CHIP = Chip.of(False, ("label",), (2,))


@pytest.fixture(scope="module")
def adamw(tmp_path_factory):
    path = tmp_path_factory.mktemp("adamw") / "run"
    return record(path, partial(torch.optim.AdamW, lr=0.02))


@pytest.fixture(scope="module")
def memory(adamw):
    with dualform.open(adamw) as opened:
        yield opened


@pytest.fixture(scope="module")
def info(memory):
    return memory.info()


@pytest.mark.parametrize(("layer", "at", "chips"), pairwise(["0", "4"], [None, 40], [(), (CHIP,)]))
def test_the_samples_of_a_group_are_what_its_bar_is(memory, info, layer, at, chips):
    state = replace(STATE, layer=layer, at=at, chips=chips, within=GROUP)
    found = samples_panel(memory, info, state)
    (bar,) = [row.group for row in sums_panel(memory, info, state).rows if row.group.values == ("shapes", 1)]
    where = "label <> 2" if chips else None
    by_output = memory.contributions(layer, "shapes/3", ("dataset", "label", "sample"), where, at)
    own = {
        sample: sums[1] - sums[2]
        for (dataset, label, sample), sums in zip(by_output.groups, by_output.sums[0], strict=True)
        if (dataset, label) == ("shapes", 1)
    }
    assert found.total == pytest.approx(bar.sum, rel=1e-9)
    assert found.total == pytest.approx(sum(own.values()), rel=1e-9)
    assert found.others == max(0, len(own) - 24)
    assert found.rest + sum(sample.value for sample in found.samples) == pytest.approx(found.total, rel=1e-9)
    best = sorted(own, key=lambda sample: -abs(own[sample]))[:24]
    assert [sample.sample for sample in found.samples] == best
    assert [sample.value for sample in found.samples] == pytest.approx([own[sample] for sample in best], rel=1e-9)
    assert all(sample.preview.image for sample in found.samples)


def test_more_samples_than_are_shown_are_one_bar(memory, info):
    found = samples_panel(memory, info, replace(STATE, within=Chip.of(True, ("dataset",), ("shapes",))))
    assert len(found.samples) == 24
    assert found.others > 0
    assert found.rest + sum(sample.value for sample in found.samples) == pytest.approx(found.total)


def test_the_best_slots_and_their_ranks_are_there(memory, info):
    found = slots_panel(memory, info, STATE)
    hits = memory.topk("4", "shapes/3", 24, score="contribution", target="1-2")
    assert [slot.slot for slot in found.slots] == hits.slots[0].tolist()
    assert ranks_panel(memory, info, STATE).count == info.layers[-1].slots


def test_the_group_is_in_the_address_and_filters_nothing_else(memory, info):
    state = replace(STATE, within=GROUP)
    query = link(state).partition("?")[2]
    pairs = [tuple(own.split("=")) for own in query.replace("%3B", ";").split("&")]
    assert read_state(pairs, info).state == state
    assert state.mask() is None
    assert not state.masked
    (fault,) = read_state([("item", "shapes/3"), ("within", "colour:3")], info).faults
    assert fault.parameter == "within"


def page_of(pages, state):
    return pages.get("/" + link(state)).text


def test_a_page_looks_into_a_group_without_scripts(adamw, memory):
    with served({"run": lambda: dualform.open(adamw)}) as pages:
        text = page_of(pages, STATE)
        assert 'id="within"' not in text
        assert "failed" not in text
        (there,) = re.findall(r'<tr data-group="shapes/1">\s*<th[^>]*>.*?<a class="samples" href="([^"]+)"', text)
        found = pages.get("/" + there.replace("&amp;", "&")).text
    samples = re.findall(r'<tr data-sample="(\d+)">\s*<th scope="row"><a href="[^"]+"><img', found)
    asked = {"by": ("dataset", "sample"), "where": "dataset = 'shapes' AND label = 1", "k": 24}
    sums = memory.group_sum("4", "shapes/3", score="contribution", target="1-2", **asked)
    assert [int(own) for own in samples] == [sample for (_, sample), _, _ in sums.ranked()]


def test_what_takes_long_waits_for_a_click(adamw, info, monkeypatch):
    monkeypatch.setattr(panels, "PATIENCE", 1e-4)
    long = [name for name in PANELS if expected_seconds(name, info, replace(STATE, within=GROUP))]
    assert long == ["answer", "sums", "samples", "slots", "terms", "ranks", "steps"]
    assert not expected_seconds("sums", info, replace(STATE, score="dot"))
    assert not expected_seconds("sums", replace(info, optimizer="SGD"), STATE)
    assert isinstance(panel_of("sums", None, info, STATE), Waiting), "the memory is not asked"
    with served({"run": lambda: dualform.open(adamw)}) as pages:
        text = page_of(pages, STATE)
        assert 'id="sums"' not in text
        assert 'id="sentence">Predict' in text, "which needs no parts"
        assert 'id="waterfall"' not in text
        offered = re.findall(r'<a class="act compute" href="([^"]+)">compute \(about 1 s\)</a>', text)
        assert len(offered) == 4, "answer, sums, slots and terms"
        found = pages.get("/" + offered[0].replace("&amp;", "&")).text
        assert 'id="sums"' in found
        assert 'id="slots"' in found
        assert 'id="waterfall"' in found


def test_durations_are_about_known():
    assert [lasting(own) for own in (0.2, 7.6, 89, 90, 600, 6000)] == ["1 s", "8 s", "89 s", "2 min", "10 min", "2 h"]


def test_slots_of_muon_are_refused_in_words(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.02)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step(label=[0, 1, 1]):
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
        recorder.query_set("test", torch.randn(3, 4), label=[0, 1, 2])
    with served({"run": lambda: dualform.open(tmp_path / "m")}) as pages:
        text = page_of(pages, State("", "test", 0, "", ("label",), score="contribution", target="1", open=("data",)))
    assert "Its groups have contributions: see the sums by group." in text
    assert "group_sum(…" not in text
    assert "Answer anyway" not in text, "it would be refused again"
    assert 'id="sums"' in text
