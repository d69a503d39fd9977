"""The folder RUN/report, where a study leaves its report.json, its page and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from dualform.errors import AlreadyExists

Report: TypeAlias = dict[str, Any]
"""Plain values only, ready for JSON."""


def report_folder(run: Path) -> Path:
    return run / "report"


def check_free(run: Path) -> None:
    """Raise AlreadyExists where the folder holds anything: found out before the training, not after it."""
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        study = study_of(run)
        what = f"the study {study}" if study else "something"
        raise AlreadyExists(
            f"{run} already contains {what}.", hint="Pass another folder with --out, or remove this one."
        )


def write_report(run: Path, report: Report) -> Path:
    path = report_folder(run) / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".part")
    written.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return written.replace(path)


def study_of(run: Path) -> str | None:
    """The study that left this folder behind, None where none did."""
    try:
        report = json.loads((report_folder(run) / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(report["study"]) if isinstance(report, dict) and "study" in report else None


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
