"""Studies by name, the costs that the paper names, and the demo."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dualform
from dualform.errors import AlreadyExists, BadInput, NotFound
from dualform.query.engine import Engine
from dualform.store.files.ram_budget import memory_bytes
from dualform_studies import limits
from dualform_studies.assignment import Assignment
from dualform_studies.demo import DEMO_RECIPE, run_demo
from dualform_studies.images.datasets import digits, permuted
from dualform_studies.images.training import Recipe
from dualform_studies.limits import QUESTIONS, limits_claims, run_limits
from dualform_studies.report import Page, Report
from dualform_studies.reproduction import write_reproduction
from dualform_studies.studies import STUDIES, Study, run_study
from tests.studies.conftest import sketching


def test_what_no_study_can_be_told_is_refused(tmp_path: Path):
    with pytest.raises(NotFound, match=r"there is no study 'contnual'\. Studies: .*continual"):
        run_study("contnual", Assignment(tmp_path / "run"))
    for given, message in (
        ({"steps": 0}, r"steps must be at least 1, not 0\."),
        ({"runs": 0}, r"runs must be at least 1, not 0\."),
        ({"seed": -1}, r"seed must be at least 0, not -1\."),
        ({"rerun": True}, r"the study continual does not take --rerun\."),
    ):
        with pytest.raises(BadInput, match=message):
            run_study("continual", Assignment(tmp_path / "run", **given))


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_refuses_a_folder_in_use_before_it_trains(name: str, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists, match="already contains something"):
        run_study(name, Assignment(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"


def test_a_whole_run_says_how_much_memory_its_process_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(assignment: Assignment) -> Report:
        report = {"study": "limits", "command": "dualform study limits"}
        Page(assignment.out, "Limits").write(report)
        return report

    monkeypatch.setitem(STUDIES, "limits", Study(write))
    held = np.ones(30_000_000, np.uint8)
    report = run_study("limits", Assignment(tmp_path / "runs" / "limits"))
    if not Path("/proc/self/status").exists():
        assert "peak_bytes" not in report
        return
    assert held.nbytes < report["peak_bytes"] < memory_bytes()
    on_disk = tmp_path / "runs" / "limits" / "report" / "report.json"
    assert json.loads(on_disk.read_text())["peak_bytes"] == report["peak_bytes"]
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| limits | `dualform study limits`")]
    assert row.endswith(f" {report['peak_bytes'] / 1e9:.1f} |")
    # Asked again later, a process tells nothing of the run that trained.
    assert "peak_bytes" not in run_study("limits", Assignment(tmp_path / "runs" / "limits"))


def test_costs_are_measured_on_disk_and_a_rerun_answers_as_the_stored_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "REPEATS", 1)
    report = run_limits(Assignment(tmp_path / "run"), Recipe(hidden=(32, 24), batch=32, steps=40))
    assert json.loads((tmp_path / "run" / "report" / "report.json").read_text()) == report
    assert [one["slots"] for one in report["measured"]] == [10 * 32, 20 * 32, 40 * 32]
    for measured in report["measured"]:
        # Keys of 64, 32 and 24 numbers and values of 32, 24 and 10: no image comes again within the first epoch.
        numbers = (64 + 32 + 24) + (32 + 24 + 10)
        assert measured["bytes"] == pytest.approx(4 * numbers * measured["slots"], rel=0.02)
        assert min(*measured["cold_seconds"].values(), measured["scoring_seconds"], measured["plain_seconds"]) > 0
    assert report["rerun"] == {"questions": 6, "same": 6}
    assert [claim["section"] for claim in report["claims"]] == ["section 6", "appendix D", "appendix D", "appendix D"]
    assert report["beside_paper"][0]["ours"].startswith("14.4 PB")


def made_up(*slots: int, power: float = 1.0, cold: float = 0.001, same: int = 6) -> dict[str, str]:
    """Verdicts where bytes and seconds grow as a power of the slots, from a start of their own."""
    measured = [
        {
            "slots": count,
            "bytes": 10**6 + 10 * count**power,
            "scoring_seconds": 0.5 + 1e-6 * count**power,
            "plain_seconds": 2.0,
            "cold_seconds": dict.fromkeys(QUESTIONS, cold),
        }
        for count in slots
    ]
    claims = limits_claims({"measured": measured, "rerun": {"same": same, "questions": 6}})
    return {claim.claim.split(" ")[0]: claim.verdict for claim in claims}


@pytest.mark.parametrize(
    ("given", "claim", "expected"),
    [
        ("power", "Storage", {1.0: "holds", 1.2: "holds in part", 1.4: "does not hold", 0.0: "does not hold"}),
        ("power", "The", {1.2: "holds", 1.4: "holds in part", 2.0: "does not hold", 0.0: "does not hold"}),
        ("cold", "Computing", {0.02: "holds", 0.2: "holds in part", 0.21: "does not hold"}),
        ("same", "A", {6: "holds", 5: "holds in part", 3: "does not hold"}),
    ],
)
def test_costs_are_judged_by_what_each_added_slot_takes_a_first_question_and_equal_answers(
    given: str, claim: str, expected: dict[float, str]
):
    assert {value: made_up(6400, 12_800, 25_600, **{given: value})[claim] for value in expected} == expected
    assert set(made_up(32, 32, 64)) == {"Computing", "A"}, "trainings of one length say nothing of growth"


SMALLER = replace(DEMO_RECIPE, hidden=(32, 32), steps=150)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any], Engine]]:
    """It replaces an earlier one."""
    out = tmp_path_factory.mktemp("demo") / "run"
    with sketching():
        run_demo(out, recipe=replace(SMALLER, steps=3))
        report = run_demo(out, recipe=SMALLER)
    with dualform.open(out) as memory:
        yield out, report, memory


def test_the_first_digits_are_forgotten_and_the_mask_brings_them_back(demo):
    out, report, _ = demo
    first = report["accuracy"]["digits"]
    assert first["after_first"] > 0.9
    assert first["final"] < 0.75
    assert first["masked"] > first["after_first"] - 0.05
    assert first["as_of_first"] == pytest.approx(first["after_first"], abs=0.005)
    assert report["accuracy"]["permuted-digits"]["final"] > 0.85
    assert set(report["verify"]) == {"layer-0", "layer-1", "layer-2"}
    assert all(layer["exact"] and layer["reconstruction_error"] < 1e-4 for layer in report["verify"].values())
    assert json.loads((out / "report" / "report.json").read_text()) == report
    tables = {table["name"]: table for table in report["tables"]}
    assert len(tables["accuracy"]["rows"]) == 4
    assert "dataset <> 'permuted-digits'" in tables["reconstruction"]["caption"]


def test_the_prediction_is_explained_from_what_was_recorded(demo):
    out, report, memory = demo
    prediction = report["prediction"]
    assert prediction["recognised_as"] != prediction["label"], "a digit that the second dataset spoils"
    assert {path.name for path in (out / "report").glob("*.png")} == set(prediction["figures"])
    assert len(prediction["layers"]) == len(prediction["figures"]) == 3
    for name, layer in prediction["layers"].items():
        hits = memory.topk(name, prediction["query"], k=1, score="abs")
        assert layer["top"][0]["slot"] == hits.slots[0][0]
        assert len(layer["top"]) == 5
        sums = memory.group_sum(name, prediction["query"], by=("dataset", "label"), score="abs")
        expected = dict(zip(sums.groups, sums.sums[0], strict=True))
        assert {(each["dataset"], each["label"]): each["sum"] for each in layer["sums"]} == expected
    assert report["slots"] == 2 * 150 * 64


def test_samples_and_query_sets_know_what_they_looked_like(demo):
    memory = demo[2]
    info = memory.info()
    assert dict(info.previews) == {"digits": "images", "permuted-digits": "images"}
    assert {query_set.previews for query_set in info.query_sets} == {"images"}
    samples = memory.sql("SELECT DISTINCT sample FROM slots WHERE dataset = 'digits' ORDER BY sample")["sample"][:5]
    for shown, images in (
        (memory.previews(samples, "digits"), digits().train),
        (memory.previews([0, 396], query_set="test-permuted-digits"), permuted(digits()).test),
    ):
        pixels = [np.asarray(Image.open(BytesIO(own.image))).ravel() for own in shown]
        np.testing.assert_array_equal(pixels, images.pixels[[own.sample for own in shown]].astype(int) * 255 // 16)


def test_a_demo_replaces_nothing_but_a_demo(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists, match="already contains something"):
        run_demo(tmp_path)
    assert (tmp_path / "thesis.txt").exists()
