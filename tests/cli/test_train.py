"""demo and study: how they call the studies, and what they print of a report."""

from __future__ import annotations

from pathlib import Path

import dualform_studies.demo
import dualform_studies.studies
import dualform_studies.tables

REPORT = {"study": "it", "accuracy": {"mnist": {"end": 0.5}}, "tops": [1, 2], "missing": float("nan")}


def test_demo(dualform, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(dualform_studies.demo, "run_demo", lambda *given: calls.append(given) or REPORT)
    told = dualform("demo", "--out", tmp_path, "--json")
    assert told.json == {**REPORT, "missing": None}
    assert calls == [(tmp_path, None)], "no progress where stderr is no terminal"


def test_study(dualform, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(dualform_studies.studies, "run_study", lambda *given: calls.append(given) or REPORT)
    monkeypatch.setattr(dualform_studies.tables, "report_tables", lambda report: [("accuracy", ["end"], [[0.5]])])
    told = dualform("study", "continual", "--data", "d", "--out", tmp_path, "--steps", 5, "--seed", 3)
    assert told.out.split()[:2] == ["accuracy", "end"]
    assert "0.5" in told.out
    assert calls == [("continual", Path("d"), tmp_path, 5, 3, None)]


def test_a_study_that_is_none(dualform, tmp_path):
    told = dualform("study", "nix", "--out", tmp_path, "--json")
    assert told.code == 2
    assert "Studies: " in told.json["error"]["hint"]
