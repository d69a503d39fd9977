"""The Transformer, one and many at once."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.boosting import WAYS, learning, train_ways
from dualform_studies.memorisation.simplex import classes_of, over_simplex
from dualform_studies.memorisation.torus import attention_maps, cells, class_map, directions, on_circle, word_angles
from dualform_studies.memorisation.transformer import (
    TOKENS,
    Recipe,
    build_network,
    draw_facts,
    ensemble_of,
    train_siblings,
    with_weights,
)
from tests.studies.memorisation import oracle
from tests.studies.memorisation.oracle import Watched

FACTS = draw_facts(1)


@pytest.fixture(scope="module", params=[0, 5])
def network(request):
    """Stronger than a fresh one, so that its attention and classes vary."""
    network = build_network(request.param)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    return network


def points_of(w, pair):
    return np.stack([oracle.on_circle(w, token) for token in pair])


def test_facts_are_all_pairs_with_a_token_each():
    assert FACTS.names[:7] == ["aa", "ab", "ac", "ad", "ae", "ba", "bb"]
    assert len(FACTS) == len(set(FACTS.names)) == 25
    assert set(FACTS.next_tokens.tolist()) <= set(range(5))
    assert torch.equal(draw_facts(1).next_tokens, FACTS.next_tokens)
    assert not torch.equal(draw_facts(2).next_tokens, FACTS.next_tokens)


@pytest.mark.parametrize("heads", [(1.0, 1.0, 1.0), (0.5, 0.0, 2.0)])
def test_patterns_and_logits_are_those_worked_out_by_hand_with_heads_weighed(network, heads):
    w, exact = oracle.weights_of(network), deepcopy(network).double()
    patterns = exact.pattern(exact.stream(exact.embed(FACTS.pairs))).detach().numpy()
    logits = exact(FACTS.pairs, torch.tensor([heads], dtype=torch.float64)).detach().numpy()
    expected = [oracle.forward(w, points_of(w, pair), heads) for pair in FACTS.pairs.tolist()]
    np.testing.assert_allclose(patterns, [one for one, _ in expected], atol=1e-9)
    np.testing.assert_allclose(logits, [one for _, one in expected], atol=1e-8)
    np.testing.assert_allclose(network(FACTS.pairs, torch.tensor([heads])).detach().numpy(), logits, atol=1e-4)


def test_words_lie_on_a_circle_at_their_angles(network):
    w, angles = oracle.weights_of(network), word_angles(network)
    assert ((angles >= 0) & (angles < 2 * np.pi)).all()
    expected = np.stack([oracle.on_circle(w, token) for token in range(len(TOKENS))])
    np.testing.assert_allclose(on_circle(torch.from_numpy(angles)).numpy(), expected, atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), np.sqrt(3))


def test_maps_hold_the_network_at_the_centres_of_their_cells(network):
    w = oracle.weights_of(network)
    drawn, attention = class_map(network, 24), attention_maps(network, 24)
    alone = class_map(network, 24, torch.tensor([[0.0, 1.0, 0.0]]))
    circle = on_circle(torch.from_numpy((np.arange(24) + 0.5) * 2 * np.pi / 24)).numpy()
    for first, second in [(0, 0), (3, 17), (23, 1), (12, 12)]:
        patterns, logits = oracle.forward(w, np.stack([circle[first], circle[second]]))
        likely = np.exp(logits) / np.exp(logits).sum()
        assert drawn.token[second, first] == logits.argmax()
        assert drawn.probability[second, first] == pytest.approx(likely.max(), abs=1e-9)
        np.testing.assert_allclose(attention[:, second, first], patterns[:, 0], atol=1e-9)
        by_hand = oracle.forward(w, np.stack([circle[first], circle[second]]), (0, 1, 0))[1]
        assert alone.token[second, first] == by_hand.argmax()


def test_the_simplex_holds_single_heads_in_its_corners_and_the_network_in_its_centre(network):
    simplex = over_simplex(network, FACTS, 6)
    assert simplex.weights.shape == np.unique(simplex.weights, axis=0).shape == (28, 3)
    np.testing.assert_allclose(simplex.weights.sum(axis=1), 3)
    logits = network(FACTS.pairs, torch.from_numpy(simplex.weights).float()[:, None]).detach().double()
    true = np.arange(25), FACTS.next_tokens.numpy()
    likely, others = logits.softmax(dim=-1).numpy(), logits.clone()
    others[:, *true] = -torch.inf
    lead = logits[:, *true] - others.amax(dim=-1)
    np.testing.assert_array_equal(simplex.right, FACTS.right(logits))
    np.testing.assert_allclose(simplex.probability, likely[:, *true], atol=1e-5)
    np.testing.assert_allclose(simplex.lead, lead, atol=1e-4)
    np.testing.assert_array_equal(simplex.accuracy, FACTS.right(logits).mean(axis=1))
    np.testing.assert_array_equal(simplex.right[simplex.at(1, 1, 1)], FACTS.right(network(FACTS.pairs)))
    assert [simplex.weights[simplex.at(*one)].tolist() for one in ((3, 0, 0), (1.5, 1, 0.5))] == [
        [3, 0, 0],
        [1.5, 1, 0.5],
    ]
    with pytest.raises(IndexError):
        simplex.at(1.1, 0.9, 1)
    for token, pairs in classes_of(FACTS).items():
        np.testing.assert_array_equal(pairs, FACTS.next_tokens.numpy() == TOKENS.index(token))
        np.testing.assert_allclose(simplex.accuracy_of(pairs), simplex.right[:, pairs].mean(axis=1))


def test_cells_are_those_of_the_direction_that_is_looked_at(network):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 3))
    across, up = directions(vectors)
    won = [cells(network, across[at : at + 1], up[at : at + 1])[0, 0] for at in range(40)]
    np.testing.assert_array_equal(won, (vectors @ oracle.weights_of(network)["unembedding"].T).argmax(axis=1))


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


@pytest.mark.parametrize("embeddings", [True, False])
def test_one_head_learns_and_the_others_stay(embeddings: bool):
    ensemble = ensemble_of([3])
    before = ensemble.weights(0)
    ensemble.train(5, SGD, heads=torch.tensor([[1.0, 1.0, 0.0]]), learns=learning(1, embeddings))
    moved = {name: (weight != before[name]).numpy() for name, weight in ensemble.weights(0).items()}
    head = np.arange(9) // 3 == 1
    for name in ("query", "key", "value", "output"):
        rows = moved[f"{name}.weight"] if name != "output" else moved["output.weight"].T
        assert rows.any(axis=1).tolist() == rows.all(axis=1).tolist() == head.tolist()
    assert {moved[f"{name}.weight"].any() for name in ("word", "position", "unembedding")} == {embeddings}


def test_every_way_is_trained_from_the_same_start():
    free = train_siblings(RECIPE, [3, 4])
    trained = train_ways(RECIPE, [3, 4], free)
    assert trained["free"] is free
    curves = {name: ensemble.curve for name, ensemble in trained.items()}
    assert set(curves) == set(WAYS)
    assert {name: curve.steps[-1] for name, curve in curves.items()} == {"free": 25, "shared": 41, "frozen": 41}
    shared, frozen = curves["shared"], curves["frozen"]
    # Until head 1 is done, the two ways to boost are one.
    for step in (0, 25):
        np.testing.assert_array_equal(shared.loss[shared.at(step)], frozen.loss[frozen.at(step)])
    assert (shared.loss[-1] != frozen.loss[-1]).all()


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
