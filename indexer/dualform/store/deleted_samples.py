"""What was taken out of a memory, as its manifest says it; each layer says how many of its slots were (layer.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class DeletedSamples:
    """All that was deleted so far. Of whom, nobody can tell."""

    samples: int
    """Datapoints: rows of batches."""
    first_step: int
    """The first step that had one of them: from there on the record alone is not what the training made."""
    steps: int
    """How many steps were taken by the moment as of which the sums stand: all of the memory's."""
    sums: str = ""
    """The name of the file with what they brought, within weights/; empty where no such sum is kept."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """By slot space, how many were theirs; spaces of which they had none may be missing."""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def and_before(self, before: DeletedSamples | None) -> DeletedSamples:
        """With what was deleted earlier, of a memory that has as many steps."""
        if before is None:
            return self
        first = min(before.first_step, self.first_step)
        slots = dict(Counter(before.slots) + Counter(self.slots))
        return replace(self, samples=before.samples + self.samples, first_step=first, slots=slots)
