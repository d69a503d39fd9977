"""The study compact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dualform
from dualform.store.reading.snapshot import Snapshot
from dualform_studies.assignment import Assignment
from dualform_studies.images.compact import (
    SHARE,
    compare_orders,
    orthogonal_directions,
    pairs_of,
    record_pairs,
    update_of,
)
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.study import COMPACT, run_images
from dualform_studies.images.training import Recipe, accuracy, with_weights

LAYERS = ("layer-0", "layer-1", "layer-2")
WIDTHS = (784, 24, 16, 10)
STEPS, BATCH = 30, 32


@pytest.fixture(scope="module")
def miniature(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("compact") / "run"
    recipe = Recipe(hidden=WIDTHS[1:-1], lr=0.02, batch=BATCH, steps=STEPS)
    return out, run_images(COMPACT, Assignment(out, made_up_data), recipe)


@pytest.fixture(scope="module")
def weights(miniature) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """As the training stored them, before and after."""
    out, _ = miniature
    return load_file(out / "weights" / "initial.safetensors"), load_file(out / "weights" / "final.safetensors")


def test_it_says_what_it_wrote(miniature):
    out, report = miniature
    assert json.loads((out / "report" / "report.json").read_text()) == report
    assert report["slots"] == STEPS * BATCH
    page = (out / "report" / "index.html").read_text()
    assert all(claim["verdict"] in page for claim in report["claims"])
    assert [claim["section"] for claim in report["claims"]] == [
        "remark 3.1", "remark 3.1", "remark 3.3", "remark 3.4"
    ]  # fmt: skip
    assert all(layer["exact"] for layer in report["verify"].values())


def test_accuracies_are_those_of_networks_with_truncated_layers(miniature, weights, made_up_data: Path):
    _, report = miniature
    dataset, (before, after) = load_dataset("mnist", made_up_data), weights
    state = dict(after)
    for layer, rank in report["compact"]["directions"].items():
        names = (f"{layer}.weight", f"{layer}.bias")
        start, end = (torch.column_stack([s[name] for name in names]).double() for s in (before, after))
        left, values, right = torch.linalg.svd(end - start, full_matrices=False)
        held = values.square().cumsum(0) / values.square().sum()
        assert rank == int((held < SHARE).sum()) + 1
        kept = start + left[:, :rank] @ torch.diag(values[:rank]) @ right[:rank]
        state |= dict(zip(names, (kept[:, :-1].float(), kept[:, -1].float()), strict=True))
    assert report["compact"]["accuracy"] == pytest.approx(accuracy(with_weights(WIDTHS, state), dataset), abs=0.02)
    assert report["compact"]["accuracy_all"] == accuracy(with_weights(WIDTHS, after), dataset)


def test_ranks_are_those_of_the_memorys_own_keys(miniature):
    out, report = miniature
    memory = Snapshot.open(out)
    for layer, found in report["span"].items():
        keys = memory.keys(layer)
        stored = keys.block(0, keys.rows).astype(np.float64)
        values = np.linalg.svd(stored, compute_uv=False)
        assert found["rank"] == (values > 1e-6 * values[0]).sum()
        assert found["width"] == stored.shape[1]


def test_a_query_outside_the_span_is_answered_by_what_training_began_with(miniature, weights):
    out, report = miniature
    before, after = weights
    asked = {layer: found for layer, found in report["span"].items() if "query" in found}
    assert "layer-0" in asked  # 320 images span no 784 pixels
    for layer, found in asked.items():
        memory = Snapshot.open(out)
        tests = memory.query_set("test-mnist").queries(layer).astype(np.float64)
        keys = memory.keys(layer)
        stored = keys.block(0, keys.rows).astype(np.float64)
        span = np.linalg.svd(stored, full_matrices=False)
        right = span[2][span[1] > 1e-6 * span[1][0]]
        every = tests - tests @ right.T @ right
        row = int((np.square(every).sum(axis=1) / np.square(tests).sum(axis=1)).argmax())
        outside = every[row] * np.linalg.norm(tests[row]) / np.linalg.norm(every[row])
        # The live network's own answer to it.
        answer = after[f"{layer}.weight"].double().numpy() @ outside
        untrained = before[f"{layer}.weight"].double().numpy() @ outside
        assert np.linalg.norm(answer - untrained) < 1e-5 * np.linalg.norm(untrained)
        assert found["query"]["added"] < 1e-5
        moved = np.linalg.norm((after[f"{layer}.bias"] - before[f"{layer}.bias"]).double())
        assert found["query"]["bias_moved"] == pytest.approx(moved / np.linalg.norm(untrained), rel=1e-4)


def test_recorded_pairs_are_the_memory_that_they_came_from(miniature, tmp_path: Path):
    out, _ = miniature
    with dualform.open(out) as memory:
        pairs = pairs_of(memory, np.arange(STEPS * BATCH))
        record_pairs(pairs, np.arange(len(pairs)), tmp_path / "again")
        queries = memory.query_set("test-mnist", "layer-1").queries[:5]
        start = np.asarray(memory.output("layer-1", queries, at_step=0))
        with dualform.open(tmp_path / "again") as again:
            assert all(reconstruction.exact for reconstruction in again.verify().values())
            np.testing.assert_allclose(
                np.asarray(again.output("layer-1", queries)) + start,
                np.asarray(memory.output("layer-1", queries)),
                rtol=1e-4,
                atol=1e-5,
            )
            np.testing.assert_array_equal(
                again.topk("layer-1", queries, k=3).slots[0], memory.topk("layer-1", queries, k=3).slots[0]
            )


def test_pairs_that_are_not_the_same_are_told_apart(miniature):
    out, report = miniature
    for layer in report["order"]["layers"].values():
        assert max(layer["outputs"], layer["sums"]) < 1e-6
        assert layer["same_best"] == 1.0
    with dualform.open(out) as memory:
        pairs = pairs_of(memory, np.arange(200))
        queries = {"layer-1": memory.query_set("test-mnist", "layer-1").queries[:5]}
    # One pair stands twice and another not at all.
    order = np.arange(200)
    order[7] = 8
    found = compare_orders(pairs, order, queries)["layer-1"]
    assert found["outputs"] > 1e-6


def blocks(keys: np.ndarray, size: int):
    return (keys[start : start + size].astype(np.float32) for start in range(0, len(keys), size))


@pytest.mark.parametrize("size", [3, 16, 1000])
def test_directions_that_no_key_has_are_found_whatever_the_blocks(size: int):
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((200, 12))
    keys[:, 4] = 0  # a hidden unit that never wakes
    keys[:, [7, 9, 10]] = -0.5  # pixels that are the same everywhere
    basis = orthogonal_directions(blocks(keys, size), 12)
    assert basis.shape == (12, 3)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(keys @ basis, 0, atol=1e-6)
    # The span as NumPy finds it: its orthogonal complement is the same.
    _, values, right = np.linalg.svd(keys)
    complement = right[(values > 1e-9).sum() :]
    np.testing.assert_allclose(basis @ basis.T, complement.T @ complement, atol=1e-9)


def test_keys_that_span_everything_leave_nothing():
    keys = np.random.default_rng(1).standard_normal((50, 8))
    assert orthogonal_directions(blocks(keys, 10), 8).shape == (8, 0)


def test_a_direction_that_one_key_alone_has_is_in_the_span():
    keys = np.random.default_rng(2).standard_normal((5000, 6))
    keys[:, 2] = 0
    keys[4321, 2] = 0.01
    assert orthogonal_directions(blocks(keys, 1000), 6).shape == (6, 0)


RNG = np.random.default_rng(0)


def update_weights(matrix: np.ndarray) -> dict[str, torch.Tensor]:
    """A layer's weight and bias, of [W | b]."""
    both = torch.from_numpy(matrix)
    return {"l.weight": both[:, :-1], "l.bias": both[:, -1]}


def test_an_update_of_two_directions_is_found_and_given_back():
    start = RNG.standard_normal((6, 5))
    left, _ = np.linalg.qr(RNG.standard_normal((6, 2)))
    right, _ = np.linalg.qr(RNG.standard_normal((5, 2)))
    update = update_of("l", update_weights(start), update_weights(start + (left * [3.0, 1.0]) @ right.T))
    np.testing.assert_allclose(update.strengths, [3, 1, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(update.energy(), [0, 0.9, 1, 1, 1, 1], atol=1e-12)
    assert [update.directions_holding(share) for share in (0.89, 0.95)] == [1, 2]
    np.testing.assert_allclose(update.truncated(1), start + 3 * np.outer(left[:, 0], right[:, 0]), atol=1e-12)
    np.testing.assert_allclose(update.truncated(0), start, atol=0)
    named = update.parameters(2)
    torch.testing.assert_close(named["l.bias"], torch.from_numpy(update.truncated(2)[:, -1]).float())
    assert named["l.weight"].shape == (6, 4)
