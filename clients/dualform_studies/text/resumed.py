"""A run that is there already, and whether more prompts can be asked of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dualform.errors import AlreadyExists, BadInput
from dualform_studies.assignment import Assignment
from dualform_studies.pages.folder import Report, report_folder


def read_report(run: Path) -> Report:
    report: Report = json.loads((report_folder(run) / "report.json").read_text(encoding="utf-8"))
    return report


def check_same(report: Report, assignment: Assignment, digest: str) -> None:
    """Raises AlreadyExists where the assignment asks for another training than the one that is there, and BadInput
    where that one stored no keys or was fed another text than the one with this digest.
    """
    wanted: dict[str, tuple[Any, Any]] = {
        "seed": (assignment.seed, report["seed"]),
        "preset": (assignment.preset, report["preset"]),
        "steps": (assignment.steps, report["recipe"]["steps"]),
    }
    for name, (asked, there) in wanted.items():
        if asked not in (None, there):
            raise AlreadyExists(
                f"{assignment.out} contains a run with {name} {there}, not {asked}.",
                hint=f"Pass another folder with --out, or leave out --{name} to ask this run.",
            )
    if report["rerun"] or assignment.rerun:
        raise BadInput(
            f"{assignment.out} already contains a run, and --rerun trains again.",
            hint="Pass another folder with --out, and all prompts at once."
            if report["rerun"]
            else "This run stored its keys: leave out --rerun.",
            field="rerun",
        )
    if digest != report["corpus"]["digest"]:
        raise BadInput(
            f"the run in {assignment.out} was trained on another text than that in the data folder.",
            hint="Pass the data folder that it was trained from with --data.",
            field="data",
        )
