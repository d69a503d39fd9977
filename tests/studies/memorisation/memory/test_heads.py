from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import dualform
from dualform_studies.memorisation.memory.heads import ask_heads, ask_masked, attended
from dualform_studies.memorisation.memory.masks import leave_out
from dualform_studies.memorisation.memory.retrieval import ask_two_levels
from dualform_studies.memorisation.transformer.facts import draw_facts
from dualform_studies.memorisation.transformer.network import with_weights
from dualform_studies.memorisation.transformer.training import Recipe, train_recorded
from tests.studies.memorisation.oracle import Watched

RECIPE = Recipe(steps=20, lr=0.2)
FACTS = draw_facts(2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("heads") / "run"
    network = train_recorded(FACTS, RECIPE, 2, folder)
    with dualform.open(folder) as memory:
        yield network, memory


@pytest.fixture(scope="module")
def found(trained):
    return ask_heads(trained[1], trained[0], FACTS)


@pytest.fixture(scope="module")
def singles(trained):
    return leave_out(trained[1], FACTS, replace(RECIPE, steps=1), 2)[:25]


@pytest.fixture(scope="module")
def masked(trained, singles):
    return ask_masked(trained[1], trained[0], FACTS, singles)


def test_every_head_attends_to_the_keys_of_the_training(trained, found):
    network, watched = trained[0], Watched(FACTS, RECIPE, 2)
    stream = network.stream(network.embed(FACTS.pairs)).detach().double().numpy()
    pattern = network.pattern(network.stream(network.embed(FACTS.pairs))).detach().numpy()
    scores = np.einsum("tqic,psc->psq", watched.keys, stream)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-4, atol=1e-4)
    for head, pair, training in [(0, 0, 3), (2, 17, 17), (1, 9, 24)]:
        by_hand = pattern[pair, head] @ scores[pair, :, training]
        assert found.attention[head, pair, training] == pytest.approx(by_hand, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("pair", [0, 13])
def test_leads_are_those_of_two_level_retrieval(trained, found, pair):
    """Of the other module, which asks for one pair at a time."""
    margin, _ = ask_two_levels(trained[1], trained[0], FACTS, pair).margin(int(FACTS.next_tokens[pair]))
    np.testing.assert_allclose(found.lead[:, pair], margin.sum(axis=0), atol=1e-6)


def test_a_mask_takes_a_column_out_of_the_first_level_and_no_more(found, masked):
    for left_out, scores in enumerate(masked.scores):
        assert not scores[:, :, left_out].any()
        others = np.arange(25) != left_out
        np.testing.assert_array_equal(scores[:, :, others], found.scores[:, :, others])


def test_the_second_level_moves_with_query_and_key(trained, found, singles, masked):
    stream = trained[0].stream(trained[0].embed(FACTS.pairs)).detach()
    for left_out in (0, 12):
        weights = {name: p.clone() for name, p in trained[0].state_dict().items()}
        for layer in ("query", "key"):
            weights[f"{layer}.weight"] = trained[1].weights(where=singles[left_out].where)[f"{layer}.weight"]
        expected = with_weights(weights).pattern(stream).detach().numpy()
        np.testing.assert_allclose(masked.pattern[left_out], expected, atol=1e-6)
    assert np.abs(masked.pattern - found.pattern).max() > 1e-3


@pytest.mark.parametrize("head", [0, 2])
def test_a_pair_is_masked_in_one_head_alone(trained, singles, masked, head):
    rows = slice(3 * head, 3 * head + 3)
    for left_out in (1, 20):
        weights = {name: p.clone() for name, p in trained[0].state_dict().items()}
        others = trained[1].weights(where=singles[left_out].where)
        for layer in ("query", "key", "value"):
            weights[f"{layer}.weight"][rows] = torch.as_tensor(others[f"{layer}.weight"])[rows]
        known = FACTS.right(with_weights(weights)(FACTS.pairs))
        np.testing.assert_array_equal(masked.known[left_out, head], known)


def test_what_was_not_known_is_not_lost(found, masked):
    """The network was trained for 20 steps: it does not know all pairs before any is masked."""
    known = FACTS.right(torch.from_numpy(np.eye(5)[FACTS.next_tokens.numpy()]))
    assert not found.known.all()
    lost = masked.lost(found.known)
    for left_out, head, pair in [(3, 0, 3), (3, 0, 4), (7, 2, 11), (24, 1, 0)]:
        expected = found.known[pair] and not masked.known[left_out, head, pair] and pair != left_out
        assert lost[left_out, head, pair] == expected
    assert (masked.lost(known) | ~known >= lost).all()
    assert not masked.lost(~known).any()


def test_attention_is_divided_by_the_second_level():
    scores, pattern = np.zeros((1, 2, 3)), np.array([[[0.25, 0.75], [1.0, 0.0]]])
    scores[0] = [[4, 8, 0], [0, 4, 8]]
    np.testing.assert_array_equal(attended(scores, pattern)[:, 0], [[1, 5, 6], [4, 8, 0]])
