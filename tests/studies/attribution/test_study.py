"""The study whole, in miniature: its report, its page, its document, and the scores that it judges."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import BadInput
from dualform_studies.assignment import Assignment
from dualform_studies.attribution import contest, ours
from dualform_studies.attribution.document import write_attribution
from dualform_studies.attribution.examples import first_examples
from dualform_studies.attribution.explainer import MemoryExplainer
from dualform_studies.attribution.recipe import Recipe
from dualform_studies.attribution.recorded import Recorded, losses, record
from dualform_studies.attribution.removal import leave_one_out
from dualform_studies.attribution.schedule import epochs_of
from dualform_studies.attribution.sizes import QUICK, Sizes
from dualform_studies.attribution.study import run_attribution
from dualform_studies.attribution.trials import Trials
from dualform_studies.images.data.datasets import digits

SMALL = Recipe(hidden=(10, 8), batch=16, epochs=2, trained=60, tested=12)
SIZES = Sizes(
    SMALL,
    subsets=6,
    removed=5,
    turned=2,
    turned_among=12,
    counts=(4, 16),
    flipped=40,
    flipped_epochs=2,
    clean=8,
    at_once=4,
    heavy=False,
)


@pytest.fixture(scope="module")
def without_peers() -> Any:
    """No other package is found, whether it is installed or not."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("captum", "captum.influence", "dattri", "dattri.algorithm"):
            patch.setitem(sys.modules, name, None)
        yield


@pytest.fixture(scope="module")
def run(
    without_peers: None, coarse_figures: None, made_up_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("runs") / "attribution"
    return out, run_attribution(Assignment(out, made_up_data), SIZES)


def test_every_way_of_ours_has_every_measure(run):
    out, report = run
    assert json.loads((out / "report" / "report.json").read_text()) == json.loads(json.dumps(report))
    assert [*report["ways"]] == ["random", "same label", *ours.ways()]
    for name, way in report["ways"].items():
        measured = [*way["lds"].values(), way["leave_one_out"], *way["wrong_labels"].values()]
        for value, low, high in measured:
            assert -1 <= low <= high <= 1, name
            assert -1 <= value <= 1, name
        assert ("brittleness" in way) == (", abs" not in name)
        assert way["tests"] == SMALL.tested
    assert report["missing"] == ["captum", "dattri"]
    assert report["raised"] == {}


def test_what_is_retrained_is_what_was_recorded(run):
    assert run[1]["retrained_apart"] < 1e-4


def test_the_page_says_what_was_not_run(run, tmp_path):
    out, _ = run
    page = (out / "report" / "index.md").read_text()
    assert "Not run, as their packages are not installed: the ways of captum and dattri." in page
    assert "ledger, first order" in page
    document = write_attribution(out.parent, tmp_path).read_text()
    assert document.startswith("# Attribution methods compared")
    assert "Not installed, so not run: captum and dattri." in document
    assert "](attribution/attribution/ways.png)" in document
    rows = [line for line in document.splitlines() if line.startswith("| ledger, ")]
    assert [line.count(" | ") for line in rows] == [7, 7]


def test_the_quick_form_has_less_of_everything():
    whole = Sizes()
    assert QUICK.subsets < whole.subsets
    assert QUICK.recipe.trained < whole.recipe.trained
    assert whole.subsets >= 100


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    dataset = digits()
    trained = first_examples(dataset, dataset.train, 40)
    tested = first_examples(dataset, dataset.test, 6)
    folder = tmp_path_factory.mktemp("recorded") / "memory"
    return record(trained, tested, SMALL, 1, epochs_of(40, 2, 1), folder)


def gradients(recorded, examples):
    """float64[n, parameters] of each example's own loss, by autograd, without dropout."""
    found = []
    for row in range(len(examples)):
        recorded.network.zero_grad()
        losses(recorded.network(examples.inputs[row : row + 1]), examples.labels[row : row + 1]).sum().backward()
        found.append(torch.cat([own.grad.flatten() for own in recorded.network.parameters()]).double())
    recorded.network.zero_grad()
    return torch.stack(found)


def test_scores_are_of_every_test_and_every_sample(recorded):
    for name, way in ours.ways().items():
        scores = way(recorded)
        assert scores.shape == (6, 40), name
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


def test_attention_is_the_sum_of_inner_products_with_a_samples_inputs(recorded):
    scores = ours.ways()["attention, layer 1, dot"](recorded)
    products = recorded.attributed.inputs.double() @ recorded.trained.inputs.double().T
    np.testing.assert_allclose(scores, 2 * products.numpy(), rtol=1e-5)


def test_a_sample_whose_gradient_was_a_tests_own_helped_it(recorded):
    """Of what was recorded with dropout and at earlier weights, GradDot at the end is a likeness."""
    own, theirs = gradients(recorded, recorded.attributed), gradients(recorded, recorded.trained)
    expected, scores = (own @ theirs.T).numpy(), ours.ways()["GradDot, all layers"](recorded)
    assert np.corrcoef(expected.ravel(), scores.ravel())[0, 1] > 0.7


def test_while_steps_are_small_the_ledger_foresees_leaving_one_out(tmp_path):
    """All pieces together: removal, retraining, loss and sign."""
    recipe = replace(SMALL, dropout=0.0, lr=1e-3, epochs=1)
    dataset, order = digits(), epochs_of(60, 1, 2)
    trained, tested = first_examples(dataset, dataset.train, 60), first_examples(dataset, dataset.test, 6)
    own = record(trained, tested, recipe, 2, order, tmp_path / "memory")
    removed = np.arange(0, 60, 5)
    without, _ = Trials(trained, tested, recipe, 2, order, 5).without([np.empty(0, dtype=np.int64), *removed[:, None]])
    for name in ("ledger, first order", "ledger, path"):
        foreseen = leave_one_out(ours.ways()[name](own), removed, without[1:], without[0])
        np.testing.assert_allclose(foreseen.foreseen, foreseen.found, atol=0.1 * np.abs(foreseen.found).max())
        assert foreseen.each().min() > 0.9


def test_an_explainer_gives_the_scores_as_quanda_takes_them(recorded):
    rows = torch.utils.data.TensorDataset(recorded.trained.inputs, recorded.trained.labels)
    tested = recorded.attributed
    with dualform.open(recorded.folder) as memory:
        explainer = MemoryExplainer(recorded.network, rows, memory)
        found = explainer.explain(tested.inputs, tested.labels)
        np.testing.assert_allclose(found, ours.ways()["GradDot, all layers"](recorded), rtol=1e-4, atol=1e-5)
        own = explainer.self_influence(batch_size=16)
        assert own.shape == (40,)
        np.testing.assert_allclose(own[17], explainer.explain(*[part[17:18] for part in rows.tensors])[0, 17])
        attention = MemoryExplainer(recorded.network, rows, memory, layer="0", score="dot")
        expected = ours.ways()["attention, layer 1, dot"](recorded)
        np.testing.assert_allclose(attention.explain(tested.inputs, tested.labels.tolist()), expected, rtol=1e-5)
        brought = MemoryExplainer(recorded.network, rows, memory, layer="6", score="contribution")
        assert brought.explain(tested.inputs, tested.labels).shape == (6, 40)
        with pytest.raises(BadInput, match="score='dot' needs one layer"):
            MemoryExplainer(recorded.network, rows, memory, score="dot")


def test_a_way_of_another_package_that_fails_is_told_and_one_of_ours_raises(recorded):
    def fails(recorded):
        raise ValueError("no such kernel")

    raised = {}
    floor = contest.Entry("random", contest.FLOOR, contest.random)
    found = [*contest.attribute(recorded, [contest.Entry("theirs", "captum", fails), floor], raised)]
    assert [one.name for one in found] == ["random"]
    assert raised == {"theirs": "ValueError: no such kernel"}
    with pytest.raises(ValueError, match="no such kernel"):
        [*contest.attribute(recorded, [contest.Entry("ours", contest.OURS, fails)], raised)]
