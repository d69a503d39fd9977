"""Masked accuracies against weights that NumPy sums from the recorded keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dualform.query.engine import Engine, open_memory
from dualform_studies.images.continual.masking import Part, masked_weights, parts, sweep
from dualform_studies.images.continual.retraining import retrain
from dualform_studies.images.data.datasets import digits, permuted
from dualform_studies.images.training.network import build_network
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.succession import Pair, TrainedNetwork, train_in_succession
from dualform_studies.pages.folder import Report

RECIPE = Recipe(hidden=(24, 16), lr=0.05, batch=32, steps=60)
LAYERS = ("layer-0", "layer-1", "layer-2")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return digits(), permuted(digits())


@pytest.fixture(scope="module")
def recorded(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedNetwork]:
    folder = tmp_path_factory.mktemp("masking") / "run"
    return folder, train_in_succession(pair, RECIPE, seed=3, record_to=folder)


@pytest.fixture(scope="module")
def memory(recorded: tuple[Path, TrainedNetwork]) -> Iterator[Engine]:
    with open_memory(recorded[0]) as opened:
        yield opened


@pytest.fixture(scope="module")
def swept(memory: Engine, recorded: tuple[Path, TrainedNetwork], pair: Pair) -> list[Report]:
    chosen, trained = parts(pair, RECIPE), recorded[1]
    retrained = retrain(trained, chosen, pair, RECIPE, seed=3)
    return sweep(memory, chosen, retrained, trained, pair, RECIPE)


def coefficients() -> np.ndarray:
    """float64[steps]: what SGD with momentum makes of the gradient of each step by the end (DESIGN, section 4)."""
    steps = 2 * RECIPE.steps
    left = steps - np.arange(steps)
    return -RECIPE.lr * (1 - RECIPE.momentum**left) / (1 - RECIPE.momentum)


def terms(memory: Engine, layer: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Keys, values with all factors, and the columns of all slots, in float64."""
    count = 2 * RECIPE.steps * RECIPE.batch
    columns = memory.sql("SELECT step, dataset, label FROM slots ORDER BY slot")
    clip = memory.sql("SELECT clip FROM steps ORDER BY step")["clip"].astype(np.float64)
    store = memory._view.snapshot
    keys = store.keys(layer).entry_block(0, count).astype(np.float64)
    values = store.values(layer).block(0, count).astype(np.float64)
    values *= (coefficients() * clip)[columns["step"]][:, None]
    return keys, values, {name: columns[name] for name in ("step", "dataset", "label")}


def of_part(part: Part, columns: dict[str, np.ndarray], pair: Pair) -> np.ndarray:
    """bool[T], in NumPy's own words."""
    second = columns["dataset"] == pair[1].name
    if part.label is not None:
        return np.asarray(second & (columns["label"] == part.label))
    return np.asarray(columns["step"] >= 2 * RECIPE.steps - part.last)


def summed(memory: Engine, part: Part, pair: Pair) -> dict[str, torch.Tensor]:
    weights = dict(build_network(RECIPE.widths(pair[0]), seed=3).state_dict())
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        stays = ~of_part(part, columns, pair)
        weight, bias = values[stays].T @ keys[stays], values[stays].sum(axis=0)
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"].double() + torch.from_numpy(weight)
        weights[f"{layer}.bias"] = weights[f"{layer}.bias"].double() + torch.from_numpy(bias)
    return weights


def test_the_parts_are_the_second_dataset_its_classes_and_its_last_steps(pair: Pair):
    chosen = parts(pair, Recipe())
    assert len(chosen) == 1 + 10 + 7
    assert (chosen[0].mask, chosen[0].last) == ("dataset <> 'permuted-digits'", 3000)
    assert [part.label for part in chosen[1:11]] == list(range(10))
    assert chosen[4].mask == "NOT (dataset = 'permuted-digits' AND label = 3)"
    assert [(part.last, part.mask) for part in chosen[12:14]] == [(100, "step < 5900"), (300, "step < 5700")]
    assert [part.last for part in parts(pair, Recipe(steps=3))[11:]] == [1, 2]


def test_masked_weights_are_numpys_sum_of_what_stays(memory: Engine, pair: Pair):
    for part in parts(pair, RECIPE):
        found, oracle, direct = masked_weights(memory, part), summed(memory, part, pair), memory.weights(part.mask)
        for name, truth in oracle.items():
            torch.testing.assert_close(found[name].double(), truth, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found[name], direct[name], rtol=1e-5, atol=1e-6)


def test_masked_accuracy_is_that_of_numpys_network(memory: Engine, swept: list[Report], pair: Pair):
    for part, row in zip(parts(pair, RECIPE), swept[1:], strict=True):
        weights = summed(memory, part, pair)
        for dataset in pair:
            signal = dataset.inputs(dataset.test).astype(np.float64)
            for layer in LAYERS:
                signal = signal @ weights[f"{layer}.weight"].numpy().T + weights[f"{layer}.bias"].numpy()
                signal = np.maximum(signal, 0) if layer != LAYERS[-1] else signal
            right = int((signal.argmax(axis=1) == dataset.test.labels).sum())
            assert row["masked"][dataset.name] * len(dataset.test) == pytest.approx(right, abs=1)


def test_datapoints_and_cancellation_are_those_of_what_is_left_out(memory: Engine, swept: list[Report], pair: Pair):
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        for part, row in zip(parts(pair, RECIPE), swept[1:], strict=True):
            gone = of_part(part, columns, pair)
            assert row["datapoints"] == gone.sum()
            norms = np.linalg.norm(keys[gone], axis=1) * np.linalg.norm(values[gone], axis=1)
            whole = np.linalg.norm(values[gone].T @ keys[gone])
            assert row["cancellation"][layer] == pytest.approx(norms.sum() / whole, rel=1e-4)


def test_how_far_a_part_moved_the_weights_is_told_against_all_of_training(
    memory: Engine, swept: list[Report], pair: Pair
):
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        keys = np.column_stack([keys, np.ones(len(keys))])
        moved = np.linalg.norm(values.T @ keys)
        for part, row in zip(parts(pair, RECIPE), swept[1:], strict=True):
            gone = of_part(part, columns, pair)
            assert row["moved"][layer] == pytest.approx(np.linalg.norm(values[gone].T @ keys[gone]) / moved, rel=1e-4)


def test_training_without_the_last_steps_is_the_memory_as_of_then(memory: Engine, recorded, pair: Pair):
    last = [part for part in parts(pair, RECIPE) if part.label is None]
    for part, weights in zip(last, retrain(recorded[1], last, pair, RECIPE, seed=3), strict=True):
        rebuilt = memory.weights(at_step=2 * RECIPE.steps - part.last)
        for name, weight in weights.items():
            torch.testing.assert_close(rebuilt[name], weight, rtol=1e-4, atol=1e-5)


def test_nothing_left_out_is_the_network_as_trained(swept: list[Report]):
    assert swept[0]["masked"] == swept[0]["retrained"]
    assert swept[0]["datapoints"] == 0
    assert swept[1]["masked"][digits().name] > swept[0]["masked"][digits().name]
