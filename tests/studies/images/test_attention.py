"""What test images attend to, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from dualform_studies.images import attention
from dualform_studies.images.attention import (
    ask_attention,
    ask_datapoints,
    ask_greatest,
    ask_key_norms,
    best_slots,
    sampled_rows,
)
from dualform_studies.images.dates import SAMPLED, ask_dates
from dualform_studies.images.hubs import COMPARED, ask_hubs
from dualform_studies.images.training import Checkpoint
from tests.studies.images.conftest import BATCH, LAYERS, STEPS, Recorded


def ranked(scores: np.ndarray) -> np.ndarray:
    """Slots by score descending, then number."""
    return np.argsort(-scores, axis=1, kind="stable")


def best_images(scores: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The images of the best slots, each once, three of each query."""
    return np.array([list(dict.fromkeys(row.tolist()))[:3] for row in images[ranked(scores)]])


def cosines(products: np.ndarray, keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    return products / np.linalg.norm(keys, axis=1) / np.linalg.norm(queries, axis=1)[:, None]


def test_datapoints_are_those_that_were_trained_on(recorded: Recorded):
    points = ask_datapoints(recorded.memory)
    assert points.datasets.tolist() == recorded.names
    assert points.labels.tolist() == recorded.labels
    assert points.samples.tolist() == recorded.samples
    assert points.steps.tolist() == [slot // BATCH for slot in range(STEPS * BATCH)]
    kinds = sorted(set(zip(recorded.names, recorded.samples, strict=True)))
    assert len(points.visits) == len(kinds)
    for slot in (0, 17, 1000):
        assert kinds[points.images[slot]] == (recorded.names[slot], recorded.samples[slot])


@pytest.mark.parametrize("layer", LAYERS)
def test_lengths_of_keys(recorded: Recorded, layer: str):
    np.testing.assert_allclose(
        ask_key_norms(recorded.memory, layer), np.linalg.norm(recorded.keys(layer), axis=1), rtol=1e-12
    )


@pytest.mark.parametrize("number", [0, 1])
def test_attention_is_that_of_float64(recorded: Recorded, number: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "_AT_ONCE", 17)
    points = ask_datapoints(recorded.memory)
    found = ask_attention(recorded.memory, LAYERS, recorded.checkpoint(number), recorded.datasets, points)
    groups = [(name, label) for name in ("mnist", "fashion-mnist") for label in range(10)]
    slots = np.array(groups, dtype=object)
    own = list(zip(recorded.names, recorded.labels, strict=True))
    member = np.array([[one == tuple(group) for group in slots] for one in own], dtype=np.float64)
    for one, layer in zip(found, LAYERS, strict=True):
        scores = np.abs(recorded.products(layer, number))
        assert (one.layer, list(one.groups)) == (layer, groups)
        np.testing.assert_allclose(one.sums, scores @ member, rtol=1e-6)
        np.testing.assert_array_equal(one.best, best_images(scores, points.images))
        assert all(len(set(row)) == 3 for row in one.best.tolist()), "three images, not three visits"


def test_classes_without_datapoints_have_no_attention(recorded: Recorded):
    begun = Checkpoint(recorded.datasets[0], 1, last=True)
    points = ask_datapoints(recorded.memory)
    (found,) = ask_attention(recorded.memory, ["layer-1"], begun, recorded.datasets, points)
    trained = set(zip(recorded.names[:BATCH], recorded.labels[:BATCH], strict=True))
    assert len(trained) < len(found.groups) == 20
    for column, group in enumerate(found.groups):
        assert found.sums[:, column].any() == (group in trained)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_greatest_weight_in_each_class(recorded: Recorded, layer: str):
    rows = np.array([0, 6, 16])
    found = ask_greatest(recorded.memory, layer, recorded.checkpoint(1), rows, recorded.datasets)
    scores = np.abs(recorded.products(layer, 1, rows))
    names, labels = np.array(recorded.names), np.array(recorded.labels)
    for column, (name, label) in enumerate((name, label) for name in ("mnist", "fashion-mnist") for label in range(10)):
        np.testing.assert_allclose(
            found[:, column], scores[:, (names == name) & (labels == label)].max(axis=1), rtol=1e-6
        )


def test_rows_are_drawn_once_each():
    assert sampled_rows(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    drawn = sampled_rows(1000, 200, 1)
    assert len(set(drawn.tolist())) == 200
    assert drawn.tolist() == sorted(drawn.tolist())
    assert drawn.tolist() == sampled_rows(1000, 200, 1).tolist() != sampled_rows(1000, 200, 2).tolist()


def test_hubs_are_those_of_float64(recorded: Recorded):
    points = ask_datapoints(recorded.memory)
    norms = {layer: ask_key_norms(recorded.memory, layer) for layer in LAYERS}
    seen = [
        (checkpoint, ask_attention(recorded.memory, LAYERS, checkpoint, recorded.datasets, points))
        for checkpoint in (recorded.checkpoint(0), recorded.checkpoint(1))
    ]
    assert COMPARED >= 120, "all test images are compared"
    for hubs in ask_hubs(recorded.memory, seen, points, norms):
        keys = recorded.keys(hubs.layer)
        products = [recorded.products(hubs.layer, number) for number in (0, 1)]
        queries = [
            recorded.memory.query_set(one.query_set, hubs.layer).queries.astype(np.float64)
            for one in (recorded.checkpoint(0), recorded.checkpoint(1))
        ]
        signed = np.concatenate(products)
        cosine = np.concatenate([cosines(own, keys, asked) for own, asked in zip(products, queries, strict=True)])
        for ranking, scores in {"weight": np.abs(signed), "signed": signed, "cosine": cosine}.items():
            expected = np.bincount(best_images(scores, points.images).ravel(), minlength=len(points.visits))
            assert getattr(hubs, ranking).counts.tolist() == expected.tolist()
            assert getattr(hubs, ranking).queries == 120
        means = [norms[hubs.layer][points.images == image].mean() for image in range(len(points.visits))]
        np.testing.assert_allclose(hubs.norms, means, rtol=1e-12)


def test_dates_are_those_of_float64(recorded: Recorded):
    points = ask_datapoints(recorded.memory)
    assert SAMPLED >= 60, "all test images are dated"
    for layer, dates in ask_dates(recorded.memory, LAYERS, recorded.checkpoint(1), points).items():
        expected = points.steps[ranked(recorded.products(layer, 1))[:, :500]]
        np.testing.assert_array_equal(dates.steps, expected)
        assert dates.updates == STEPS


def test_best_slots_are_those_of_the_mask(recorded: Recorded):
    found = best_slots(recorded.memory, "layer-1", "test-mnist", np.array([3, 5]), 4, "step < 10", "dot")
    assert (found < 10 * BATCH).all()
    assert found.shape == (2, 4)
