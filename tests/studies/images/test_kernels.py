"""Softmax attention in place of the inner product."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import dualform
from dualform_studies.images import kernels
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.kernels import (
    ALONE,
    HEADING,
    Attended,
    KernelsRecipe,
    Share,
    ask_kernels,
    attend,
    draw_kernels,
    kernel_claims,
    kernel_verdict,
    show_kernels,
)
from dualform_studies.images.training import Recipe, batch_rows, batches, record
from dualform_studies.report import Page, Paragraph, percent, report_folder

LAYERS = ("layer-0", "layer-1", "layer-2")
RECIPE = KernelsRecipe((0.05, 2.0, 300.0), last=4, every=3)


@pytest.fixture(scope="module")
def trained(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, dict[str, Any]]:
    """A memory of a short training, its dataset, and the report."""
    out, dataset = tmp_path_factory.mktemp("kernels") / "run", load_dataset("mnist", made_up_data)
    recipe = Recipe(hidden=(24, 16), lr=0.004, batch=32, steps=60)
    record([dataset], batches(dataset, batch_rows(dataset.split.trained, recipe, seed=0, part=0)), recipe, 0, out)
    return out, dataset, ask_kernels(out, dataset, LAYERS, recipe=RECIPE)


def first_of_each(labels: np.ndarray, rows: np.ndarray, count: int) -> list[int]:
    return sorted(row for label in range(10) for row in [row for row in rows if labels[row] == label][:count])


def images(dataset: Any, count: int, *, tested: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels: the first of each class, of the test file or of what the split holds out."""
    if tested:
        rows = first_of_each(dataset.test.labels, np.arange(len(dataset.test)), count)
        return dataset.inputs(dataset.test, rows), dataset.test.labels[rows]
    left = [row for row in range(len(dataset.train)) if row not in set(dataset.split.kept.tolist())]
    rows = first_of_each(dataset.train.labels, np.array(left), count)
    return dataset.inputs(dataset.train, rows), dataset.train.labels[rows]


def test_sums_are_those_of_the_engine(trained):
    queries = np.random.default_rng(0).normal(size=(7, 24)).astype(np.float32)
    shares = [Share(slice(0, 7), 0.05), Share(slice(2, 4), 2.0), Share(slice(4, 7), 1e4)]
    with dualform.open(trained[0]) as memory:
        for share, found in zip(shares, attend(memory, "layer-1", queries, shares), strict=True):
            exact = memory.output(
                "layer-1", queries[share.queries], kernel="softmax", temperature=share.temperature, initial=False
            )
            np.testing.assert_allclose(found.sums, exact, rtol=1e-3, atol=1e-5 * np.abs(exact.values).max())
            np.testing.assert_allclose(found.effective_slots, exact.effective_slots, rtol=1e-3)


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
                queries, medians = inputs, []
                for layer in LAYERS:
                    kernel = {"initial": row["initial"]}
                    if row["temperature"] is not None:
                        kernel |= {"kernel": "softmax", "temperature": row["temperature"]}
                    if place == "last" and layer != LAYERS[-1]:
                        kernel = {}
                    answer = memory.output(layer, queries, **kernel)
                    if answer.effective_slots is not None:
                        medians.append(np.median(answer.effective_slots))
                    queries = np.maximum(answer.values, 0) if layer != LAYERS[-1] else answer.values
                assert row[name] == pytest.approx((queries.argmax(axis=1) == labels).mean())
                if name == "tested":
                    np.testing.assert_allclose(row["effective_slots"], medians, rtol=1e-3)


def test_what_stands_beside_is_the_initial_weights_with_the_bias_of_the_end(trained):
    out, dataset, report = trained
    inputs, labels = images(dataset, RECIPE.every, tested=True)
    with dualform.open(out) as memory:
        for layer in LAYERS:
            alone = memory.output(layer, inputs).values - memory.output(layer, inputs, initial=False).values
            inputs = np.maximum(alone, 0)
    assert report["every"]["alone"]["tested"] == pytest.approx((alone.argmax(axis=1) == labels).mean())


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
    assert trained[2]["last"]["off"] < 1e-3


def of_softmax(gained: int, lost: int) -> dict[str, Any]:
    return {"temperature": 1.0, "gained": gained, "lost": lost}


LINEAR = {"temperature": None, "gained": 90, "lost": 0}
NO_BETTER = of_softmax(9, 9)


@pytest.mark.parametrize(
    ("gained", "lost", "verdict"),
    [(13, 2, "holds"), (2, 13, "does not hold"), (12, 2, "does not hold"), (0, 0, "does not hold")],
)
def test_a_kernel_is_better_where_chance_is_ruled_out(gained: int, lost: int, verdict: str):
    chosen = of_softmax(gained, lost)
    assert kernel_verdict({"chosen": chosen, "kernels": [LINEAR, chosen]}) == verdict


@pytest.mark.parametrize(
    ("gained", "lost", "verdict"), [(20, 2, "holds in part"), (13, 2, "does not hold"), (2, 20, "does not hold")]
)
def test_a_kernel_that_was_not_chosen_counts_in_part_by_a_bound_over_the_number_tried(
    gained: int, lost: int, verdict: str
):
    other = of_softmax(gained, lost)
    assert kernel_verdict({"chosen": NO_BETTER, "kernels": [LINEAR, NO_BETTER, other]}) == verdict
    assert kernel_verdict({"chosen": NO_BETTER, "kernels": [LINEAR, NO_BETTER], "scaled": [other]}) == verdict


def test_each_place_has_the_inner_products_errors_on_its_own_images(trained, tmp_path, monkeypatch):
    report, drawn = trained[2], []

    @contextmanager
    def kept(path, height):
        drawn.append(Figure())
        yield drawn[0]

    monkeypatch.setattr(kernels, "new_figure", kept)
    draw_kernels(tmp_path / "kernels.png", report)
    errors = {line.get_label(): line.get_ydata() for line in drawn[0].axes[0].lines}
    for place, words in (("last", "the last layer"), ("every", "every layer")):
        wrong = 100 * (1 - report[place]["kernels"][0]["tested"])
        assert set(errors[f"{words}, inner product"]) == {max(wrong, 50 / report[place]["images"]["tested"])}


def test_no_error_is_drawn_as_half_an_image():
    assert kernels.error({"tested": 1.0}, 200) == 0.25
    assert kernels.error({"tested": 0.99995}, 20_000) == pytest.approx(0.005)


def test_what_is_said_of_the_check_holds_of_effective_slots(trained, monkeypatch):
    out, dataset, _ = trained
    right = kernels.attend

    def wrong(*of):
        return [Attended(one.sums, 2 * one.effective_slots) for one in right(*of)]

    monkeypatch.setattr(kernels, "attend", wrong)
    assert ask_kernels(out, dataset, LAYERS, recipe=KernelsRecipe((2.0,), last=2, every=2))["last"]["off"] > 0.99


def test_the_page_shows_every_kernel(trained, tmp_path):
    report, page = trained[2], Page(tmp_path, "Kernels")
    draw_kernels(report_folder(tmp_path) / "kernels.png", report)
    show_kernels(page, report)
    last, every = page.tables()
    softmax = [f"softmax of temperature {temperature}" for temperature in ("0.05", "2", "300")]
    assert [row[0] for row in last.rows] == ["inner product", *softmax, ALONE]
    assert [row[0] for row in every.rows] == ["inner product"] * 2 + softmax * 2 + [ALONE]
    claims = list(kernel_claims(report))
    assert {claim.heading for claim in claims} == {HEADING}
    assert f"of {len(images(trained[1], 4, tested=True)[1])} test images" in claims[0].ours
    text = " ".join(item.text for item in page.items if isinstance(item, Paragraph))
    for place, words in (("last", "the last layer"), ("every", "every layer")):
        beside = [row["tested"] for row in report[place]["kernels"] if row["temperature"] and row["initial"]]
        assert f"At {words}, W_0 q + b alone recognises {percent(report[place]['alone']['tested'])} of" in text
        assert percent(min(beside)) in text
        assert percent(max(beside)) in text
