from __future__ import annotations

import numpy as np
import pytest
import torch

from dualform_studies.memorisation.heads.simplex import classes_of, over_simplex, weightings
from dualform_studies.memorisation.torus.maps import attention_maps, class_map, on_circle, word_angles
from dualform_studies.memorisation.torus.sphere_figure import cells, directions
from dualform_studies.memorisation.transformer.facts import TOKENS, draw_facts
from dualform_studies.memorisation.transformer.network import build_network
from tests.studies.memorisation import oracle

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


def test_patterns_and_logits_are_those_worked_out_by_hand(network):
    w = oracle.weights_of(network)
    exact = build_network(0).double()
    exact.load_state_dict(network.state_dict())
    patterns = exact.pattern(exact.stream(exact.embed(FACTS.pairs))).detach().numpy()
    logits = exact(FACTS.pairs).detach().numpy()
    for at, pair in enumerate(FACTS.pairs.tolist()):
        expected = oracle.forward(w, points_of(w, pair))
        np.testing.assert_allclose(patterns[at], expected[0], atol=1e-9)
        np.testing.assert_allclose(logits[at], expected[1], atol=1e-8)
    np.testing.assert_allclose(network(FACTS.pairs).detach().numpy(), logits, atol=1e-4)


def test_heads_are_weighed(network):
    w = oracle.weights_of(network)
    heads = torch.tensor([[0.5, 0.0, 2.0]])
    logits = network(FACTS.pairs, heads).detach().numpy()
    for at, pair in enumerate(FACTS.pairs.tolist()):
        expected = oracle.forward(w, points_of(w, pair), heads[0].tolist())[1]
        np.testing.assert_allclose(logits[at], expected, atol=1e-4)


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
    np.testing.assert_allclose(simplex.weights.sum(axis=1), 3)
    assert len(simplex.weights) == 28
    for weights in [(3, 0, 0), (0, 3, 0), (0, 0, 3), (1, 1, 1), (1.5, 1, 0.5)]:
        logits = network(FACTS.pairs, torch.tensor([weights], dtype=torch.float32)).detach()
        row = simplex.at(*weights)
        np.testing.assert_array_equal(simplex.right[row], FACTS.right(logits))
        likely = logits.double().softmax(dim=1)[range(25), FACTS.next_tokens].numpy()
        np.testing.assert_allclose(simplex.probability[row], likely, atol=1e-5)
        assert ((simplex.lead[row] > 0) == simplex.right[row]).all()
        at = int(simplex.lead[row].argmax())
        others = np.delete(logits[at].numpy(), FACTS.next_tokens[at])
        assert simplex.lead[row, at] == pytest.approx(logits[at, FACTS.next_tokens[at]].item() - others.max(), abs=1e-4)
        assert simplex.accuracy[row] == FACTS.right(logits).mean()
    np.testing.assert_array_equal(simplex.right[simplex.at(1, 1, 1)], FACTS.right(network(FACTS.pairs)))
    for token, pairs in classes_of(FACTS).items():
        members = FACTS.next_tokens.numpy() == TOKENS.index(token)
        np.testing.assert_array_equal(pairs, members)
        np.testing.assert_allclose(simplex.accuracy_of(pairs), simplex.right[:, members].mean(axis=1))


def test_a_weighting_is_there_once():
    assert len(np.unique(weightings(9), axis=0)) == len(weightings(9)) == 55
    with pytest.raises(IndexError):
        over_simplex(build_network(0), FACTS, 2).at(1, 1, 1)


def test_cells_are_those_of_the_direction_that_is_looked_at(network):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 3))
    across, up = directions(vectors)
    won = [cells(network, across[at : at + 1], up[at : at + 1])[0, 0] for at in range(40)]
    np.testing.assert_array_equal(won, (vectors @ oracle.weights_of(network)["unembedding"].T).argmax(axis=1))
