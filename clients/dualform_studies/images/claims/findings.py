"""What a study found of the paper's observations: counts, claims with their verdicts, and the queries to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualform_studies.images.claims.prevalence import Choice, Prevalence
from dualform_studies.pages.claims import Claim


@dataclass(frozen=True)
class Findings:
    rows: Sequence[Prevalence]
    claims: Sequence[Claim]
    shown: Mapping[str, Choice]
    """By name of the example: the query that shows the claim."""
