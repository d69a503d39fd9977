"""Questions about what a memory holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Certificates, Columns, MemoryInfo, Probe
from dualform.questions.arguments import as_ids
from dualform.questions.question import Question


@dataclass(frozen=True)
class Inventory(Question[MemoryInfo]):
    """What the memory holds: layers, slots, datasets, columns, probes."""


@dataclass(frozen=True, eq=False)
class SlotLookup(Question[Columns]):
    """The columns of some slots, in the order of `ids`."""

    ids: NDArray[np.int64]
    """int64[n]."""
    space: str | None = None
    """None where the memory has only one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", as_ids(self.ids))


@dataclass(frozen=True)
class SqlStatement(Question[Columns]):
    """The rows of one SELECT over slots, steps, and the other tables."""

    text: str


@dataclass(frozen=True)
class ProbeLookup(Question[Probe]):
    """A stored probe, with the queries of a layer where one is named."""

    name: str
    layer: str | None = None


@dataclass(frozen=True)
class Verification(Question[Certificates]):
    """How well the record rebuilds each layer's final weights; a pass over all keys and values."""
