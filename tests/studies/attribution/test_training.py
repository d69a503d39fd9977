"""A retraining of the study is that of `dualform.retrain`; spoiled samples are spoiled."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform_studies.attribution.recipes import RECIPES, WINDOW, Examples, Recipe, Transformer, loss
from dualform_studies.attribution.training import losses_of, recorded, train

SAMPLES, TESTS = 30, 5


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


def test_every_epoch_has_every_sample_once():
    recipe = KINDS["tanh"]
    steps = list(recipe.batches(0))
    assert [len(batch) for batch in steps] == [8, 8, 8, 6] * recipe.epochs
    assert sorted(np.concatenate(steps[:4])) == sorted(np.concatenate(steps[4:8])) == list(range(SAMPLES))


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


def test_recipes_say_what_they_do():
    assert [own.name for own in RECIPES] == ["dattri", "smooth", "cnn", "gpt"]
    for own in RECIPES:
        assert f"{own.lr:g}" in own.words
        network = own.build(1)
        assert any(isinstance(layer, nn.Dropout) for layer in network.modules()) == own.random
