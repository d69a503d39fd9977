"""Parts of a training masked, and networks retrained without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from dualform.query.engine import Engine, open_memory
from dualform_studies.images import masking
from dualform_studies.images.datasets import digits, permuted
from dualform_studies.images.masking import Part, draw_masks, leave_out, masked_weights, parts, retrain, sweep
from dualform_studies.images.training import (
    Pair,
    Recipe,
    TrainedNetwork,
    batch_rows,
    build_network,
    train_in_succession,
)
from dualform_studies.report import Report

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
    chosen, trained = parts(pair[1]), recorded[1]
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


def masks_of_part(part: Part, columns: dict[str, np.ndarray], pair: Pair) -> np.ndarray:
    """bool[T], in NumPy's own words."""
    second = columns["dataset"] == pair[1].name
    return second if part.label is None else np.asarray(second & (columns["label"] == part.label))


def summed(memory: Engine, part: Part, pair: Pair) -> dict[str, torch.Tensor]:
    weights = dict(build_network(RECIPE.widths(pair[0]), seed=3).state_dict())
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        stays = ~masks_of_part(part, columns, pair)
        weight, bias = values[stays].T @ keys[stays], values[stays].sum(axis=0)
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"].double() + torch.from_numpy(weight)
        weights[f"{layer}.bias"] = weights[f"{layer}.bias"].double() + torch.from_numpy(bias)
    return weights


def test_masked_weights_are_numpys_sum_of_what_stays(memory: Engine, pair: Pair):
    for part in parts(pair[1]):
        found, oracle, direct = masked_weights(memory, part), summed(memory, part, pair), memory.weights(part.mask)
        for name, truth in oracle.items():
            torch.testing.assert_close(found[name].double(), truth, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found[name], direct[name], rtol=1e-5, atol=1e-6)


def test_masked_accuracy_is_that_of_numpys_network(memory: Engine, swept: list[Report], pair: Pair):
    for part, row in zip(parts(pair[1]), swept[1:], strict=True):
        weights = summed(memory, part, pair)
        for dataset in pair:
            signal = dataset.inputs(dataset.test).astype(np.float64)
            for layer in LAYERS:
                signal = signal @ weights[f"{layer}.weight"].numpy().T + weights[f"{layer}.bias"].numpy()
                signal = np.maximum(signal, 0) if layer != LAYERS[-1] else signal
            right = int((signal.argmax(axis=1) == dataset.test.labels).sum())
            assert row["masked"][dataset.name] * len(dataset.test) == pytest.approx(right, abs=1)


def test_cancellation_is_that_of_what_is_left_out(memory: Engine, swept: list[Report], pair: Pair):
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        for part, row in zip(parts(pair[1]), swept[1:], strict=True):
            gone = masks_of_part(part, columns, pair)
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
        for part, row in zip(parts(pair[1]), swept[1:], strict=True):
            gone = masks_of_part(part, columns, pair)
            assert row["moved"][layer] == pytest.approx(np.linalg.norm(values[gone].T @ keys[gone]) / moved, rel=1e-4)


def test_nothing_left_out_is_the_network_as_trained(swept: list[Report]):
    assert swept[0]["masked"] == swept[0]["retrained"]
    assert swept[1]["masked"][digits().name] > swept[0]["masked"][digits().name]


def row(part: str, masked: float, retrained: float) -> dict[str, Any]:
    found: dict[str, Any] = {"part": part}
    for kind, first in (("masked", masked), ("retrained", retrained)):
        found[kind] = {"digits": first, "permuted-digits": 1 - first}
    if part != "nothing":
        found |= {"cancellation": {"layer-0": 12.4, "layer-1": 150.6}, "moved": {"layer-0": 0.25, "layer-1": 0.125}}
    return found


SWEPT = [
    row("nothing", 0.5, 0.5),
    row("all of permuted-digits", 0.9, 0.95),
    row("its class 0, 0", 0.1, 0.6),
    row("its class 1, 1", 0.2, 0.55),
]


def test_rows_are_the_whole_dataset_and_its_classes_in_percent(pair: Pair, tmp_path: Path, drawn: list[Figure]):
    assert draw_masks(tmp_path / "masks.png", SWEPT, pair).stat().st_size > 1000
    first, second, cancellation, moved = drawn[0].get_axes()
    assert [panel.get_xlabel() for panel in (first, second)] == ["test accuracy (%)"] * 2
    assert [text.get_text() for text in first.texts] == ["50", "90", "10", "20", "50", "95", "60", "55"]
    assert [text.get_text() for text in second.texts] == ["50", "10", "90", "80", "50", "5", "40", "45"]
    rows = [tick.get_text() for tick in first.get_yticklabels()]
    assert rows == ["nothing", "all of permuted-digits", "class 0, 0", "class 1, 1"]
    assert [text.get_text() for text in cancellation.texts] == ["151"] * 3
    assert [text.get_text() for text in moved.texts] == ["0.25"] * 3
    assert list(cancellation.get_lines()[0].get_ydata()) == [1, 2, 3], "nothing left out has no cancellation"


def test_masked_and_retrained_bars_are_told_apart_by_a_hatch(pair: Pair, tmp_path: Path, drawn: list[Figure]):
    draw_masks(tmp_path / "masks.png", SWEPT, pair)
    first = drawn[0].get_axes()[0]
    assert [bar.get_hatch() for bar in first.patches] == [None] * 4 + ["/////"] * 4
    assert [text.get_text() for text in drawn[0].legends[0].texts] == ["terms removed", "retrained"]


@pytest.fixture
def trained(recorded: tuple[Path, TrainedNetwork]) -> TrainedNetwork:
    return recorded[1]


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


def test_without_the_second_dataset_it_is_the_network_after_the_first(pair: Pair, trained: TrainedNetwork):
    whole = parts(pair[1])[0]
    (weights,) = retrain(trained, [whole], pair, RECIPE, seed=3)
    assert same(weights, trained.after_first)


def test_a_class_left_out_is_not_trained_and_the_others_keep_their_order(pair: Pair):
    second = pair[1]
    taken = list(masking._rows_without(4, second, RECIPE, seed=3))
    assert len(taken) == RECIPE.steps
    assert {len(rows) for rows in taken} == {RECIPE.batch}
    left = np.concatenate(taken)
    assert set(second.train.labels[left].tolist()) == set(range(10)) - {4}
    order = np.concatenate(list(batch_rows(second.split.trained, RECIPE.with_steps(100), seed=3, part=1)))
    np.testing.assert_array_equal(left, order[second.train.labels[order] != 4][: len(left)])


def test_without_a_class_training_speaks_against_it(pair: Pair, trained: TrainedNetwork):
    """Where no image is of a class, every error signal of its output is positive, and its bias falls."""
    weights = leave_out(trained, 4, pair, RECIPE, seed=3)
    assert not same(weights, trained.final)
    bias = weights["layer-2.bias"] - trained.after_first["layer-2.bias"]
    assert bias[4] < 0
