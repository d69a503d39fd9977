"""What a section found, as plain values that become JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

OURS = "dualform"


@dataclass(frozen=True)
class Cell:
    """What one contestant made of one question."""

    seconds: float | None = None
    """Median; None where there is no answer."""
    best: float | None = None
    repeats: int = 0
    why_not: str = ""
    """Why there is no time."""
    wrong: str = ""
    """What is wrong with the answer: such a time counts for nothing."""
    remark: str = ""
    """What else the check of the answer found."""
    bytes: float | None = None
    """Of memory, where those are the question and not the time."""
    worst: float | None = None
    """The slowest repeat; None where the spread is not told."""

    @property
    def counts(self) -> bool:
        return self.seconds is not None and not self.wrong


@dataclass(frozen=True)
class Target:
    kind: Literal["at most", "at least"]
    value: float
    unit: Literal["", "s", "bytes"] = ""
    """Of a target for dualform's own figure; "" for one of the ratio."""

    def met(self, figure: float) -> bool:
        return figure <= self.value if self.kind == "at most" else figure >= self.value


@dataclass(frozen=True)
class Row:
    """A question, and everyone's cell."""

    question: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    """By contestant; dualform's is OURS."""
    beside: str = ""
    """What the ratio compares with."""
    beside_seconds: float | None = None
    ratio: float | None = None
    target: Target | None = None
    short: str = ""
    """Column heading in the section's table."""
    note: str = ""
    ratios: tuple[float, float] | None = None
    """The least and the greatest of the repeats; None where the spread is not told."""

    @property
    def ours(self) -> Cell:
        return self.cells.get(OURS, Cell())

    @property
    def met(self) -> bool | None:
        """None where there is no target or no figure."""
        figure = self._judged
        return None if self.target is None or figure is None else self.target.met(figure) and not self.ours.wrong

    @property
    def used(self) -> float:
        """How much of a target the figure uses up: 1 where it just meets it, more where it misses it; else 0."""
        figure = self._judged
        if self.target is None or figure is None:
            return 0.0
        return figure / self.target.value if self.target.kind == "at most" else self.target.value / figure

    @property
    def _judged(self) -> float | None:
        """The figure that the target bounds."""
        if self.target is None:
            return None
        return {"": self.ratio, "s": self.ours.seconds, "bytes": self.ours.bytes}[self.target.unit]


@dataclass
class Section:
    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Further figures, ready to print."""
    numbers: dict[str, float] = field(default_factory=dict)
    """The same figures for programs, and those that other sections need."""
    notes: list[str] = field(default_factory=list)
    build: dict[str, float] = field(default_factory=dict)
    """Seconds that each peer took to load the keys."""
    date: str = ""
    seconds: float = 0.0
    """The whole section."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Section:
        rows = [
            Row(
                **{
                    **row,
                    "cells": {name: Cell(**cell) for name, cell in row["cells"].items()},
                    "target": Target(**row["target"]) if row["target"] else None,
                    "ratios": tuple(row["ratios"]) if row.get("ratios") else None,
                }
            )
            for row in plain["rows"]
        ]
        return cls(**{**plain, "rows": rows})


def fastest_peer(cells: Mapping[str, Cell]) -> tuple[str, float] | None:
    """Of the peers whose answer is right; names that begin with dualform are not peers."""
    peers = {
        name: cell.seconds
        for name, cell in cells.items()
        if not name.startswith(OURS) and cell.counts and cell.seconds is not None
    }
    if not peers:
        return None
    name = min(peers, key=lambda peer: peers[peer])
    return name, peers[name]
