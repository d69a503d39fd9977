"""The studies by name, as `dualform study NAME` runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from dualform.errors import BadInput, NotFound
from dualform_studies.assignment import Assignment, option_of
from dualform_studies.images.compact import run_compact
from dualform_studies.images.continual import run_continual
from dualform_studies.images.joint import run_joint
from dualform_studies.images.single import run_single
from dualform_studies.images.variants import run_cifar10, run_variants
from dualform_studies.limits import run_limits
from dualform_studies.memorisation.study import run_memorisation
from dualform_studies.report import Report, peak_bytes, study_of, write_report
from dualform_studies.text.study import run_aesop, run_wikitext2


@dataclass(frozen=True)
class Study:
    run: Callable[[Assignment], Report]
    takes: frozenset[str] = frozenset()
    """Fields of an assignment that it heeds beside those that all studies do."""


_OF_TEXT = frozenset({"preset", "prompts", "rerun", "dry_run"})

STUDIES = {
    "single": Study(run_single, frozenset({"runs"})),
    "single-variants": Study(run_variants, frozenset({"runs"})),
    "joint": Study(run_joint),
    "continual": Study(run_continual),
    "compact": Study(run_compact),
    "cifar10": Study(run_cifar10),
    "aesop": Study(run_aesop, _OF_TEXT),
    "wikitext2": Study(run_wikitext2, _OF_TEXT),
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
