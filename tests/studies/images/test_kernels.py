"""Softmax attention in place of the inner product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualform
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.kernels import KernelsRecipe, ask_kernels, attend, kernel_verdict
from dualform_studies.images.training import Recipe, epochs, record

LAYERS = ("layer-0", "layer-1", "layer-2")
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
