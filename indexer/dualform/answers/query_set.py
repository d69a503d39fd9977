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
    """A stored query set of n examples: labels, the model's outputs, and the queries of a layer of width d."""

    name: str
    labels: NDArray[np.int64] | None
    """int64[n], -1 if unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs]: the outputs of the model when the query set was recorded."""
    queries: NDArray[np.float32] | None = None
    """float32[n, d]: the queries of the named layer, otherwise None. In layers that see tokens float32[n * L, d],
    example after example."""
    scan: Scan = field(default_factory=Scan)

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each example: its label and the largest output."""
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
