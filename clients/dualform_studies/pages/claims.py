"""What the paper says, beside what a study found: observations with a verdict, and figures.

claim = Claim("section 5.2", "…", "6 of 6 layers", "81.3 %", HOLDS, "Prevalence")
report["claims"] = [claim.plain(), …]                 reproduction.md begins with those of all studies
report["beside_paper"] = [Beside("accuracy", "97.3 %", text="97 %", code="97.2 %").plain(), …]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table

Verdict: TypeAlias = Literal["holds", "holds in part", "does not hold"]
HOLDS: Verdict = "holds"
IN_PART: Verdict = "holds in part"
FAILS: Verdict = "does not hold"
VERDICTS = (FAILS, IN_PART, HOLDS)
"""From the least to the best."""


@dataclass(frozen=True)
class Claim:
    """One observation of the paper, put to the test."""

    section: str
    """Where the paper makes it, as "section 5.2"."""
    claim: str
    """The observation, in a sentence."""
    paper: str
    """What the paper shows for it, in its own figures where it gives any."""
    ours: str
    """What was measured, with its unit and of how many."""
    verdict: Verdict
    """Computed from what was measured by a criterion that `criterion` words."""
    criterion: str
    """When it holds, and when in part."""
    heading: str
    """The heading of the study's page under which the evidence stands."""

    def plain(self) -> Report:
        return asdict(self)


@dataclass(frozen=True)
class Beside:
    """One figure of ours beside the same of the paper."""

    what: str
    ours: str
    text: str = ""
    """What the paper's text says; empty where it says nothing."""
    code: str = ""
    """What the paper's published code gave when it was run again (docs/decisions/studies.md); empty if it was not."""

    def plain(self) -> Report:
        return asdict(self)


def verdict(measure: float, holds: float, in_part: float) -> Verdict:
    """The verdict of a measure that speaks for a claim the greater it is: `holds` and `in_part` are its least values.

    Raises ValueError where `in_part` is greater than `holds`, and for a measure that is not a number.
    """
    if not in_part <= holds or measure != measure:
        raise ValueError(f"a measure of {measure} against {in_part} and {holds} has no verdict")
    return HOLDS if measure >= holds else IN_PART if measure >= in_part else FAILS


def verdict_of(holds: bool, in_part: bool) -> Verdict:
    """The verdict of a criterion that is met or not, and of what it is met in part by."""
    return HOLDS if holds else IN_PART if in_part else FAILS


def verdict_at_most(measure: float, holds: float, in_part: float) -> Verdict:
    """The verdict of a measure that speaks for a claim the smaller it is; `holds` and `in_part` are greatest values.

    Raises ValueError where `in_part` is smaller than `holds`, and for a measure that is not a number.
    """
    return verdict(-measure, -holds, -in_part)


def claims_table(claims: Sequence[Claim]) -> Table:
    """The claims of one study, with their criteria."""
    return Table(
        "claims",
        "What the paper observes, put to the test. Each criterion is taken from the paper's words, and the verdict is "
        "computed from it and from what was measured.",
        ("section", "claim", "paper", "ours", "criterion", "verdict"),
        [(one.section, one.claim, one.paper, one.ours, one.criterion, one.verdict) for one in claims],
    )


def beside_table(rows: Iterable[tuple[str, Beside]]) -> Table:
    """Figures beside the paper's; each row has the name of the study that it is from."""
    columns = ("study", "figure", "here", "the paper's text", "the paper's code, run again")
    cells = [(study, row.what, row.ours, row.text or "-", row.code or "-") for study, row in rows]
    return Table("beside", "Figures measured here and in the paper.", columns, cells)
