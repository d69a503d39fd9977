"""The language model against NumPy in float64, and its training against itself."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualform.errors import NotFound
from dualform_studies.text.checkpoints import CheckpointTaker
from dualform_studies.text.network import LanguageModel, build_network
from dualform_studies.text.perplexity import foretell
from dualform_studies.text.recipe import Recipe, choose_preset
from dualform_studies.text.streams import chunks
from dualform_studies.text.tokens import Vocabulary
from dualform_studies.text.training import begin, train

_TEXT = "the Fox ran by the stream. the Crow stood by the wood. " * 6
_RECIPE = Recipe(embedding=5, projection=7, hidden=6, lr=2e-2, clip=1.0, batch=3, steps=12, unroll=8, reset=0.3)


def _unrolled(network: LanguageModel, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys float64[L, h + e] and scores float64[L, V] by the LSTM's equations, in NumPy (gates: i, f, g, o)."""
    w = {name: value.detach().numpy().astype(np.float64) for name, value in network.state_dict().items()}
    hidden = cell = np.zeros(network.lstm.hidden_size)
    keys, scores = [], []
    for token in ids:
        x = w["embedding.weight"][token]
        if "projection.weight" in w:
            x = w["projection.weight"] @ x + w["projection.bias"]
        keys.append(np.concatenate([hidden, x]))
        gates = w["lstm.weight_ih_l0"] @ x + w["lstm.bias_ih_l0"] + w["lstm.weight_hh_l0"] @ hidden
        i, f, g, o = np.split(gates + w["lstm.bias_hh_l0"], 4)
        cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        hidden = np.tanh(cell) / (1 + np.exp(-o))
        scores.append(w["output.weight"] @ hidden + w["output.bias"])
    return np.array(keys), np.array(scores)


@pytest.mark.parametrize("projection", [0, 7])
def test_queries_are_the_previous_state_and_the_input(projection: int) -> None:
    network = build_network(11, replace(_RECIPE, projection=projection, dropout=0.5), seed=3)
    ids = [4, 1, 10, 0, 4]
    keys, _ = _unrolled(network, ids)
    queries = network.queries(torch.tensor(ids))
    assert queries.shape == (5, replace(_RECIPE, projection=projection).d_in)
    assert network.training
    np.testing.assert_allclose(queries.numpy(), keys, rtol=0, atol=1e-6)


def test_perplexity_is_that_of_the_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform_studies.text.perplexity._READ_AT_ONCE", 4)
    network = build_network(11, _RECIPE, seed=3)
    ids = np.random.default_rng(0).integers(0, 11, 30)
    _, scores = _unrolled(network, ids[:-1].tolist())
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    nats = -logs[np.arange(29), ids[1:]].mean()
    found = foretell(network, ids)
    assert found.tokens == 29
    assert found.nats == pytest.approx(nats, rel=1e-6)
    assert found.perplexity == pytest.approx(np.exp(nats), rel=1e-6)
    assert found.bits_per_token == pytest.approx(nats / log(2), rel=1e-6)


def test_a_text_read_in_streams_is_as_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform_studies.text.perplexity._READ_AT_ONCE", 12)
    network = build_network(11, _RECIPE, seed=3)
    ids = np.random.default_rng(0).integers(0, 11, 24)
    found = foretell(network, ids, streams=3)
    # 23 tokens can be predicted: three runs of 7, and two left over.
    parts = [foretell(network, ids[first : first + 8]) for first in (0, 7, 14)]
    assert found.tokens == 21
    assert found.nats == pytest.approx(np.mean([part.nats for part in parts]), rel=1e-6)
    assert network.training
    assert foretell(network, ids[:3], streams=64).tokens == 2


def test_an_even_guess_has_the_perplexity_of_the_vocabulary() -> None:
    network = build_network(11, _RECIPE, seed=3)
    nn.init.zeros_(network.output.weight)
    nn.init.zeros_(network.output.bias)
    assert foretell(network, np.arange(11)).perplexity == pytest.approx(11)


def _trained(recipe: Recipe, seed: int) -> tuple[dict[str, Tensor], list[float]]:
    vocabulary = Vocabulary(_TEXT, "character")
    network, optimizer = begin(len(vocabulary), recipe, seed)
    losses = train(network, optimizer, vocabulary.encode(_TEXT), recipe, seed)
    return dict(network.state_dict()), losses


def test_the_seed_decides_every_bit_and_draws_nothing_from_elsewhere() -> None:
    recipe = replace(_RECIPE, dropout=0.5)
    torch.manual_seed(1)
    first, losses = _trained(recipe, seed=5)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after)
    second, again = _trained(recipe, seed=5)
    assert losses == again
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert _trained(recipe, seed=6)[1] != losses


def test_reading_while_it_trains_changes_no_bit() -> None:
    recipe = replace(_RECIPE, dropout=0.5)
    vocabulary = Vocabulary(_TEXT, "character")
    tokens = vocabulary.encode(_TEXT)
    undisturbed, losses = _trained(recipe, seed=5)
    network, optimizer = begin(len(vocabulary), recipe, 5)
    prompt = tokens.ending(len(tokens) - 1, 9)
    taker = CheckpointTaker([4, 12], [prompt], tokens, streams=2)
    assert train(network, optimizer, tokens, recipe, 5, watch=taker) == losses
    assert all(torch.equal(undisturbed[name], value) for name, value in network.state_dict().items())
    early, last = taker.taken
    assert (early.updates, last.updates) == (4, 12)
    expected = network.queries(torch.from_numpy(prompt.ids))[-1:]
    np.testing.assert_array_equal(last.queries, expected.numpy())
    assert last.perplexity == foretell(network, tokens.ids, 2).perplexity < early.perplexity
    assert not np.array_equal(early.queries, last.queries)


def test_training_learns() -> None:
    _, losses = _trained(replace(_RECIPE, hidden=24, steps=80, reset=0.01), seed=0)
    assert np.mean(losses[-10:]) < 0.6 * losses[0]


@pytest.mark.parametrize("reset", [0.0, 1.0, 0.4])
def test_the_state_is_carried_over_but_for_new_passes_and_the_steps_that_a_seeded_draw_names(reset: float) -> None:
    vocabulary = Vocabulary(_TEXT, "character")
    recipe = replace(_RECIPE, reset=reset, steps=30)
    network, optimizer = begin(len(vocabulary), recipe, 2)
    given: list[bool] = []
    network.lstm.register_forward_pre_hook(lambda module, args: given.append(args[1] is not None))
    train(network, optimizer, vocabulary.encode(_TEXT), recipe, 2)
    draws = np.random.default_rng((2, 1)).random(recipe.steps)
    # A pass is 13 chunks of 8 for each of 3 streams.
    assert given == [step % 13 > 0 and bool(draw >= reset) for step, draw in enumerate(draws)]


def test_the_first_loss_is_that_of_the_initial_network_without_a_state() -> None:
    vocabulary = Vocabulary(_TEXT, "character")
    tokens = vocabulary.encode(_TEXT)
    network, optimizer = begin(len(vocabulary), _RECIPE, 4)
    chunk = next(chunks(tokens.ids, _RECIPE))
    expected = []
    for inputs, targets in zip(chunk.inputs, chunk.targets, strict=True):
        _, scores = _unrolled(network, inputs.tolist())
        expected += list(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(targets)), targets])
    losses = train(network, optimizer, tokens, _RECIPE, 4)
    assert losses[0] == pytest.approx(np.mean(expected), rel=1e-6)


def test_weights_begin_as_the_paper_has_them() -> None:
    network = build_network(400, replace(_RECIPE, embedding=64), seed=0)
    bound = float(network.embedding.weight.detach().abs().max())
    assert 0.0999 < bound <= 0.1
    assert network.output.weight.shape == (400, 6)
    assert replace(_RECIPE, projection=0).d_in == 11
    assert _RECIPE.slots == 3 * 8 * 12


def test_a_preset_that_does_not_exist_is_refused_with_those_that_do() -> None:
    presets = {"laptop": _RECIPE, "paper": replace(_RECIPE, hidden=9)}
    assert choose_preset(presets, None) is presets["laptop"]
    assert choose_preset(presets, "paper").hidden == 9
    with pytest.raises(NotFound, match="no preset 'phone'") as error:
        choose_preset(presets, "phone")
    assert error.value.hint == "Presets: laptop, paper."
