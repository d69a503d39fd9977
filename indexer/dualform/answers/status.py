"""How exact the record of a layer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

StatusName: TypeAlias = Literal["exact", "exact to bfloat16", "approximate", "scores only"]


@dataclass(frozen=True)
class Status:
    """How exact the record of a layer is as of a step: measured while the training ran or, where its rule was not
    watched, by a pass over the slots.
    """

    name: StatusName
    """Whether weights rebuilt from the record are those of the training; "scores only": they cannot be rebuilt."""
    error: float | None = None
    """Distance of the rebuilt weights from the real ones, relative to how far those moved; None where not measured."""
    rounding: float | None = None
    """What float32 rounding of the weights alone may account for, relative to the same distance."""
    since: int | None = None
    """The recorded step at which the record parted from the weights, where one step stands out."""
    reason: str = ""
    """Why it is not exact, or, where it is, what stands in it beside the slots; else empty."""

    @property
    def exact(self) -> bool:
        """Whether outputs and weights rebuilt from the record are those of the training."""
        return self.name == "exact"

    def __str__(self) -> str:
        if self.name != "approximate" or self.error is None:
            return self.name
        since = "" if self.since is None else f" since step {self.since}"
        return f"approximate{since}, error {self.error:.1e}"
