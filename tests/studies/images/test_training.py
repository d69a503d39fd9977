"""The paper's recipe: batches and updates."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from dualform.errors import BadInput
from dualform_studies.images.datasets import Split, digits, load_dataset, permuted
from dualform_studies.images.study import CONTINUAL, JOINT, SINGLE
from dualform_studies.images.training import (
    Recipe,
    accuracy,
    batch_rows,
    build_network,
    drawn_rows,
    layer_names,
    mixed_batches,
    predictions,
    train_part,
    with_weights,
)


def test_an_image_of_a_mixed_batch_is_that_of_its_datasets_row(made_up_data: Path):
    chosen = [np.arange(0, 400, 2), np.arange(100)]
    pair = [
        replace(load_dataset(name, made_up_data), split=Split(np.arange(400), rows))
        for name, rows in zip(("mnist", "fashion-mnist"), chosen, strict=True)
    ]
    seen = []
    for batch in mixed_batches(pair, Recipe(batch=20, steps=30), seed=0):
        for inputs, label, row, name in zip(batch.inputs, batch.labels, batch.rows, batch.dataset, strict=True):
            dataset = pair[["mnist", "fashion-mnist"].index(name)]
            np.testing.assert_array_equal(inputs, dataset.inputs(dataset.train, np.array([row]))[0])
            assert label == dataset.train.labels[row]
            seen.append((name, int(row)))
    everything = {("mnist", row) for row in chosen[0]} | {("fashion-mnist", row) for row in chosen[1]}
    assert len(seen) == 600
    assert set(seen[:300]) == set(seen[300:]) == everything, "each epoch holds every image once"
    assert seen[:300] != seen[300:]


def test_rows_drawn_by_chance_come_again_before_all_have_come():
    rows = np.concatenate(list(drawn_rows(np.arange(10, 20), Recipe(batch=5, steps=200), seed=0)))
    assert set(rows) == set(range(10, 20))
    assert len(set(rows[:10])) < 10


SMALL = Recipe(hidden=(16,), lr=0.1, batch=32, steps=60)


def test_the_recipe_is_that_of_the_papers_code():
    recipe = Recipe()
    assert recipe == Recipe(hidden=(800, 800), lr=3e-3, momentum=0.9, clip=1.0, batch=128, steps=3000)
    network = build_network((784, 800, 800, 10), seed=0)
    linear = {name: module for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)}
    assert tuple(linear) == layer_names((784, 800, 800, 10)) == ("layer-0", "layer-1", "layer-2")
    assert [tuple(module.weight.shape) for module in linear.values()] == [(800, 784), (800, 800), (10, 800)]
    assert all(module.bias is not None for module in linear.values())
    assert [study.recipe for study in (SINGLE, JOINT, CONTINUAL)] == [Recipe(steps=n) for n in (5000, 5000, 3000)]
    assert (SINGLE.runs, SINGLE.moments) == (5, (3000,))
    group = recipe.optimizer(network).param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (3e-3, 0.9, 0)


def test_steps_below_one_are_refused():
    assert Recipe().with_steps(None) == Recipe()
    with pytest.raises(BadInput, match=r"steps must be at least 1, not 0\."):
        Recipe().with_steps(0)


def test_the_seed_alone_governs_the_initial_weights():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, other = build_network((8, 4, 2), seed=3), build_network((8, 4, 2), seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again = build_network((8, 4, 2), seed=3)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_an_epoch_holds_every_image_once():
    recipe = Recipe(batch=32, steps=50)
    rows = np.concatenate(list(batch_rows(np.arange(100), recipe, seed=0, part=0)))
    assert len(rows) == 50 * 32
    epochs = rows.reshape(16, 100)
    assert (np.sort(epochs, axis=1) == np.arange(100)).all()
    assert (epochs[0] != epochs[1]).any()


def test_seed_and_part_govern_the_order():
    recipe = Recipe(batch=8, steps=5)

    def order(seed: int, part: int) -> list[int]:
        return np.concatenate(list(islice(batch_rows(np.arange(100), recipe, seed, part), 5))).tolist()

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_training_learns_and_goes_on_with_the_optimizers_momentum():
    dataset = digits()
    network = build_network(SMALL.widths(dataset), seed=0)
    optimizer = SMALL.optimizer(network)
    seen = []
    train_part(network, optimizer, dataset, SMALL, seed=0, part=0, progress=lambda *told: seen.append(told))
    assert accuracy(network, dataset) > 0.8
    assert seen[-1] == ("training on digits", 60, 60)
    assert len(seen) == 60
    buffers = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    train_part(network, optimizer, permuted(dataset), SMALL.with_steps(1), seed=0, part=1)
    after = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert all(torch.norm(new - 0.9 * old) <= 1.0 + 1e-5 for new, old in zip(after, buffers, strict=True))


def test_predictions_leave_the_network_in_its_mode():
    dataset = digits()
    network = build_network(SMALL.widths(dataset), seed=0)
    network.train()
    classes = predictions(network, dataset, dataset.train)
    assert network.training
    assert classes.shape == (1400,)
    copy = with_weights(SMALL.widths(dataset), network.state_dict())
    np.testing.assert_array_equal(predictions(copy, dataset, dataset.train), classes)
