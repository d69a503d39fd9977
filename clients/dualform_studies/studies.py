"""The studies by name, as `dualform study NAME` runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dualform.errors import NotFound
from dualform_studies.continual import run_continual
from dualform_studies.report import Report
from dualform_studies.training import Progress


class Study(Protocol):
    def __call__(
        self, data: Path | None, out: Path, steps: int | None, seed: int, progress: Progress | None
    ) -> Report: ...


STUDIES: dict[str, Study] = {"continual": run_continual}


def run_study(
    name: str,
    data: Path | None,
    out: Path,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Run one study; its report is returned and written to `out/report/report.json`.

    Raises NotFound, listing the studies that exist, for another name, and BadInput for fewer steps than one.
    """
    if name not in STUDIES:
        raise NotFound(f"there is no study {name!r}.", hint=f"Studies: {', '.join(sorted(STUDIES))}.", field="study")
    return STUDIES[name](data, out, steps, seed, progress)
