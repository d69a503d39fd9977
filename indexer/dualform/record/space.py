"""One space of slots, as a recording knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RecordedSpace:
    """One space, as its layers' first keys showed it."""

    name: str
    tokens: bool
    """Whether a row has positions: some layer's key has more than the batch's axis before its last."""
    routed: bool
    axis: int | None
    """Which axis of those layers' keys is the batch; None where nothing told: it is taken for the first."""
    said: bool = False
    """Whether the training said so, of all its layers."""
    fixed: bool = False
    """Whether it is so by the kind of those layers, whatever is said of the space: another tells nothing of its own."""
    teller: str = ""
    """A layer whose module told the axis."""
