"""How much the terms that a mask removes cancel each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dualform.answers.scan import Scan


@dataclass(frozen=True, eq=False)
class Cancellation(Mapping[str, float]):
    """By layer, the sum of the removed terms' norms over the norm of their sum.

    1 where they all push one way; tens or hundreds where they mostly cancel; NaN where they move nothing.
    """

    figures: Mapping[str, float]
    scan: Scan = field(default_factory=Scan)

    def __getitem__(self, layer: str) -> float:
        return self.figures[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)
