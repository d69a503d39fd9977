"""What was kept of leaving samples out stands on the page as the engine made it; without SQL the page says so."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import dualform
from dualform.errors import Forbidden
from dualform.questions import SqlStatement
from dualform_explorer.export import choose, exported_page
from dualform_explorer.panels.data import SAMPLES, adjoint_panel
from dualform_explorer.state import State
from tests.explorer.recorded import NAMES, STEPS, images_of, network
from tests.explorer.served import served, troubled

STATE = State("", "shapes", 1, "4", ("label",), kept="forty")
PART = re.compile(r'<section id="panel-adjoint(?:-p1)?".*?</section>', re.DOTALL)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def batches(step, samples):
    inputs, labels = images_of(step // (STEPS // 2), step // (STEPS // 2))
    return inputs[samples], labels[samples]


@pytest.fixture(scope="module")
def kept(folder, tmp_path_factory):
    """A memory with an adjoint and retrainings of 40 sets; under another name retrainings of 2 sets alone; and under a
    third, of the first two queries in another order, one without each of two labels.
    """
    path = shutil.copytree(folder, tmp_path_factory.mktemp("kept") / "run")
    inputs, labels = images_of(0, 10)
    given = path, network(), (inputs[:3], labels[:3]), loss, batches
    found = dualform.adjoint(*given, name="forty")
    retrained = dualform.retrain(*given, random=40, share=0.1, name="forty")
    dualform.retrain(*given, random=2, share=0.1, name="a-pair")
    given = path, network(), (inputs[[1, 0]], labels[[1, 0]]), loss, batches
    dualform.retrain(*given, without=["label = 1", "label = 3"], name="labels")
    dualform.adjoint(path, network(), (inputs[:2], labels[:2]), loss, batches, name="labels")
    with dualform.open(path) as memory:
        yield path, memory, found, retrained


def test_samples_are_those_of_the_adjoint(kept):
    _, memory, found, _ = kept
    panel = adjoint_panel(memory, memory.info(), STATE)
    order, values = np.argsort(found.values[1]), found.values[1]
    for shown, expected in ((panel.harmful, order[: SAMPLES // 2]), (panel.helpful, order[::-1][: SAMPLES // 2])):
        own = [(one.dataset, one.sample, one.label, np.float32(one.value)) for one in shown]
        columns = [found.columns[name][expected] for name in ("dataset", "sample", "label")]
        assert own == [*zip(*columns, values[expected], strict=True)]
        assert {one.preview.kind for one in shown} == {"image"}
        assert all(one.label_name == NAMES[one.dataset][one.label] for one in shown)
    assert panel.names == ("forty", "labels", "a-pair")


def test_groups_have_what_is_predicted_and_measured_without_them(kept):
    _, memory, found, _ = kept
    panel = adjoint_panel(memory, memory.info(), replace(STATE, kept="labels"))
    sums = found.sums("label")
    assert {one["said"]: one["samples"] for one in panel.groups} == dict(enumerate(sums.counts.tolist()))
    predicted = [sums.sums[1, one["said"]] for one in panel.groups]
    assert [one["value"] for one in panel.groups] == pytest.approx(predicted, rel=1e-4)
    assert np.abs(predicted).tolist() == sorted(np.abs(predicted), reverse=True)
    rows = memory.sql("SELECT change FROM retrainings WHERE name = 'labels' AND query = 0 ORDER BY set")["change"]
    assert {one["said"]: one["change"] for one in panel.groups} == {0: None, 1: rows[0], 2: None, 3: rows[1]}


def test_by_a_column_that_samples_lack_there_are_no_groups(kept):
    _, memory, _, _ = kept
    panel = adjoint_panel(memory, memory.info(), replace(STATE, by=("step",)))
    assert (panel.groups, len(panel.sets)) == ((), 40)


def test_another_example_has_nothing(kept):
    _, memory, _, _ = kept
    assert adjoint_panel(memory, memory.info(), replace(STATE, row=3)).names == ()
    assert adjoint_panel(memory, memory.info(), replace(STATE, query_set="noise")).names == ()
    assert adjoint_panel(memory, memory.info(), replace(STATE, kept="x' OR 'a' = 'a")).name == "forty"


def test_retrained_sets_stand_with_what_was_predicted(kept):
    from scipy.stats import spearmanr

    _, memory, found, retrained = kept
    panel = adjoint_panel(memory, memory.info(), STATE)
    predicted, changes = retrained.sets.astype(float) @ found.values[1], retrained.changes[:, 1]
    order = np.argsort(changes, kind="stable")
    assert [(own["set"], own["left_out"]) for own in panel.sets] == [(one, retrained.sets[one].sum()) for one in order]
    assert [own["change"] for own in panel.sets] == changes[order].tolist()
    assert [own["predicted"] for own in panel.sets] == pytest.approx(predicted[order].tolist())
    assert len(panel.sets) == 40
    assert panel.correlation == pytest.approx(spearmanr(predicted, changes).statistic)


def test_retrainings_without_a_prediction_and_too_few_for_a_correlation(kept):
    _, memory, _, _ = kept
    panel = adjoint_panel(memory, memory.info(), replace(STATE, kept="a-pair"))
    assert (panel.groups, panel.harmful, panel.helpful, panel.correlation) == ((), (), (), None)
    assert [own["predicted"] for own in panel.sets] == [None, None]


def test_the_page_and_an_export_show_it_where_something_was_kept(kept, memory, info, folder):
    path, own, _, retrained = kept
    with served({"run": lambda: dualform.open(path)}) as pages:
        found = pages.get("/explore?item=shapes/1&kept=forty").text
        (none,) = PART.findall(pages.get("/explore?item=shapes/3").text)
    (part,) = PART.findall(found)
    assert 'href="explore?item=shapes/1&amp;layer=4&amp;by=dataset,label&amp;kept=a-pair"' in part
    assert "<code>dualform adjoint run --program MODULE:FUNCTION --name NAME</code> predicts it" in none
    shown = re.findall(r'<td class="right change"><data class="n" value="([^"]+)"', part)
    changes = np.sort(retrained.changes[:, 1]).tolist()
    assert [*map(float, shown)] == [*changes[:15], *changes[-15:]]
    assert ("10</data> more" in part, 'id="agreement"' in part) == (True, True)
    exported = exported_page(own, own.info(), "run", choose(own, own.info(), ("shapes/1",), ("label:2",)))
    assert exported.failed == 0
    assert "Did harm" in PART.search(exported.html)[0]
    (part,) = PART.findall(exported_page(memory, info, "run", choose(memory, info, ("shapes/3",), ("label:2",))).html)
    assert "Not computed for this example" in part


def test_a_server_without_sql_cannot_tell(kept):
    path, _, _, _ = kept

    def refuse():
        raise Forbidden("This server does not answer SQL.", hint="Start it with --sql.")

    with served({"run": lambda: troubled(dualform.open(path), SqlStatement, refuse)}) as pages:
        (part,) = PART.findall(pages.get("/explore?item=shapes/3").text)
    assert "SQL is off: This server does not answer SQL. Start it with --sql." in part
    assert "data-failure" not in part
