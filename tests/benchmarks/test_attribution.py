"""The benchmark of attribution: its measures beside their definitions, its trainings, and a run in miniature."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import attribution
from benchmarks.attribution import MEASURES, auc, lds, run, write
from benchmarks.attribution_ways import (
    RECIPES,
    WINDOW,
    Examples,
    Recipe,
    Transformer,
    floors,
    loss,
    losses_of,
    ours,
    recorded,
    train,
)
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score
from torch import nn

import dualform
from dualform.errors import AlreadyExists
from tests.studies.images.files import write_dataset
from tests.studies.text.made_up import write_aesop

SMALL = tuple(replace(own, samples=40, batch=16, epochs=1) for own in RECIPES)
ROOM = {"tests": 4, "sets": 3}
SAMPLES, TESTS = 30, 5


def made_up(tests=6, samples=40, retrainings=25, noise=1.0):
    draw = np.random.default_rng(0)
    scores, sets = draw.normal(size=(tests, samples)), draw.random((retrainings, samples)) < 0.2
    losses = (sets @ scores.T) + noise * draw.normal(size=(retrainings, tests))
    return scores, sets, losses


def test_lds_is_the_mean_of_spearmans_correlations():
    scores, sets, losses = made_up()
    expected = [spearmanr([own[left].sum() for left in sets], losses[:, at]).statistic for at, own in enumerate(scores)]
    found = lds(scores, sets, losses, seed=0)
    assert found.value == pytest.approx(np.mean(expected), rel=1e-12)
    assert found.low < found.value < found.high
    assert lds(*made_up(noise=0), seed=0).value == pytest.approx(1)
    assert lds(0 * scores, sets, losses, seed=0) == (0, 0, 0), "scores without variation predict nothing"


def test_its_interval_is_a_bootstrap_over_tests_and_retrainings():
    scores, sets, losses = made_up()
    draw, drawn = np.random.default_rng(1), []
    ranks = [np.stack([rankdata(row) for row in own]) for own in (scores @ sets.T, losses.T)]
    for _ in range(1000):
        tests, columns = draw.integers(0, len(scores), len(scores)), draw.integers(0, len(sets), len(sets))
        pairs = zip(*(own[tests][:, columns] for own in ranks), strict=True)
        drawn.append(np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs]))
    found = lds(scores, sets, losses, seed=0)
    np.testing.assert_allclose([found.low, found.high], np.percentile(drawn, [2.5, 97.5]), atol=0.03)


def test_auc_counts_pairs():
    draw = np.random.default_rng(4)
    suspicion, wrong = draw.integers(0, 5, 60).astype(float), draw.random(60) < 0.3
    found = auc(suspicion, wrong, seed=0)
    assert found.value == pytest.approx(roc_auc_score(wrong, suspicion), rel=1e-12)
    assert found.low < found.value < found.high
    assert auc(wrong.astype(float), wrong, seed=0) == (1, 1, 1)


def tiny(network, random=False, text=False, **said):
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    adam = partial(torch.optim.AdamW, lr=1e-3, eps=1e-4)
    return Recipe("tiny", network, adam if text else sgd, "tiny", SAMPLES, 8, 3, text=text, random=random)


KINDS = {
    "tanh": tiny(lambda: nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 10))),
    "dropout": tiny(lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 10)), random=True),
    "text": tiny(lambda: Transformer(8, 2, 1), text=True),
}


def examples(recipe, count, seed):
    draw = torch.Generator().manual_seed(seed)
    if recipe.text:
        tokens = torch.randint(512, (count, WINDOW + 1), generator=draw)
        return Examples(tokens[:, :-1], tokens[:, 1:])
    return Examples(torch.randn(count, 7, generator=draw), torch.randint(10, (count,), generator=draw))


@pytest.mark.parametrize("kind", KINDS)
def test_training_without_samples_is_what_dualform_retrains(kind, tmp_path):
    recipe = KINDS[kind]
    trained, tested = examples(recipe, SAMPLES, 0), examples(recipe, TESTS, 1)
    found = recorded(recipe, trained, tested, 3, tmp_path)
    sets = np.zeros((2, SAMPLES), dtype=bool)
    sets[0, [4, 17]], sets[1, 9:] = True, True

    def batches(step, samples):
        return trained.of(torch.from_numpy(samples))

    expected = dualform.retrain(found.memory, found.network, tuple(tested), loss, batches, without=list(sets))
    own = [losses_of(train(recipe, trained, 3, left_out), tested) for left_out in sets]
    np.testing.assert_allclose(own, expected.losses, rtol=1e-4)
    np.testing.assert_array_equal(losses_of(train(recipe, trained, 3), tested), losses_of(found.network, tested))
    np.testing.assert_allclose(expected.complete, losses_of(found.network, tested), rtol=1e-4)
    assert np.abs(expected.changes).max() > 1e-3


def test_a_recorded_training_is_read_again_and_one_that_was_cut_off_is_not(tmp_path):
    recipe = KINDS["tanh"]
    trained, tested = examples(recipe, SAMPLES, 0), examples(recipe, TESTS, 1)
    first = recorded(recipe, trained, tested, 0, tmp_path)
    (tmp_path / "checkpoints.pt").unlink()
    second = recorded(recipe, trained, tested, 0, tmp_path)
    third = recorded(recipe, trained, tested, 0, tmp_path)
    assert third.seconds == second.seconds != first.seconds
    assert len(third.checkpoints) == 3
    for other in (first, second):
        np.testing.assert_array_equal(losses_of(third.network, tested), losses_of(other.network, tested))


@pytest.mark.parametrize("kind", ["tanh", "text"])
def test_spoiled_samples_are_as_many_as_asked(kind):
    recipe = KINDS[kind]
    before = examples(recipe, SAMPLES, 0)
    after, wrong = recipe.spoiled(before, 0.2, seed=0)
    assert wrong.sum() == 6
    changed = (after.targets != before.targets).reshape(SAMPLES, -1).any(1)
    np.testing.assert_array_equal(changed.numpy(), wrong)
    if recipe.text:
        assert torch.equal(after.targets[:, :-1], after.inputs[:, 1:])
        words = [torch.cat([own.inputs[:, :1], own.targets], 1).sort(1).values for own in (before, after)]
        assert torch.equal(*words)
    else:
        assert torch.equal(after.inputs, before.inputs)
        assert 0 <= after.targets.min() <= after.targets.max() < 10


def fails(trained):
    raise ValueError("no such kernel")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "mnist", seed=1)
    write_aesop(folder)
    return folder


@pytest.fixture(scope="module")
def no_peers():
    """Other packages are the way that fails, whether they are installed or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribution, "others", lambda recipe: {"their way": fails})
        yield


@pytest.fixture(scope="module")
def whole(no_peers, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "attribution"
    return out, run(out, data, 0, SMALL, **ROOM)


def test_every_way_has_every_measure_by_every_recipe(whole):
    out, report = whole
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(report))
    assert list(report["recipes"]) == [own.name for own in RECIPES]
    for recipe, own in zip(RECIPES, report["recipes"].values(), strict=True):
        assert list(own["ways"]) == [*floors(recipe.text), *ours(recipe)]
        assert own["raised"] == {"their way": "ValueError: no such kernel"}
        assert own["apart"] == 0
        for name, way in own["ways"].items():
            for kind in MEASURES:
                value, low, high = way[kind]
                assert -1 - 1e-9 <= low <= high <= 1 + 1e-9, (name, kind)
                assert abs(value) <= 1 + 1e-9, (name, kind)


def test_the_page_has_every_recipe_and_what_failed(whole, tmp_path):
    out, report = whole
    text = write(out, tmp_path).read_text()
    assert text.count("No result for their way: `ValueError: no such kernel`") == len(RECIPES)
    rows = [line for line in text.splitlines() if line.startswith("| adjoint |")]
    assert len(rows) == len(RECIPES)
    for row, recipe in zip(rows, report["recipes"].values(), strict=True):
        assert row.startswith(f"| adjoint | {recipe['ways']['adjoint']['1'][0]:z.2f} [")
    assert "in which 10 % of the samples have a wrong label" in text
    assert "](attribution/attribution/ways.png)" in text


def test_a_run_that_was_cut_off_goes_on(whole, no_peers, data, tmp_path, monkeypatch):
    trainings, plain = [], attribution.train

    def cut_off(*given):
        trainings.append(given)
        if len(trainings) == 8:
            raise KeyboardInterrupt
        return plain(*given)

    monkeypatch.setattr(attribution, "train", cut_off)
    ask = partial(run, tmp_path / "run", data, recipes=SMALL[1:2], **ROOM)
    with pytest.raises(KeyboardInterrupt):
        ask(0)
    found = ask(0)
    assert len(trainings) == 4 * ROOM["sets"] + 2  # one without nothing, and the one that was cut off
    own, expected = found["recipes"]["smooth"], whole[1]["recipes"]["smooth"]
    for name, way in expected["ways"].items():
        for kind in MEASURES:
            np.testing.assert_allclose(own["ways"][name][kind], way[kind], err_msg=name)
    again = ask(0)
    assert len(trainings) == 4 * ROOM["sets"] + 2
    assert again["recipes"] == found["recipes"]
    with pytest.raises(AlreadyExists, match="other settings"):
        ask(1)
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists):
        run(tmp_path, data, 0, SMALL[1:2], **ROOM)
