"""How far a recording has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """Of one recording, which everything that belongs to it looks at."""

    steps: int = 0
    """Steps recorded so far."""
    begun: bool = False
    """Whether there is a memory: until then what cannot be recorded is refused, later it is a defect."""

    @property
    def last(self) -> int:
        """The last recorded step; 0 before there is one."""
        return max(self.steps - 1, 0)
