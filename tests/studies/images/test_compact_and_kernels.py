"""The study compact, and softmax attention in place of the inner product."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dualform
from dualform.query.engine import Engine
from dualform.store.reading.snapshot import Snapshot
from dualform_studies.assignment import Assignment
from dualform_studies.images.compact import (
    SHARE,
    compare_orders,
    directions_holding,
    orthogonal_directions,
    pairs_of,
    record_pairs,
    truncated,
    update_of,
)
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.kernels import KernelsRecipe, ask_kernels, attend, kernel_verdict
from dualform_studies.images.study import COMPACT, run_images
from dualform_studies.images.training import Recipe, accuracy, epochs, record, with_weights

LAYERS = ("layer-0", "layer-1", "layer-2")
WIDTHS = (784, 24, 16, 10)
STEPS, BATCH = 30, 32


@dataclass(frozen=True)
class Small:
    out: Path
    report: dict[str, Any]
    memory: Engine
    before: dict[str, np.ndarray]
    """By layer, [W | b] in float64 as the training stored it, before and after."""
    after: dict[str, np.ndarray]

    def keys(self, layer: str) -> np.ndarray:
        keys = Snapshot.open(self.out).keys(layer)
        return keys.block(0, keys.rows).astype(np.float64)


@pytest.fixture(scope="module")
def small(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    out = tmp_path_factory.mktemp("compact") / "run"
    recipe = Recipe(hidden=WIDTHS[1:-1], lr=0.02, batch=BATCH, steps=STEPS)
    report = run_images(COMPACT, Assignment(out, made_up_data), recipe)
    stored = [load_file(out / "weights" / f"{name}.safetensors") for name in ("initial", "final")]
    both = [
        {name: torch.column_stack([one[f"{name}.weight"], one[f"{name}.bias"]]).double().numpy() for name in LAYERS}
        for one in stored
    ]
    with dualform.open(out) as memory:
        yield Small(out, report, memory, *both)


def test_it_says_what_it_wrote(small: Small):
    assert json.loads((small.out / "report" / "report.json").read_text()) == small.report
    assert small.report["slots"] == STEPS * BATCH
    page = (small.out / "report" / "index.html").read_text()
    assert all(claim["verdict"] in page for claim in small.report["claims"])
    sections = [claim["section"] for claim in small.report["claims"]]
    assert sections == ["remark 3.1", "remark 3.1", "remark 3.3", "remark 3.4"]
    assert all(layer["exact"] for layer in small.report["verify"].values())


def test_accuracies_are_those_of_networks_with_truncated_layers(small: Small, made_up_data: Path):
    dataset, found, accuracies = load_dataset("mnist", made_up_data), small.report["compact"], []
    for ranks in (found["directions"], dict.fromkeys(LAYERS, 800)):
        state = {}
        for layer, start in small.before.items():
            left, values, right = np.linalg.svd(small.after[layer] - start, full_matrices=False)
            held = np.cumsum(values**2) / (values**2).sum()
            assert ranks[layer] in (800, int((held < SHARE).sum()) + 1)
            kept = torch.from_numpy(start + (left * values)[:, : ranks[layer]] @ right[: ranks[layer]]).float()
            state |= {f"{layer}.weight": kept[:, :-1], f"{layer}.bias": kept[:, -1]}
        accuracies.append(accuracy(with_weights(WIDTHS, state), dataset))
    assert [found["accuracy"], found["accuracy_all"]] == pytest.approx(accuracies, abs=0.02)


def test_ranks_and_answers_outside_the_span_are_those_of_the_memorys_own_keys(small: Small):
    asked = []
    for layer, found in small.report["span"].items():
        keys, before, after = small.keys(layer), small.before[layer], small.after[layer]
        _, values, right = np.linalg.svd(keys, full_matrices=False)
        right = right[values > 1e-6 * values[0]]
        assert (found["rank"], found["width"]) == (len(right), keys.shape[1])
        if "query" not in found:
            continue
        asked.append(layer)
        tests = Snapshot.open(small.out).query_set("test-mnist").queries(layer).astype(np.float64)
        every = tests - tests @ right.T @ right
        row = int((np.square(every).sum(axis=1) / np.square(tests).sum(axis=1)).argmax())
        outside = every[row] * np.linalg.norm(tests[row]) / np.linalg.norm(every[row])
        # The live network's own answer to it.
        answer, untrained = after[:, :-1] @ outside, before[:, :-1] @ outside
        assert np.linalg.norm(answer - untrained) < 1e-5 * np.linalg.norm(untrained)
        assert found["query"]["added"] < 1e-5
        moved = np.linalg.norm(after[:, -1] - before[:, -1])
        assert found["query"]["bias_moved"] == pytest.approx(moved / np.linalg.norm(untrained), rel=1e-4)
    assert "layer-0" in asked, "320 images span no 784 pixels"


def test_recorded_pairs_are_the_memory_that_they_came_from(small: Small, tmp_path: Path):
    memory, pairs = small.memory, pairs_of(small.memory, np.arange(STEPS * BATCH))
    record_pairs(pairs, np.arange(len(pairs)), tmp_path / "again")
    queries = memory.query_set("test-mnist", "layer-1").queries[:5]
    start = np.asarray(memory.output("layer-1", queries, at_step=0))
    with dualform.open(tmp_path / "again") as again:
        assert all(reconstruction.exact for reconstruction in again.verify().values())
        found, expected = (np.asarray(one.output("layer-1", queries)) for one in (again, memory))
        np.testing.assert_allclose(found + start, expected, rtol=1e-4, atol=1e-5)
        best, expected = (one.topk("layer-1", queries, k=3).slots[0] for one in (again, memory))
        np.testing.assert_array_equal(best, expected)


def test_pairs_that_are_not_the_same_are_told_apart(small: Small):
    for layer in small.report["order"]["layers"].values():
        assert max(layer["outputs"], layer["sums"]) < 1e-6
        assert layer["same_best"] == 1.0
    pairs, order = pairs_of(small.memory, np.arange(200)), np.arange(200)
    queries = {"layer-1": small.memory.query_set("test-mnist", "layer-1").queries[:5]}
    order[7] = 8  # one pair stands twice and another not at all
    assert compare_orders(pairs, order, queries)["layer-1"]["outputs"] > 1e-6


def orthogonal(keys: np.ndarray, size: int) -> np.ndarray:
    blocks = (keys[start : start + size].astype(np.float32) for start in range(0, len(keys), size))
    return orthogonal_directions(blocks, keys.shape[1])


@pytest.mark.parametrize("size", [3, 16, 1000])
def test_directions_that_no_key_has_are_found_whatever_the_blocks(size: int):
    keys = np.random.default_rng(0).standard_normal((200, 12))
    keys[:, 4] = 0  # a hidden unit that never wakes
    keys[:, [7, 9, 10]] = -0.5  # pixels that are the same everywhere
    basis = orthogonal(keys, size)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(keys @ basis, 0, atol=1e-6)
    # The span as NumPy finds it: its orthogonal complement is the same.
    _, values, right = np.linalg.svd(keys)
    complement = right[(values > 1e-9).sum() :]
    np.testing.assert_allclose(basis @ basis.T, complement.T @ complement, atol=1e-9)


def test_keys_that_span_everything_leave_nothing_not_even_a_direction_of_one_key():
    keys = np.random.default_rng(2).standard_normal((5000, 6))
    keys[:, 2] = 0
    keys[4321, 2] = 0.01
    assert orthogonal(keys, 1000).shape == (6, 0)


def test_an_update_of_two_directions_is_found_and_given_back():
    rng = np.random.default_rng(0)
    start, (left, _), (right, _) = rng.standard_normal((6, 5)), *(
        np.linalg.qr(rng.standard_normal((width, 2))) for width in (6, 5)
    )  # fmt: skip
    begun, ended = (
        {"l.weight": torch.from_numpy(both[:, :-1]), "l.bias": torch.from_numpy(both[:, -1])}
        for both in (start, start + (left * [3.0, 1.0]) @ right.T)
    )
    update = update_of("l", begun, ended)
    strengths = update[1]
    np.testing.assert_allclose(strengths, [3, 1, 0, 0, 0], atol=1e-12)
    # The first direction holds nine tenths.
    assert [directions_holding(share, strengths) for share in (0.89, 0.91, 0.95)] == [1, 2, 2]
    for rank, expected in ((0, start), (1, start + 3 * np.outer(left[:, 0], right[:, 0]))):
        both = torch.from_numpy(expected).float()
        torch.testing.assert_close(
            truncated("l", begun, update, rank), {"l.weight": both[:, :-1], "l.bias": both[:, -1]}
        )
    named = {name: both.float() for name, both in ended.items()}
    torch.testing.assert_close(truncated("l", begun, update, 2), named)


RECIPE = KernelsRecipe((0.05, 2.0, 300.0), last=4, every=3)


@pytest.fixture(scope="module")
def trained(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, dict[str, Any]]:
    """A memory of a short training, its dataset, and the report."""
    out, dataset = tmp_path_factory.mktemp("kernels") / "run", load_dataset("mnist", made_up_data)
    recipe = Recipe(hidden=(24, 16), lr=0.004, batch=32, steps=60)
    record([dataset], epochs(dataset, recipe, seed=0), recipe, 0, out)
    return out, dataset, ask_kernels(out, dataset, LAYERS, recipe=RECIPE)


def images(dataset: Any, count: int, *, tested: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels: the first of each class, of the test file or of what the split holds out."""
    of = dataset.test if tested else dataset.train
    rows = np.arange(len(of)) if tested else np.setdiff1d(np.arange(len(of)), dataset.split.kept)
    first = sorted(row for label in range(10) for row in [row for row in rows if of.labels[row] == label][:count])
    return dataset.inputs(of, first), of.labels[first]


def test_sums_are_those_of_the_engine(trained):
    queries = np.random.default_rng(0).normal(size=(7, 24)).astype(np.float32)
    asked = [(queries, 0.05), (queries[2:4], 2.0), (queries[4:], 1e4), (queries, 2.0)]
    with dualform.open(trained[0]) as memory:
        for (own, temperature), found in zip(asked, attend(trained[0], "layer-1", asked), strict=True):
            exact = memory.output("layer-1", own, kernel="softmax", temperature=temperature, initial=False)
            np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-5 * np.abs(exact.values).max())


@pytest.mark.parametrize("place", ["last", "every"])
def test_accuracies_are_those_of_layers_that_the_engine_answers(trained, place):
    out, dataset, report = trained
    held_out = RECIPE.last if place == "last" else RECIPE.every // 2
    own = {
        "tested": images(dataset, getattr(RECIPE, place), tested=True),
        "held_out": images(dataset, held_out, tested=False),
    }
    assert report[place]["images"] == {name: len(labels) for name, (_, labels) in own.items()}
    rows = report[place]["kernels"]
    assert [(row["temperature"], row["initial"]) for row in rows if row["temperature"]] == [
        (temperature, initial) for initial in (True, False) for temperature in RECIPE.temperatures
    ]
    with dualform.open(out) as memory:
        for row in rows:
            for name, (inputs, labels) in own.items():
                queries = inputs
                for layer in LAYERS:
                    kernel = {"initial": row["initial"]}
                    if row["temperature"] is not None:
                        kernel |= {"kernel": "softmax", "temperature": row["temperature"]}
                    if place == "last" and layer != LAYERS[-1]:
                        kernel = {}
                    answer = memory.output(layer, queries, **kernel)
                    queries = np.maximum(answer.values, 0) if layer != LAYERS[-1] else answer.values
                assert row[name] == pytest.approx((queries.argmax(axis=1) == labels).mean())


def test_the_factor_of_a_sum_is_the_best_on_held_out_images(trained):
    out, dataset, report = trained
    with dualform.open(out) as memory:
        found = {}
        for name, tested in (("tested", True), ("held_out", False)):
            queries, labels = images(dataset, RECIPE.last, tested=tested)
            for layer in LAYERS[:-1]:
                queries = np.maximum(memory.output(layer, queries).values, 0)
            beside = memory.output("layer-2", queries).values - memory.output("layer-2", queries, initial=False).values
            for row in report["last"]["scaled"]:
                temperature = row["temperature"]
                sums = memory.output(
                    "layer-2", queries, kernel="softmax", temperature=temperature, initial=False
                ).values.astype(float)
                for scale in RECIPE.scales:
                    right = ((beside + scale * sums).argmax(axis=1) == labels).mean()
                    found[name, temperature, scale] = right
    assert [row["temperature"] for row in report["last"]["scaled"]] == list(RECIPE.temperatures)
    for row in report["last"]["scaled"]:
        own = {scale: found["held_out", row["temperature"], scale] for scale in RECIPE.scales}
        assert row["held_out"] == pytest.approx(max(own.values()))
        assert own[row["scale"]] == max(own.values())
        assert row["tested"] == pytest.approx(found["tested", row["temperature"], row["scale"]])


def test_gains_and_losses_are_of_the_tested_images(trained):
    for place in ("last", "every"):
        comparison = trained[2][place]
        count, linear = comparison["images"]["tested"], comparison["kernels"][0]
        assert (linear["gained"], linear["lost"], linear["p"]) == (0, 0, 1.0)
        for row in comparison["kernels"]:
            assert row["tested"] * count == pytest.approx(linear["tested"] * count + row["gained"] - row["lost"])
        softmax = [row for row in comparison["kernels"] if row["temperature"]]
        assert comparison["chosen"]["held_out"] == max(row["held_out"] for row in softmax)


@pytest.mark.parametrize(
    ("chosen", "other", "verdict"),
    [
        ((13, 2), (0, 0), "holds"),
        ((2, 13), (0, 0), "does not hold"),
        ((12, 2), (0, 0), "does not hold"),
        ((9, 9), (20, 2), "holds in part"),
        # One that was not chosen counts by a bound over the number that were tried.
        ((9, 9), (13, 2), "does not hold"),
        ((9, 9), (2, 20), "does not hold"),
    ],
)
def test_a_kernel_is_better_where_chance_is_ruled_out(chosen: tuple[int, int], other: tuple[int, int], verdict: str):
    rows = [{"temperature": 1.0, "gained": gained, "lost": lost} for gained, lost in (chosen, other)]
    linear = {"temperature": None, "gained": 90, "lost": 0}
    assert kernel_verdict({"chosen": rows[0], "kernels": [linear, *rows]}) == verdict
    assert kernel_verdict({"chosen": rows[0], "kernels": [linear, rows[0]], "scaled": rows[1:]}) == verdict
