from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualform
from dualform.query.engine import open_memory
from dualform.store.snapshot import Snapshot
from dualform_studies.assignment import Assignment
from dualform_studies.data_folder import data_folder
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.kernels import page as kernels_page
from dualform_studies.images.single.error_norm import error_norm_sums
from dualform_studies.images.single.page import beside_paper
from dualform_studies.images.single.study import SingleRecipe, run_single
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.studies import run_study
from tests.studies.images.at_hand import at_hand

LAYERS = ("layer-0", "layer-1", "layer-2")
BATCH = 32


@pytest.fixture(scope="module")
def miniature(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The study on made-up patterns, half learned: some test images are wrong. Two runs, looked at twice."""
    out = tmp_path_factory.mktemp("single") / "run"
    recipe = SingleRecipe(Recipe(hidden=(48, 32), lr=0.004, batch=BATCH, steps=60), moments=(20,))
    return out, run_single(Assignment(out, made_up_data, runs=2), recipe)


def recorded(out: Path, layer: str, query_set: str, steps: int) -> tuple[np.ndarray, ...]:
    """Float64 queries and keys of the slots of the first steps, labels of those slots, and all test labels and
    classes given."""
    memory = Snapshot.open(out)
    slots = np.arange(steps * BATCH)
    assert memory.column("sample", "step")[slots[-1]] == steps - 1
    keys = memory.keys(layer).of_entries(slots).astype(np.float64)
    stored = memory.query_set(query_set)
    given = stored.outputs.argmax(axis=1)
    labels = np.asarray(memory.column("sample", "label"))[slots]
    return stored.queries(layer).astype(np.float64), keys, labels, stored.labels, given


def cells_of(sums: np.ndarray, labels: np.ndarray, given: np.ndarray) -> dict[str, float | None]:
    strongest, right = sums.argmax(axis=1), given == labels

    def percent(hits: list[bool]) -> float | None:
        return 100 * float(np.mean(hits)) if hits else None

    rows = range(len(labels))
    return {
        "no_target": percent([bool(strongest[i] == labels[i]) for i in rows if not right[i]]),
        "no_output": percent([bool(strongest[i] == given[i]) for i in rows if not right[i]]),
        "yes": percent([bool(strongest[i] == labels[i]) for i in rows if right[i]]),
    }


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("look", "query_set"), [(20, "test-mnist-at-20"), (60, "test-mnist")])
def test_cells_of_table_1_are_those_of_float64_over_the_recorded_keys(miniature, layer: str, look: int, query_set: str):
    out, report = miniature
    queries, keys, labels, true, given = recorded(out, layer, query_set, look)
    scores = np.abs(queries @ keys.T)
    sums = np.stack([scores[:, labels == label].sum(axis=1) for label in range(10)], axis=1)
    expected = cells_of(sums, true, given)
    assert {cell: found["runs"][0] for cell, found in report["table_1"][str(look)][layer].items()} == expected
    assert report["accuracy"][str(look)][0] == (true == given).mean()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("look", "query_set"), [(20, "test-mnist-at-20"), (60, "test-mnist")])
def test_sums_weighted_by_the_errors_norm_are_those_of_float64(miniature, layer: str, look: int, query_set: str):
    out, report = miniature
    memory = Snapshot.open(out)
    queries, keys, labels, true, given = recorded(out, layer, query_set, look)
    errors = memory.values(layer).block(0, look * BATCH).astype(np.float64)
    factors = memory.table("factors").to_pylist()
    clip = {row["step"]: row["factor"] for row in factors if row["parameter"] == f"{layer}.weight"}
    norms = np.empty(look * BATCH)
    for slot in range(look * BATCH):
        step = slot // BATCH
        # SGD with momentum m and a constant rate: a_s(T) = -lr (1 - m^(T-s)) / (1 - m), times the clipping's factor.
        share = 0.004 * (1 - 0.9 ** (look - step)) / (1 - 0.9)
        norms[slot] = share * clip[step] * np.linalg.norm(errors[slot])
    scores = np.abs(queries @ keys.T) * norms
    expected = np.stack([scores[:, labels == label].sum(axis=1) for label in range(10)], axis=1)
    with open_memory(out) as engine:
        classes, sums = error_norm_sums(engine, layer, query_set, look)
    assert classes.tolist() == list(range(10))
    np.testing.assert_allclose(sums, expected, rtol=2e-5)
    if look == 60:
        assert report["error_norm"][layer] == cells_of(expected, true, given)


def test_miniature_says_what_the_full_study_says(miniature):
    out, report = miniature
    assert json.loads((out / "report" / "report.json").read_text()) == report
    assert report["training_images"] == (np.random.RandomState(0xC1CAFA52).rand(334) > 0.2).sum()
    assert report["slots"] == 60 * BATCH
    first = report["table_1"]["60"]["layer-2"]["yes"]
    assert first["mean"] == pytest.approx(np.mean(first["runs"]))
    assert first["deviation"] == pytest.approx(np.std(first["runs"], ddof=1))
    assert first["points_off"] == pytest.approx(first["mean"] - 84.7)
    assert first["deviations_off"] == pytest.approx((first["mean"] - 84.7) / 1.1)
    assert all(layer["exact"] and layer["reconstruction_error"] < 1e-4 for layer in report["verify"].values())
    assert {table["name"] for table in report["tables"]} >= {
        "accuracy", "claims", "table-1", "table-1-runs", "error-norm", "prevalence", "hubs", "dates",
        "kernels-last", "kernels-every"
    }  # fmt: skip
    headings = [claim["heading"] for claim in report["claims"]]
    assert headings[:2] == ["Table 1", "Table 1"]
    assert set(headings[2:]) == {
        "How often the observations hold", "When the best datapoints were trained on", "Weighted by the error's norm",
        kernels_page.HEADING,
    }  # fmt: skip
    page = (out / "report" / "index.md").read_text()
    assert all(f"## {heading}\n" in page for heading in headings)
    assert report["variant"]
    assert report["beside_paper"] == []
    assert "Each network learns by a variant of the recipe of the paper's code: 60 updates" in page
    (table,) = (table for table in report["tables"] if table["name"] == "accuracy")
    assert [row[-2:] for row in table["rows"]] == [["-", "-"], ["-", "-"]]
    (table,) = (table for table in report["tables"] if table["name"] == "table-1")
    assert "a variant, 60 updates" in table["columns"]


def test_each_accuracy_stands_beside_those_of_as_many_updates(miniature):
    by_step = dict(zip(("3000", "5000"), miniature[1]["table_1"].values(), strict=True))
    report = {"accuracy": {"3000": [0.965], "5000": [0.972, 0.974]}, "table_1": by_step, "steps": 5000}
    rows = list(beside_paper(report | {"variant": False}))
    assert [(row.what, row.ours, row.text, row.code) for row in rows[:2]] == [
        ("accuracy after 5,000 updates", "97.3 %", "", "97.2 %, 97.4 %"),
        ("accuracy after 3,000 updates", "96.5 %", "97 %", ""),
    ]
    assert len(rows) == 2 + 9


def test_a_datapoints_sample_is_its_row_in_the_training_file(miniature, made_up_data: Path):
    memory, dataset = Snapshot.open(miniature[0]), load_dataset("mnist", made_up_data)
    samples, labels = (np.asarray(memory.column("sample", name)) for name in ("sample", "label"))
    assert set(samples) == set(dataset.split.trained.tolist())
    np.testing.assert_array_equal(labels, dataset.train.labels[samples])
    keys = memory.keys("layer-0").of_entries(np.arange(len(samples)))
    np.testing.assert_array_equal(keys, dataset.inputs(dataset.train, samples))


def test_only_the_first_runs_memory_stays(miniature):
    out, _ = miniature
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        "gallery", "probes", "report", "shard-00000", "weights"
    ]  # fmt: skip
    with dualform.open(out) as memory:
        assert [query_set.name for query_set in memory.info().query_sets] == ["test-mnist-at-20", "test-mnist"]


def test_the_figures_are_the_papers_and_their_queries_recognised(miniature):
    out, report = miniature
    page = (out / "report" / "index.html").read_text()
    for figure in ("Figure 4", "Figure 5", "Figure 10", "Figure 13", "Figure 14", "Figure 15"):
        assert f"({figure} of the paper)" in page
    assert set(report["examples"]) == {"digit-6", "digit-3"}
    with dualform.open(out) as memory:
        for digit, example in report["examples"].items():
            name, row = example["query"].split("/")
            query_set = memory.query_set(name)
            assert name == "test-mnist"
            assert query_set.outputs[int(row)].argmax() == query_set.labels[int(row)] == int(digit[-1])
            assert example["how"] in page
            for drawn in example["figures"]:
                assert f'src="{drawn}"' in page


@pytest.mark.usefixtures("fewer_test_images", "blank_figures")
def test_real_data_in_miniature(tmp_path: Path):
    if not at_hand("mnist", None):
        pytest.skip(f"no mnist in {data_folder(None)}: set DUALFORM_DATA to the folder that holds it")
    report = run_study("single", Assignment(tmp_path / "run", steps=40, runs=1))
    assert report["training_images"] == 40_053
    assert report["slots"] == 40 * 128
    assert report["accuracy"]["40"][0] > 0.3
    assert set(report["table_1"]) == {"40"}
