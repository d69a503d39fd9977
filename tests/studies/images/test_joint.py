"""The study joint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualform
from dualform.store.snapshot import Snapshot
from dualform_studies.assignment import Assignment, data_folder
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.joint import BESIDE, beside_paper, joint_page, run_joint
from dualform_studies.images.training import Recipe
from dualform_studies.studies import run_study
from tests.studies.images.files import at_hand


@pytest.fixture(scope="module")
def miniature(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("joint") / "run"
    return out, run_joint(Assignment(out, made_up_data, 60), Recipe(hidden=(48, 32), lr=0.05, batch=32))


def test_miniature_says_what_the_full_study_says(miniature):
    out, report = miniature
    assert json.loads((out / "report" / "report.json").read_text()) == report
    assert report["slots"] == 60 * 32
    assert report["training_images"] == 2 * (np.random.RandomState(0xC1CAFA52).rand(334) > 0.2).sum()
    assert all(accuracy > 0.8 for accuracy in report["accuracy"].values())
    assert list(report["variants"]) == ["no clipping", "all 800 training images"]
    assert all(set(found) == {"mnist", "fashion-mnist"} for found in report["variants"].values())
    assert all(layer["exact"] and layer["reconstruction_error"] < 1e-4 for layer in report["verify"].values())


def test_accuracies_stand_beside_the_papers_text_and_code(miniature):
    out, report = miniature
    report = report | {"variant": False}
    rows = list(beside_paper(report))
    assert [(row.text, row.code) for row in rows] == [("97 %", "96.1 %"), ("87 %", "87.0 %")]
    page = joint_page(out, report, BESIDE)
    assert "by the recipe of the paper's code: 60 updates" in page.items[0].text
    (table,) = (table for table in page.tables() if table.name == "accuracy")
    assert [row[0] for row in table.rows] == [
        "this training", "variant: no clipping", "variant: all 800 training images", "the paper's text",
        "the paper's code, run again",
    ]  # fmt: skip


def test_nothing_of_the_paper_stands_beside_a_variant_of_its_recipe(miniature):
    out, report = miniature
    assert report["variant"]
    assert report["beside_paper"] == []
    (table,) = (table for table in report["tables"] if table["name"] == "accuracy")
    assert [row[0] for row in table["rows"]] == [
        "this training", "variant: no clipping", "variant: all 800 training images"
    ]  # fmt: skip
    assert "by a variant of the recipe of the paper's code: 60 updates" in (out / "report" / "index.md").read_text()


def test_each_slot_is_of_its_images_dataset(miniature, made_up_data: Path):
    memory = Snapshot.open(miniature[0])
    names, samples, labels = (np.asarray(memory.column("sample", name)) for name in ("dataset", "sample", "label"))
    keys = memory.keys("layer-0").of_entries(np.arange(60 * 32))
    assert 0.4 < (names == "mnist").mean() < 0.6
    for name in ("mnist", "fashion-mnist"):
        dataset, own = load_dataset(name, made_up_data), names == name
        np.testing.assert_array_equal(keys[own], dataset.inputs(dataset.train, samples[own]))
        np.testing.assert_array_equal(labels[own], dataset.train.labels[samples[own]])
        assert set(samples[own]) == set(dataset.split.trained.tolist())


@pytest.mark.parametrize("layer", ["layer-0", "layer-1", "layer-2"])
def test_attention_across_datasets_is_that_of_float64(miniature, layer: str):
    out, report = miniature
    memory = Snapshot.open(out)
    keys = memory.keys(layer).of_entries(np.arange(60 * 32)).astype(np.float64)
    names, samples = (np.asarray(memory.column("sample", name)) for name in ("dataset", "sample"))
    images = list(zip(names.tolist(), samples.tolist(), strict=True))
    for dataset, found in report["crossing"].items():
        scores = np.abs(memory.query_set(f"test-{dataset}").queries(layer).astype(np.float64) @ keys.T)
        ranked = np.argsort(-scores, axis=1, kind="stable").tolist()
        best = [list(dict.fromkeys(images[slot] for slot in row))[:3] for row in ranked]
        assert found[layer]["queries"] == 60
        assert found[layer]["near"] == np.mean([any(name != dataset for name, _ in row) for row in best])
        assert found[layer]["sums"] == pytest.approx(
            (scores[:, names != dataset].sum(axis=1) / scores.sum(axis=1)).mean(), rel=1e-6
        )


def test_the_figures_are_the_papers_with_twenty_groups(miniature):
    out, report = miniature
    page = (out / "report" / "index.html").read_text()
    for figure in (6, 7, 11, *range(16, 22)):
        assert f"(Figure {figure} of the paper)" in page
    assert [example["label"] for example in report["examples"].values()] == ["ankle boot", "dress", "sandal"]
    with dualform.open(out) as memory:
        query_set = memory.query_set("test-fashion-mnist")
        right = query_set.outputs.argmax(axis=1) == query_set.labels
        for example in report["examples"].values():
            name, row = example["query"].split("/")
            assert name == "test-fashion-mnist"
            assert right[int(row)]
            assert example["how"] in page
            assert all(len(layer["sums"]) == 20 for layer in example["layers"].values())


def test_the_rank_of_the_querys_own_class(miniature):
    _, report = miniature
    (table,) = (table for table in report["tables"] if table["name"] == "strongest")
    assert len(table["rows"]) == 9
    shown = [(one, layer) for one in report["examples"].values() for layer in one["layers"].values()]
    for row, (example, layer) in zip(table["rows"], shown, strict=True):
        sums = sorted((one["sum"] for one in layer["sums"]), reverse=True)
        (own,) = (one["sum"] for one in layer["sums"] if [one["dataset"], one["label"]] == example["group"])
        assert row[-1] == 1 + sums.index(own)
        assert row[-2] == f"{100 * own / sum(sums):.1f}"


@pytest.mark.usefixtures("fewer_test_images", "blank_figures")
def test_real_data_in_miniature(tmp_path: Path):
    missing = [name for name in ("mnist", "fashion-mnist") if not at_hand(name, None)]
    if missing:
        pytest.skip(
            f"no {' or '.join(missing)} in {data_folder(None)}: set DUALFORM_DATA to the folder that holds them"
        )
    report = run_study("joint", Assignment(tmp_path / "run", steps=20))
    assert report["slots"] == 20 * 128
    assert report["training_images"] == 2 * 40_053
    assert "clipped to norm 1" in report["recipe"], "the study's own recipe"
    assert report["accuracy"]["mnist"] > 0.2
