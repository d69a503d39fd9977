from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualform
from dualform_studies.assignment import Assignment
from dualform_studies.data_folder import data_folder
from dualform_studies.images.continual.page import _classes, beside_paper
from dualform_studies.images.continual.study import run_continual
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.pages.words import percent
from dualform_studies.studies import run_study
from tests.studies.images.at_hand import at_hand

MOMENTS = {"after_first", "final", "masked", "as_of_first"}


@pytest.fixture(scope="module")
def miniature(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Any]]:
    """The study on made-up patterns with a small network; its folder, report and what progress was told."""
    out, told = tmp_path_factory.mktemp("continual") / "run", []
    recipe = Recipe(hidden=(48, 32), lr=0.05, batch=32)
    report = run_continual(Assignment(out, made_up_data, 40, progress=lambda *line: told.append(line)), recipe)
    return out, report, told


def check_report(report: dict[str, Any], slots: int) -> None:
    assert report["slots"] == slots
    assert set(report["accuracy"]) == {"mnist", "fashion-mnist"}
    assert all(set(moments) == MOMENTS for moments in report["accuracy"].values())
    first = report["accuracy"]["mnist"]
    assert first["as_of_first"] == pytest.approx(first["after_first"], abs=0.002)
    assert set(report["verify"]) == {"layer-0", "layer-1", "layer-2"}
    assert all(layer["exact"] and layer["reconstruction_error"] < 1e-4 for layer in report["verify"].values())
    assert all(error < 1e-4 for error in report["weights_as_of_first"].values())
    assert report["unharmed"] is True


def test_miniature_reports_what_the_full_study_does(miniature):
    out, report, _ = miniature
    check_report(report, slots=2 * 40 * 32)
    assert report["accuracy"]["mnist"]["after_first"] > 0.9
    assert set(report["cancellation"]) == {"layer-0", "layer-1", "layer-2"}
    assert all(figure >= 1 and math.isfinite(figure) for figure in report["cancellation"].values())
    assert report["training_images"] == 2 * (np.random.RandomState(0xC1CAFA52).rand(334) > 0.2).sum()
    assert report["disk_bytes"] > 2 * 40 * 32 * (48 + 32 + 10) * 4
    assert json.loads((out / "report" / "report.json").read_text()) == report


def test_miniature_leaves_a_memory_with_query_sets_and_label_names(miniature):
    with dualform.open(miniature[0]) as memory:
        info = memory.info()
        assert info.datasets == {"mnist": 40 * 32, "fashion-mnist": 40 * 32}
        assert {query_set.name: query_set.rows for query_set in info.query_sets} == {
            "test-mnist": 60,
            "test-fashion-mnist": 60,
        }
        assert memory.query_set("test-mnist").labels.tolist() == [row % 10 for row in range(60)]
        names = memory.sql("SELECT name FROM labels WHERE dataset = 'fashion-mnist' AND label = 9")
        assert names["name"].tolist() == ["ankle boot"]
        repeating = {layer.name: layer.distinct_keys for layer in info.layers}
        assert repeating["layer-0"] <= 800
        assert repeating["layer-1"] == 2 * 40 * 32


def test_each_datapoint_is_of_the_dataset_of_its_part_and_of_the_images_trained_on(miniature, made_up_data: Path):
    with dualform.open(miniature[0]) as memory:
        slots = memory.sql("SELECT step, dataset, label, sample FROM slots ORDER BY slot")
    for part, name in enumerate(("mnist", "fashion-mnist")):
        dataset, own = load_dataset(name, made_up_data), slots["dataset"] == name
        np.testing.assert_array_equal(own, slots["step"] // 40 == part)
        assert set(slots["sample"][own]) <= set(dataset.split.trained.tolist())
        np.testing.assert_array_equal(slots["label"][own], dataset.train.labels[slots["sample"][own]])


def test_accuracies_stand_beside_the_papers_text_and_code():
    accuracy = {name: dict.fromkeys(MOMENTS, 0.5) for name in ("mnist", "fashion-mnist")}
    words = {"after_first": "after mnist", "final": "at the end", "masked": "at the end,\nfashion-mnist removed"}
    found = list(beside_paper({"accuracy": accuracy, "variant": False}, words))
    assert [(row.what, row.text, row.code) for row in found] == [
        ("mnist, after mnist", "97 %", "96.4 %"),
        ("mnist, at the end", "45 %", "47.8 %"),
        ("fashion-mnist, at the end", "85 %", "87.6 %"),
        ("mnist, at the end, fashion-mnist removed", "as after MNIST", ""),
    ]


def test_nothing_of_the_paper_stands_beside_a_variant_of_its_recipe(miniature):
    out, report, _ = miniature
    assert report["variant"]
    assert report["beside_paper"] == []
    (table,) = (table for table in report["tables"] if table["name"] == "accuracy")
    assert table["columns"] == ["network", "mnist", "fashion-mnist"]
    text = (out / "report" / "index.md").read_text()
    assert "One network learns MNIST for 40 updates" in text
    assert "It does so by a variant of the recipe of the paper's code: SGD" in text


def test_the_page_says_in_figures_what_is_forgotten_and_what_comes_back(miniature):
    out, report, _ = miniature
    text = (out / "report" / "index.md").read_text()
    told = {moment: percent(reached) for moment, reached in report["accuracy"]["mnist"].items()}
    assert f"{told['after_first']} are recognised after mnist, {told['final']} at the end, and {told['masked']}" in text
    assert "The sum as of step 40 has none of it" in text


def of_part(label: int | None, masked: float, retrained: float, moved: float, cancellation: float) -> dict[str, Any]:
    measures = {"moved": {"layer-0": moved, "layer-1": 0.1}, "cancellation": {"layer-0": 1.0, "layer-1": cancellation}}
    return {"label": label, "masked": {"second": masked}, "retrained": {"second": retrained}} | measures


@pytest.mark.parametrize(
    ("moved", "masked", "told"), [(2.0, 0.1, True), (0.5, 0.1, False), (2.0, 0.8, False), (2.0, 0.9, False)]
)
def test_a_masked_class_is_explained_where_its_terms_go_further_than_all(moved: float, masked: float, told: bool):
    nothing, whole = of_part(None, 0.9, 0.9, 0, 1), of_part(None, 0.1, 0.1, 0.7, 200)
    text = _classes([nothing, whole, of_part(0, 0.15, 0.7, 3, 2), of_part(1, masked, 0.8, moved, 1.2)], "second")
    assert "70 to 80 % of second right" in text
    assert f"move the weights {moved:.1f} to 3.0 times as far" in text
    assert "those of all of second 0.7 times; the cancellation is 1.2 to 2.0 of one class, and 200.0 of all" in text
    assert ("So the terms of each class go further" in text) == told


def test_miniature_draws_its_figures(miniature):
    out, report, _ = miniature
    drawn = {path.name for path in (out / "report").glob("*.png")}
    swept = {"accuracy.png", "masks.png", "last-steps.png", "hubs.png", "hub-distribution.png"}
    swept |= {"dates-mnist.png", "dates-fashion-mnist.png"}
    assert drawn == swept | {name for example in report["examples"].values() for name in example["figures"]}
    assert "recognised-fashion-mnist" in report["examples"]
    assert {path.stem for path in (out / "report").glob("*.svg")} == {Path(name).stem for name in drawn}
    page = (out / "report" / "index.html").read_text()
    assert all(f'src="{name}"' in page for name in drawn)


def test_captions_name_the_papers_figures(miniature):
    out, report, _ = miniature
    page = (out / "report" / "index.md").read_text()
    beside = {
        "interference": ("Figure 8", "Figure 9", "Figure 22"),
        "recognised-fashion-mnist": ("Figure 24", "Figure 25", "Figure 23"),
        "recognised-mnist": ("Figure 27", "Figure 28", "Figure 26"),
    }
    for name in report["examples"]:
        assert all(f"({figure} of the paper)" in page for figure in beside[name])


def test_every_claim_leads_to_a_heading(miniature):
    out, report, _ = miniature
    page = (out / "report" / "index.md").read_text()
    headings = {claim["heading"] for claim in report["claims"]}
    assert "Forgetting" in headings
    assert all(f"## {heading}\n" in page for heading in headings)


def test_every_mask_stands_beside_a_retraining_and_its_cancellation(miniature):
    out, report, _ = miniature
    rows = report["masks"]
    assert [row["part"] for row in rows[:3]] == ["nothing", "all of fashion-mnist", "its class 0, t-shirt"]
    for moment, kind in (("masked", "masked"), ("after_first", "retrained")):
        for dataset in ("mnist", "fashion-mnist"):
            assert rows[1][kind][dataset] == report["accuracy"][dataset][moment]
    assert all(set(row["cancellation"]) == set(report["verify"]) for row in rows[1:])
    table = json.loads((out / "report" / "masks.json").read_text())
    assert len(table["rows"]) == len(rows)


def test_progress_counts_every_step_of_both_trainings(miniature):
    told = miniature[2]
    for kind in ("unrecorded", "recorded"):
        for name in ("mnist", "fashion-mnist"):
            assert (f"training on {name} ({kind})", 40, 40) in told


@pytest.mark.usefixtures("fewer_test_images", "blank_figures")
def test_real_data_in_miniature(tmp_path: Path):
    missing = [name for name in ("mnist", "fashion-mnist") if not at_hand(name, None)]
    if missing:
        pytest.skip(
            f"no {' or '.join(missing)} in {data_folder(None)}: set DUALFORM_DATA to the folder that holds them"
        )
    report = run_study("continual", Assignment(tmp_path / "run", steps=20))
    check_report(report, slots=2 * 20 * 128)
    assert report["accuracy"]["mnist"]["after_first"] > 0.3
