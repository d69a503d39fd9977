"""demo and study: how they call the studies, and what they print of a report."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import dualform_studies.demo
import dualform_studies.studies
from dualform import extras
from dualform_studies.assignment import Assignment

TABLE = {"name": "accuracy", "caption": "Test accuracy.", "columns": ["mnist"], "rows": [[0.5]]}
REPORT = {"study": "it", "tables": [TABLE], "tops": [1, 2], "missing": float("nan")}


def test_demo(dualform, monkeypatch, tmp_path, capfd):
    calls = []
    monkeypatch.setattr(dualform_studies.demo, "run_demo", lambda *given: calls.append(given) or REPORT)
    told = dualform("demo", "--out", tmp_path, "--json")
    assert told.json == {**REPORT, "missing": "nan"}
    ((out, progress),) = calls
    assert out == tmp_path
    assert told.err == "loading PyTorch and the studies\n"
    for done in range(3):
        progress("training on digits", done, 2)
    assert capfd.readouterr().err == "training on digits\n", "a log gets each label once"


def test_study(dualform, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(dualform_studies.studies, "run_study", lambda *given: calls.append(given) or REPORT)
    told = dualform("study", "continual", "--data", "d", "--out", tmp_path, "--steps", 5, "--seed", 3)
    assert told.out.split()[:3] == ["Test", "accuracy.", "mnist"]
    assert "0.5" in told.out
    options = ("--preset", "paper", "--prompt", "a fox", "--prompt", "a crow", "--rerun", "--dry-run", "--runs", 2)
    dualform("study", "aesop", "--out", tmp_path, *options)
    assert [(name, replace(assignment, progress=None)) for name, assignment in calls] == [
        ("continual", Assignment(tmp_path, Path("d"), steps=5, seed=3)),
        ("aesop", Assignment(tmp_path, runs=2, preset="paper", prompts=("a fox", "a crow"), rerun=True, dry_run=True)),
    ]


def test_an_option_of_another_study_is_refused(dualform, tmp_path):
    told = dualform("study", "continual", "--out", tmp_path, "--prompt", "a fox", "--json")
    assert (told.code, told.json["error"]["message"]) == (2, "The study continual does not take --prompt.")


def test_long_tables_are_cut_where_they_are_printed_and_whole_in_json(dualform, monkeypatch, tmp_path):
    table = {**TABLE, "rows": [[f"row-{number}-"] for number in range(100)]}
    monkeypatch.setattr(dualform_studies.studies, "run_study", lambda *given: {**REPORT, "tables": [table]})
    printed = dualform("study", "continual", "--out", tmp_path).out
    assert "The first 24 of 100 rows" in printed
    assert "row-23-" in printed
    assert "row-24-" not in printed
    assert len(dualform("study", "continual", "--out", tmp_path, "--json").json["tables"][0]["rows"]) == 100


@pytest.mark.parametrize("arguments", [("demo",), ("study", "continual")], ids=["demo", "study"])
def test_without_their_extra_the_studies_name_it_and_load_nothing(dualform, tmp_path, monkeypatch, arguments):
    installed = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "matplotlib" else installed(name))
    for name in [name for name in sys.modules if name.startswith("dualform_studies")]:
        monkeypatch.delitem(sys.modules, name)
    told = dualform(*arguments, "--out", tmp_path / "run", "--json")
    assert told.code == 1
    assert told.json["error"] == {
        "code": "missing_package",
        "message": "The studies are an extra of their own, and matplotlib is not installed.",
        "hint": "pip install 'dualform[cpu,studies]' brings all that they need, or [gpu,studies].",
    }
    assert not any(name.startswith("dualform_studies") for name in sys.modules)
