from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dualform
from dualform_studies.assignment import Assignment
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.limits.cost import DIGEST_BYTES
from dualform_studies.limits.storage import TRAININGS, in_bytes, storage_report
from dualform_studies.limits.study import run_limits
from dualform_studies.pages.folder import bytes_on_disk


@pytest.fixture(scope="module")
def miniature(coarse_figures: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("limits") / "run"
    return out, run_limits(Assignment(out), Recipe(hidden=(32, 24), batch=32, steps=40))


def test_it_says_what_it_wrote(miniature):
    out, report = miniature
    assert json.loads((out / "report" / "report.json").read_text()) == report
    page = (out / "report" / "index.md").read_text()
    for claim in report["claims"]:
        assert f"## {claim['heading']}" in page
    assert [one["slots"] for one in report["measured"]] == [10 * 32, 20 * 32, 40 * 32]
    assert [one["section"] for one in report["claims"]] == ["section 6", "appendix D", "appendix D", "appendix D"]


def test_bytes_and_slots_are_those_on_disk(miniature):
    out, report = miniature
    for name, measured in zip(("short", "middle", "long"), report["measured"], strict=True):
        folder = out / name
        assert sum(measured["bytes"].values()) == bytes_on_disk(folder)
        # Float32 keys of 32 and 24 numbers; images that come again are stored once. Values of 32, 24 and 10.
        assert measured["bytes"]["keys"] == pytest.approx(measured["slots"] * 4 * (32 + 24), rel=0.1, abs=4 * 64 * 1500)
        assert measured["bytes"]["values"] == pytest.approx(measured["slots"] * 4 * (32 + 24 + 10), rel=0.1)
        assert measured["bytes"]["weights"] == bytes_on_disk(folder / "weights")
        assert measured["bytes"]["query_sets"] == bytes_on_disk(folder / "probes")
        with dualform.open(folder) as memory:
            assert sum(memory.info().slots.values()) == measured["slots"]
            assert measured["cancellation"] == dict(memory.cancellation(where="label != 3"))
        for way in ("cold", "warm"):
            assert all(seconds > 0 for seconds in measured[f"{way}_seconds"].values())


def test_a_rerun_answers_as_the_stored_memory_and_keeps_less(miniature):
    _, report = miniature
    rerun = report["rerun"]
    assert rerun["same"] == rerun["questions"] == 6
    assert rerun["bytes"]["keys"] == rerun["bytes"]["values"] == 0 < rerun["bytes"]["tables"]
    assert rerun["bytes"]["weights"] == report["measured"][0]["bytes"]["weights"]


def test_the_papers_figures_come_out():
    found = {training.name: storage_report(training)["key_bytes"] for training in TRAININGS}
    assert found["one layer of GPT-3"] == 300e9 * 12_000 * 4
    # 128 streams of 100 tokens; 64 of 100: what the code's own files come to, in float16.
    assert found["WikiText-2"] == pytest.approx(154e9, rel=0.005)
    assert found["Aesop"] == pytest.approx(201e9, rel=0.005)
    assert found["single task, 5,000 updates"] == 640_000 * 2384 * 4


def test_a_rerun_keeps_digests_of_every_update():
    single = TRAININGS[0]
    columns = storage_report(replace(single, updates=None))["rerun_bytes"]
    assert storage_report(single)["rerun_bytes"] == columns + 5000 * 3 * DIGEST_BYTES


@pytest.mark.parametrize(
    ("size", "words"), [(12, "12 bytes"), (14_400e12, "14.4 PB"), (3.6e12, "3.6 TB"), (999.4e6, "999 MB")]
)
def test_sizes_are_said_in_the_greatest_unit(size: float, words: str):
    assert in_bytes(size) == words
