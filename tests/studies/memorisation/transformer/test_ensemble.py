from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.boosting.ways import WAYS, boost, boundaries, learning, train_ways
from dualform_studies.memorisation.transformer.ensemble import Ensemble, ensemble_of
from dualform_studies.memorisation.transformer.facts import draw_facts
from dualform_studies.memorisation.transformer.network import build_network, with_weights
from dualform_studies.memorisation.transformer.siblings import train_siblings
from dualform_studies.memorisation.transformer.training import Recipe
from tests.studies.memorisation.oracle import Watched

RECIPE = Recipe(steps=25, later_steps=8, seeds=2)
SGD = RECIPE.sgd


def test_each_network_is_trained_as_it_would_be_alone():
    ensemble = ensemble_of([3, 4])
    ensemble.train(RECIPE.steps, SGD)
    for member, seed in enumerate([3, 4]):
        alone = Watched(draw_facts(seed), RECIPE, seed).network.state_dict()
        for name, weight in ensemble.weights(member).items():
            torch.testing.assert_close(weight, alone[name], rtol=1e-4, atol=1e-5)
        facts, network = draw_facts(seed), with_weights(ensemble.weights(member))
        assert ensemble.curve.accuracy[-1][member] == facts.right(network(facts.pairs)).mean()
    assert ensemble.curve.steps[0] == 0
    assert ensemble.curve.steps[-1] == RECIPE.steps
    assert (ensemble.curve.loss[-1] < ensemble.curve.loss[0]).all()


def test_a_pair_that_does_not_count_is_left_out_of_the_training():
    facts, counted = draw_facts(3), torch.ones(2, 1, 25)
    counted[1, 0, 7] = 0
    ensemble = Ensemble([build_network(3)] * 2, [facts] * 2)
    ensemble.train(RECIPE.steps, SGD, counted=counted)
    for member, left_out in enumerate([None, 7]):
        alone = Watched(facts, RECIPE, 3, left_out).network.state_dict()
        for name, weight in ensemble.weights(member).items():
            torch.testing.assert_close(weight, alone[name], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ensemble.weights(0)["value.weight"], ensemble.weights(1)["value.weight"], atol=1e-3)


@pytest.mark.parametrize("embeddings", [True, False])
def test_one_head_learns_and_the_others_stay(embeddings: bool):
    ensemble = ensemble_of([3])
    before = ensemble.weights(0)
    ensemble.train(5, SGD, heads=torch.tensor([[1.0, 1.0, 0.0]]), learns=learning(1, embeddings))
    moved = {name: (weight != before[name]).numpy() for name, weight in ensemble.weights(0).items()}
    head = np.arange(9) // 3 == 1
    for name in ("query", "key", "value"):
        assert moved[f"{name}.weight"][head].all()
        assert not moved[f"{name}.weight"][~head].any()
    assert moved["output.weight"][:, head].all()
    assert not moved["output.weight"][:, ~head].any()
    for name in ("word", "position", "unembedding"):
        assert moved[f"{name}.weight"].any() == embeddings


def test_every_way_is_trained_from_the_same_start():
    free = train_siblings(RECIPE, [3, 4])
    trained = train_ways(RECIPE, [3, 4], free)
    assert trained["free"] is free
    curves = {name: ensemble.curve for name, ensemble in trained.items()}
    assert set(curves) == set(WAYS)
    for one, other in (("free", "adam free"), ("shared", "frozen"), ("shared", "adam shared")):
        np.testing.assert_array_equal(curves[one].loss[0], curves[other].loss[0])
    for name, way in WAYS.items():
        assert curves[name].steps[-1] == (25 if way.heads == "free" else 41)
    for before in ("", "adam "):
        shared, frozen = curves[f"{before}shared"], curves[f"{before}frozen"]
        # Until head 1 is done, the two ways to boost are one.
        np.testing.assert_array_equal(shared.loss[shared.at(25)], frozen.loss[frozen.at(25)])
        assert (shared.loss[-1] != frozen.loss[-1]).all()
    assert (curves["free"].loss[-1] != curves["adam free"].loss[-1]).all()


def test_many_heads_are_boosted_one_after_the_other():
    ensemble = ensemble_of([3], heads=4)
    boost(ensemble, RECIPE, SGD, shared=True, progress=None, words="")
    assert boundaries(RECIPE, 4) == [25, 33, 41, 49]
    first = ensemble_of([3], heads=4)
    first.train(25, SGD, heads=torch.tensor([[1.0, 0, 0, 0]]), learns=learning(0, True, 4))
    np.testing.assert_array_equal(ensemble.curve.loss[ensemble.curve.at(25)], first.curve.loss[-1])
    assert ensemble.curve.steps[-1] == 49


def test_every_weighting_answers_and_counts():
    """Against one network trained alone on the same sum of losses."""
    weightings, seed = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]), 3
    counted = torch.rand(1, 2, 25, generator=torch.Generator().manual_seed(0))
    ensemble, facts, network = ensemble_of([seed]), draw_facts(seed), build_network(seed)
    ensemble.train(6, SGD, counted=counted, heads=weightings)
    optimizer = SGD(network.parameters())
    for _ in range(6):
        losses = torch.stack(
            [
                torch.nn.functional.cross_entropy(network(facts.pairs, one[None]), facts.next_tokens, reduction="none")
                for one in weightings
            ]
        )
        optimizer.zero_grad()
        ((losses * counted[0]).sum() / 25).backward()
        optimizer.step()
    for name, weight in ensemble.weights(0).items():
        torch.testing.assert_close(weight, network.state_dict()[name], rtol=1e-4, atol=1e-5)
    known = ensemble.right(weightings)
    assert known.shape == (1, 2, 25)
    for one, right in zip(weightings, known[0], strict=True):
        np.testing.assert_array_equal(right, facts.right(network(facts.pairs, one[None]).detach()))
    assert ensemble.curve.accuracy[-1] == known[0, 0].mean()
