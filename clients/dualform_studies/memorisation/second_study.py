"""How claims of the second study are worded: "Visualizing small Attention-only Transformers", of one network.

A criterion holds its numbers once: the verdict and the words that tell it are both made from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dualform_studies.pages.claims import Verdict, verdict, verdict_at_most
from dualform_studies.pages.words import in_fraction, percent


def section(part: Literal["the network", "the attention layer", "attention heads"]) -> str:
    """Where the text makes a claim."""
    return f"second study, {part}"


def plain_percent(number: float) -> str:
    """As "5 %" or "99.9 %"."""
    return percent(number, "g")


@dataclass(frozen=True)
class Criterion:
    """When a claim holds, and when in part, by one measure of it."""

    measure: str
    """What is measured, in words."""
    holds: float
    in_part: float
    at_most: bool = False
    """Whether the measure speaks for the claim the smaller it is: then both numbers are greatest values."""
    told: Callable[[float], str] = in_fraction
    """Words for the two numbers."""

    def judge(self, measured: float) -> Verdict:
        return (verdict_at_most if self.at_most else verdict)(measured, self.holds, self.in_part)

    def __str__(self) -> str:
        limit = "up to" if self.at_most else "from"
        return f"{self.measure}: holds {limit} {self.told(self.holds)}, in part {limit} {self.told(self.in_part)}"


def mostly(networks: str) -> Criterion:
    """What the text saw in one network holds of two thirds of many, and in part of one third."""
    return Criterion(networks, 2 / 3, 1 / 3)
