from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import AlreadyExists, BadInput, NotFound
from dualform.store.files.ram_budget import memory_bytes
from dualform_studies.assignment import Assignment
from dualform_studies.report import Page, Report
from dualform_studies.reproduction import write_reproduction
from dualform_studies.studies import STUDIES, Study, run_study


def test_unknown_study_lists_those_that_exist(tmp_path: Path):
    with pytest.raises(NotFound, match=r"there is no study 'contnual'\. Studies: .*continual"):
        run_study("contnual", Assignment(tmp_path / "run"))


@pytest.mark.parametrize("field", ["steps", "runs"])
def test_fewer_than_one_is_refused(field: str, tmp_path: Path):
    with pytest.raises(BadInput, match=rf"{field} must be at least 1, not 0\."):
        run_study("continual", Assignment(tmp_path / "run", **{field: 0}))


def test_a_negative_seed_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match=r"seed must be at least 0, not -1\."):
        run_study("continual", Assignment(tmp_path / "run", seed=-1))


def write(assignment: Assignment) -> Report:
    report = {"study": "limits", "command": "dualform study limits"}
    Page(assignment.out, "Limits").write(report)
    return report


def test_a_whole_run_says_how_much_memory_its_process_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_refuses_a_folder_in_use_before_it_trains(name: str, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(AlreadyExists, match="already contains something"):
        run_study(name, Assignment(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"
