"""What a study leaves behind: RUN/report/report.json and the figures beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dualform.answers import Certificate
from dualform.errors import AlreadyExists
from dualform_studies.frame import Query
from dualform_studies.spotlight import LayerSpotlight

Report: TypeAlias = dict[str, Any]
"""Plain values only, ready for JSON."""


def report_folder(run: Path) -> Path:
    return run / "report"


def check_free(run: Path) -> None:
    """Raise AlreadyExists where the folder holds anything: found out before the training, not after it."""
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise AlreadyExists(f"{run} already holds something.", hint="Name another folder with --out, or remove it.")


def write_report(run: Path, report: Report) -> Path:
    path = report_folder(run) / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def is_report_of(run: Path, study: str) -> bool:
    """Whether this folder was left behind by that study."""
    try:
        report = json.loads((report_folder(run) / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.get("study") == study


def certificate_report(certificate: Certificate) -> Report:
    return {
        "relative_error": certificate.relative_error,
        "exact": certificate.exact,
        "reason": certificate.reason,
    }


def spotlight_report(query: Query, probe: str, masked: int, layers: Sequence[LayerSpotlight]) -> Report:
    """One query, what it was recognised as at the end and with the mask, and the attention of each layer."""
    names = query.dataset.label_names
    return {
        "query": f"{probe}/{query.row}",
        "label": names[query.label],
        "recognised_as": {"final": names[query.given], "masked": names[masked]},
        "layers": {
            layer.layer: {
                "top": list(layer.top),
                "sums": [
                    {"dataset": dataset, "label": label, "sum": float(total), "count": int(count)}
                    for (dataset, label), total, count in zip(layer.groups, layer.sums, layer.counts, strict=True)
                ],
                "strongest": dict(zip(("dataset", "label"), layer.strongest, strict=True)),
            }
            for layer in layers
        },
    }


def relative_errors(
    truth: dict[str, Tensor], rebuilt: dict[str, Tensor], initial: dict[str, Tensor], layers: Sequence[str]
) -> dict[str, float]:
    """By layer: ||W - rebuilt|| / ||W - W_0||, weight and bias together, in float64."""

    def norm(layer: str, left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
        parts = [name for name in truth if name.startswith(f"{layer}.")]
        return float(torch.cat([(left[name].double() - right[name].double()).ravel() for name in parts]).norm())

    return {layer: norm(layer, truth, rebuilt) / norm(layer, truth, initial) for layer in layers}


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
