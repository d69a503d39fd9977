"""How exact the record of a layer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

StatusName: TypeAlias = Literal["exact", "exact to bfloat16", "approximate", "scores only"]


@dataclass(frozen=True)
class Status:
    """How exact the record of a layer is as of a step.

    It was measured during the training or, for optimizers that cannot be measured then, by reading all slots.
    """

    name: StatusName
    """Whether rebuilt weights match the training; "scores only" if they cannot be rebuilt."""
    error: float | None = None
    """The reconstruction error: how far rebuilt weights are from the trained ones, relative to how far training moved
    them. None if it was not measured."""
    rounding: float | None = None
    """The part of the error that float32 rounding of the weights can explain, on the same scale."""
    since: int | None = None
    """The recorded step from which the record deviates, if one step stands out."""
    reason: str = ""
    """Why the record is not exact, or what limits an exact one; otherwise empty."""

    @property
    def exact(self) -> bool:
        """Whether rebuilt outputs and weights match the training."""
        return self.name == "exact"

    def __str__(self) -> str:
        if self.name != "approximate" or self.error is None:
            return self.name
        since = "" if self.since is None else f" since step {self.since}"
        return f"approximate{since}, error {self.error:.1e}"
