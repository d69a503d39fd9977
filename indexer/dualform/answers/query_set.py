"""A stored set of queries. Shapes: n queries, d numbers of a layer's input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns, column_of
from dualform.answers.scan import Scan
from dualform.answers.table import Shown


@dataclass(frozen=True, eq=False, repr=False)
class QuerySet(Shown):
    """Stored queries and what the model answered to them: n examples, d inputs of a layer."""

    name: str
    labels: NDArray[np.int64] | None
    """int64[n], -1 where unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs] of the whole model when the query set was taken."""
    queries: NDArray[np.float32] | None = None
    """float32[n, d] of the layer that was asked for, else None; of a layer that sees tokens or places, those of each
    example after one another, float32[n * L, d].
    """
    scan: Scan = field(default_factory=Scan)

    def shown(self, most: int) -> tuple[Columns, int]:
        """A row an example: its label, and which of the model's outputs was the largest."""
        known = [own for own in (self.labels, self.outputs) if own is not None]
        rows = len(known[0]) if known else 0
        found: dict[str, NDArray[Any]] = {"example": np.arange(min(rows, most))}
        if self.labels is not None:
            found["label"] = column_of([own if own >= 0 else None for own in self.labels[:most].tolist()])
        if self.outputs is not None:
            found["largest output"] = self.outputs[:most].argmax(axis=1)
        return Columns(found, self.scan), rows

    def title(self) -> str:
        parts = [f"labels int64[{len(self.labels)}]"] if self.labels is not None else ["no labels"]
        for name, own in (("outputs", self.outputs), ("queries", self.queries)):
            parts += [] if own is None else [f"{name} float32[{len(own)}, {own.shape[1]}]"]
        return f"Query set {self.name!r}: {', '.join(parts)}"
