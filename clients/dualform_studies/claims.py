"""Claims of the paper and of the second study, with verdicts computed from measures; and exact tests of small counts.

claim = judge("compact.answers", apart, f"a relative difference of {apart:.1e} at most")     its words: claims.toml
report["claims"] = [claim.plain(), …]                    reproduction.md begins with those of all studies
report["beside_paper"] = [Beside("accuracy", "97.3 %", text="97 %", code="97.2 %").plain(), …]
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform_studies.report import Report, in_fraction, percent

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


def plain_percent(number: float) -> str:
    """As "5 %" or "99.9 %"."""
    return percent(number, "g")


_TOLD: Mapping[str, Callable[[float], str]] = {
    "number": lambda value: f"{value:g}",
    "fraction": in_fraction,
    "percent": plain_percent,
}


@cache
def texts() -> Mapping[str, Mapping[str, Any]]:
    """What claims.toml has of each claim, by STUDY.NAME."""
    read = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))
    return {f"{study}.{name}": own for study, claims in read.items() for name, own in claims.items()}


def judge(name: str, measure: float, ours: str, **words: Any) -> Claim:
    """The claim of that name, judged by a measure and the two values of claims.toml. `ours`: what was measured;
    `words`: for names in braces.
    """
    said = texts()[name]
    compare = verdict_at_most if said.get("at_most") else verdict
    return judged(name, compare(measure, *_values(said)), ours, **words)


def judged(name: str, found: Verdict, ours: str, **words: Any) -> Claim:
    """As `judge`, with a verdict that no single measure gives."""
    said = texts()[name]
    if "holds" in said:
        told = _TOLD[said.get("told", "number")]
        words |= dict(zip(("holds", "in_part"), map(told, _values(said)), strict=True))
    limit = "up to" if said.get("at_most") else "from"
    measured = f"{said.get('measure')}: holds {limit} {{holds}}, in part {limit} {{in_part}}{said.get('more', '')}"
    parts = (said["section"], said["claim"], said["paper"], said.get("criterion", measured))
    section, claim, paper, criterion = (text.format(**words) for text in parts)
    return Claim(section, claim, paper, ours, found, criterion)


def _values(said: Mapping[str, Any]) -> tuple[float, float]:
    return float(Fraction(said["holds"])), float(Fraction(said["in_part"]))


CHANCE = 0.01
"""Below it, a difference is none of chance."""


def sign_test(differences: NDArray[np.float64]) -> float:
    """How likely so many of the differences, float64[M], would be above 0, were either sign as likely: one-sided.

    Differences of 0 are left out; 1 is returned where there is no other.
    """
    return _tail(int((differences < 0).sum()), int((differences != 0).sum()))


def can_reach(level: float, count: int) -> bool:
    """Whether the sign test of so many differences could come to p = `level`, were all of them above 0."""
    return 0.5**count <= level


def mcnemar(gained: int, lost: int) -> float:
    """How likely two classifiers that err alike would differ on so many images, or more unevenly: two-sided.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions".
    """
    return min(1.0, 2 * _tail(min(gained, lost), gained + lost))


def is_gain(gained: int, lost: int, tried: int = 1) -> bool:
    """Whether more images are gained than lost, beyond chance, also where the best of so many that were tried is."""
    return gained > lost and mcnemar(gained, lost) < CHANCE / tried


def _tail(at_most: int, count: int) -> float:
    """How likely a fair coin shows heads so often, or less often, in `count` throws."""
    ways, way = 0, 1
    for heads in range(at_most + 1):
        ways += way
        way = way * (count - heads) // (heads + 1)
    return float(ways / 2**count)
