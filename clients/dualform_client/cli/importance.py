"""Which columns of a table matter most, for terminals that have no room for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Importance:
    """Which columns of a table go first where there is room for some alone. Those that have nothing in any row go
    before all others; those that are not named go from the right, between the `first` and the `last`.
    """

    kept: Sequence[str] = ()
    """Never left out, for they were asked for."""
    last: Sequence[str] = ()
    """The most important one first."""
    first: Sequence[str] = ()
    """The least important one first."""
