from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from dualform_studies.images.continual import retraining
from dualform_studies.images.continual.masking import parts
from dualform_studies.images.continual.retraining import leave_out, retrain, stop_at
from dualform_studies.images.data.datasets import digits, permuted
from dualform_studies.images.training.network import build_network
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.stream import batch_rows
from dualform_studies.images.training.succession import Pair, TrainedNetwork, train_in_succession
from dualform_studies.images.training.updates import train_part

RECIPE = Recipe(hidden=(16,), lr=0.05, batch=32, steps=60)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return digits(), permuted(digits())


@pytest.fixture(scope="module")
def trained(pair: Pair) -> TrainedNetwork:
    return train_in_succession(pair, RECIPE, seed=3)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


def test_without_the_whole_second_dataset_it_is_the_network_after_the_first(pair: Pair, trained: TrainedNetwork):
    whole = parts(pair, RECIPE)[0]
    (weights,) = retrain(trained, [whole], pair, RECIPE, seed=3)
    assert same(weights, trained.after_first)


def test_trained_to_the_end_again_it_is_the_final_network(pair: Pair, trained: TrainedNetwork):
    """So the momentum, the order of the images and what the first part left are those of the training itself."""
    before = deepcopy(trained.optimizer_after_first)
    weights = stop_at(trained, [0, 20, 60], pair, RECIPE, seed=3)
    assert same(weights[0], trained.after_first)
    assert same(weights[2], trained.final)
    assert not same(weights[1], trained.final)
    again = stop_at(trained, [60], pair, RECIPE, seed=3)
    assert same(again[0], trained.final)
    for number, state in before["state"].items():
        kept = trained.optimizer_after_first["state"][number]["momentum_buffer"]
        assert torch.equal(kept, state["momentum_buffer"])


def test_it_stops_where_a_shorter_training_ends(pair: Pair, trained: TrainedNetwork):
    network = build_network(RECIPE.widths(pair[0]), seed=3)
    optimizer = RECIPE.optimizer(network)
    train_part(network, optimizer, pair[0], RECIPE, seed=3, part=0)
    train_part(network, optimizer, pair[1], RECIPE.with_steps(20), seed=3, part=1)
    assert same(stop_at(trained, [20], pair, RECIPE, seed=3)[0], dict(network.state_dict()))


def test_a_class_left_out_is_not_trained_and_the_others_keep_their_order(pair: Pair):
    second = pair[1]
    taken = list(retraining._rows_without(4, second, RECIPE, seed=3))
    assert len(taken) == RECIPE.steps
    assert {len(rows) for rows in taken} == {RECIPE.batch}
    left = np.concatenate(taken)
    assert set(second.train.labels[left].tolist()) == set(range(10)) - {4}
    order = np.concatenate(list(batch_rows(second.split.trained, RECIPE.with_steps(100), seed=3, part=1)))
    np.testing.assert_array_equal(left, order[second.train.labels[order] != 4][: len(left)])


def test_without_a_class_training_speaks_against_it(pair: Pair, trained: TrainedNetwork):
    """Where no image is of a class, every error signal of its output is positive, and every update lowers its bias."""
    weights = leave_out(trained, 4, pair, RECIPE, seed=3)
    assert not same(weights, trained.final)
    bias = weights["layer-1.bias"] - trained.after_first["layer-1.bias"]
    assert bias.argmin() == 4
