"""The studies by name, as `dualform study NAME` runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from dualform.errors import BadInput, NotFound
from dualform_studies.assignment import Assignment, option_of
from dualform_studies.images.study import (
    CIFAR10,
    COMPACT,
    CONTINUAL,
    JOINT,
    SINGLE,
    SINGLE_VARIANTS,
    ImageStudy,
    run_images,
)
from dualform_studies.limits import run_limits
from dualform_studies.memorisation.study import run_memorisation
from dualform_studies.report import Report, peak_bytes, study_of, write_report
from dualform_studies.text.study import AESOP, WIKITEXT2, LanguageStudy, run_language_study


@dataclass(frozen=True)
class Study:
    run: Callable[[Assignment], Report]
    takes: frozenset[str] = frozenset()
    """Fields of an assignment that it heeds beside those that all studies do."""


def _of_images(study: ImageStudy, *takes: str) -> Study:
    return Study(partial(run_images, study), frozenset(takes))


def _of_text(study: LanguageStudy) -> Study:
    return Study(partial(run_language_study, study), frozenset({"preset", "prompts", "rerun", "dry_run"}))


STUDIES = {
    "single": _of_images(SINGLE, "runs"),
    "single-variants": _of_images(SINGLE_VARIANTS, "runs"),
    "joint": _of_images(JOINT),
    "continual": _of_images(CONTINUAL),
    "compact": _of_images(COMPACT),
    "cifar10": _of_images(CIFAR10),
    "aesop": _of_text(AESOP),
    "wikitext2": _of_text(WIKITEXT2),
    "limits": Study(run_limits),
    "memorisation": Study(run_memorisation, frozenset({"runs"})),
}
"""Those of the paper, in the order of its document."""

_ALL_TAKE = {"out", "data", "steps", "seed", "progress"}


def run_study(name: str, assignment: Assignment) -> Report:
    """Run one study; its report is returned and written to `out/report`, as report.json and as a page.

    Of a whole run the report says "peak_bytes", the most memory that this process has held, where the system tells.

    Raises NotFound, listing the studies that exist, for another name; BadInput for fewer steps or runs than one, a
    negative seed, and an option that the study knows nothing of.
    """
    if name not in STUDIES:
        raise NotFound(f"there is no study {name!r}.", hint=f"Studies: {', '.join(STUDIES)}.", field="study")
    for field in ("steps", "runs"):
        given = getattr(assignment, field)
        if given is not None and given < 1:
            raise BadInput(f"{field} must be at least 1, not {given}.", field=field)
    if assignment.first_seed < 0:
        raise BadInput(f"seed must be at least 0, not {assignment.seed}.", field="seed")
    takes = _ALL_TAKE | STUDIES[name].takes
    for part in fields(Assignment):
        if part.name not in takes and getattr(assignment, part.name) != part.default:
            raise BadInput(
                f"the study {name} does not take {option_of(part.name)}.",
                hint=f"Beside --data, --out, --steps and --seed it takes {_listed(STUDIES[name].takes)}.",
                field=part.name,
            )
    whole = study_of(assignment.out) is None
    report = STUDIES[name].run(assignment)
    if whole and study_of(assignment.out) == name and (peak := peak_bytes()):
        report["peak_bytes"] = peak
        write_report(assignment.out, report)
    return report


def _listed(takes: frozenset[str]) -> str:
    return ", ".join(sorted(map(option_of, takes))) or "no option"
