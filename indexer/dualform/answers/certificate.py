"""How well the record rebuilds a layer's final weights."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.answers.grade import Grade


@dataclass(frozen=True)
class Certificate:
    """||W_T - rebuilt|| / ||W_T - W_0|| of one layer, bias included, beside the grade measured while training."""

    relative_error: float | None
    """None where the layer cannot be rebuilt at all (no values, or an optimizer without an update rule)."""
    grade: Grade

    @property
    def exact(self) -> bool:
        return self.grade.exact

    @property
    def reason(self) -> str:
        """Why the record is not exact; empty where it is."""
        return self.grade.reason
