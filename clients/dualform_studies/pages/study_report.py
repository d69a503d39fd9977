"""The report that a study left behind, read again to stand in a document with others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from dualform.errors import Damaged
from dualform_studies.pages.claims import VERDICTS, Beside, Claim
from dualform_studies.pages.folder import Report, report_folder


class OftenFound(NamedTuple):
    """A training image that is among the best of many test images."""

    dataset: str
    sample: int
    """Its row in the file of its dataset."""
    label: int
    share: float
    """Of the test images, from 0 to 1."""


@dataclass(frozen=True)
class StudyReport:
    command: str
    """The command line that made it."""
    claims: tuple[Claim, ...]
    beside_paper: tuple[Beside, ...]
    threads: str
    """How many torch computed on."""
    minutes: int | None
    """How long the study took, rounded up; None where it does not say."""
    often_found: Mapping[str, Sequence[OftenFound]] | None
    """By layer, of a study that looks for hubs; None of others."""
    digests: Mapping[str, tuple[str, str]]
    """By prompt, of a study of text: those of its best datapoints and of its sums."""
    peak_bytes: int | None
    """The most memory that the study's process held; None where it does not say."""
    disk_bytes: int | None
    """Of the memory; None where none is kept."""


def read_study(run: Path) -> StudyReport | None:
    """The report in `run/report`, None where there is none.

    Raises Damaged, naming the file, for a report that is cut short or lacks something.
    """
    path = report_folder(run) / "report.json"
    if not path.is_file():
        return None
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise Damaged(f"{path} is not a complete report of a study: {why}.", hint="Run its study again.") from error


def _read(report: Report) -> StudyReport:
    if not isinstance(report, dict):
        raise TypeError("it is not a JSON object")
    claims = tuple(Claim(**claim) for claim in report.get("claims", ()))
    for claim in claims:
        if claim.verdict not in VERDICTS:
            raise ValueError(f"{claim.verdict!r} is not a verdict")
    seconds, prompts = report.get("seconds", {}).get("all"), report.get("prompts", ())
    return StudyReport(
        command=report["command"],
        claims=claims,
        beside_paper=tuple(Beside(**row) for row in report.get("beside_paper", ())),
        threads=report["machine"]["threads"],
        minutes=None if seconds is None else ceil(seconds / 60),
        often_found=_often_found(report["hubs"]) if "hubs" in report else None,
        digests={one["name"]: (one["digests"]["top_k"], one["digests"]["sums"]) for one in prompts},
        peak_bytes=report.get("peak_bytes"),
        disk_bytes=report.get("disk_bytes"),
    )


def _often_found(hubs: Report) -> dict[str, list[OftenFound]]:
    return {
        layer: [OftenFound(one["dataset"], one["sample"], one["label"], one["weight"]) for one in found["often"]]
        for layer, found in hubs.items()
    }
