"""The demo."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dualform
from dualform.errors import AlreadyExists
from dualform_studies.demo import DEMO_RECIPE, run_demo
from dualform_studies.images.datasets import digits, permuted

SMALLER = replace(DEMO_RECIPE, hidden=(32, 32), steps=150)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "run"
    return out, run_demo(out, recipe=SMALLER)


def test_the_first_digits_are_forgotten_and_the_mask_brings_them_back(demo):
    accuracy = demo[1]["accuracy"]
    first = accuracy["digits"]
    assert first["after_first"] > 0.9
    assert first["final"] < 0.75
    assert first["masked"] > first["after_first"] - 0.05
    assert first["as_of_first"] == pytest.approx(first["after_first"], abs=0.005)
    assert accuracy["permuted-digits"]["final"] > 0.85


def test_the_reconstruction_stands(demo):
    assert set(demo[1]["verify"]) == {"layer-0", "layer-1", "layer-2"}
    for layer in demo[1]["verify"].values():
        assert layer["exact"]
        assert layer["reconstruction_error"] < 1e-4


def test_the_prediction_is_explained_from_what_was_recorded(demo):
    out, report = demo
    prediction = report["prediction"]
    assert prediction["recognised_as"] != prediction["label"], "a digit that the second dataset spoils"
    with dualform.open(out) as memory:
        for name, layer in prediction["layers"].items():
            hits = memory.topk(name, prediction["query"], k=1, score="abs")
            assert layer["top"][0]["slot"] == hits.slots[0][0]
            assert len(layer["top"]) == 5
            sums = memory.group_sum(name, prediction["query"], by=("dataset", "label"), score="abs")
            expected = dict(zip(sums.groups, sums.sums[0], strict=True))
            assert {(each["dataset"], each["label"]): each["sum"] for each in layer["sums"]} == expected
        assert report["slots"] == 2 * 150 * 64


def test_samples_and_query_sets_know_what_they_looked_like(demo):
    with dualform.open(demo[0]) as memory:
        info = memory.info()
        assert dict(info.previews) == {"digits": "images", "permuted-digits": "images"}
        assert {query_set.previews for query_set in info.query_sets} == {"images"}
        train, test = digits(), permuted(digits())
        drawn = memory.sql("SELECT DISTINCT sample FROM slots WHERE dataset = 'digits' ORDER BY sample").arrays[
            "sample"
        ]
        for own in memory.previews(drawn[:5], "digits"):
            assert (
                pixels(own.image).ravel().tolist() == (train.train.pixels[own.sample].astype(int) * 255 // 16).tolist()
            )
        for own in memory.previews([0, 396], query_set="test-permuted-digits"):
            assert pixels(own.image).ravel().tolist() == (test.test.pixels[own.sample].astype(int) * 255 // 16).tolist()


def pixels(png):
    return np.asarray(Image.open(BytesIO(png)))


def test_report_and_figures_are_left_behind(demo):
    out, report = demo
    assert json.loads((out / "report" / "report.json").read_text()) == report
    figures = {path.name for path in (out / "report").glob("*.png")}
    assert figures == set(report["prediction"]["figures"])
    assert len(figures) == 3
    assert all((out / "report" / name).stat().st_size > 5000 for name in figures)


@pytest.mark.usefixtures("blank_figures")
def test_a_demo_replaces_an_earlier_one_and_nothing_else(demo, tmp_path: Path):
    out, report = demo
    again = run_demo(out, recipe=SMALLER)
    assert again["accuracy"] == report["accuracy"]
    assert again["prediction"] == report["prediction"]
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists, match="already contains something"):
        run_demo(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_tables_show_accuracies_and_reconstruction(demo):
    tables = {table["name"]: table for table in demo[1]["tables"]}
    assert [row[0] for row in tables["accuracy"]["rows"]] == [
        "after digits",
        "at the end",
        "at the end, permuted-digits removed",
        "rebuilt as of the end of digits",
    ]
    assert [row[0] for row in tables["reconstruction"]["rows"]] == ["layer-0", "layer-1", "layer-2"]
    assert "dataset <> 'permuted-digits'" in tables["reconstruction"]["caption"]
