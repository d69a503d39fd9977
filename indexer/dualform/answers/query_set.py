"""A stored set of queries. Shapes: n examples of L tokens, d numbers of a layer's input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns, column_of
from dualform.answers.output_summary import OutputSummary
from dualform.answers.scan import Scan
from dualform.answers.table import Shown


@dataclass(frozen=True, eq=False, repr=False)
class QuerySet(Shown):
    """A stored query set of n examples: labels, the model's outputs, and the queries of a layer of width d."""

    name: str
    labels: NDArray[np.int64] | None
    """int64[n], or int64[n * L] with a label for each token, example after example; -1 if unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs]: the outputs of the model when the query set was recorded. If the model has outputs for each
    token, float32[n * L, outputs], example after example. None if they were not stored, or only as a `summary`."""
    queries: NDArray[np.float32] | None = None
    """float32[n, d]: the queries of the named layer, otherwise None. In layers that see tokens float32[n * L, d],
    example after example."""
    scan: Scan = field(default_factory=Scan)
    examples: int | None = None
    """n; None if unknown."""
    summary: OutputSummary | None = None
    """If the outputs of all tokens would take more than 32 MiB: the largest outputs of each token, in their place."""

    def shown(self, most: int) -> tuple[Columns, int]:
        """One row for each example, or for each token of it: its label and the largest output."""
        lengths = [len(own) for own in (self.labels, self.outputs, self.summary) if own is not None]
        rows = max(lengths, default=0)
        row = np.arange(min(rows, most))
        tokens = rows // max(min([*lengths, self.examples or rows]), 1)
        found: dict[str, NDArray[Any]] = {"example": row // max(tokens, 1)}
        if tokens > 1:
            found["token"] = row % tokens
        if self.labels is not None:
            own = self.labels[row // (rows // len(self.labels))] if rows else self.labels
            found["label"] = column_of([label if label >= 0 else None for label in own.tolist()])
        if self.outputs is not None:
            largest = self.outputs[row // (rows // len(self.outputs))] if rows else self.outputs
            found["largest output"] = largest.argmax(axis=1)
        elif self.summary is not None:
            found["largest output"] = self.summary.largest[row // max(rows // len(self.summary), 1), 0]
        return Columns(found, self.scan), rows

    def title(self) -> str:
        parts = [f"labels int64[{len(self.labels)}]"] if self.labels is not None else ["no labels"]
        for name, own in (("outputs", self.outputs), ("queries", self.queries)):
            parts += [] if own is None else [f"{name} float32[{len(own)}, {own.shape[1]}]"]
        return f"Query set {self.name!r}: {', '.join(parts)}"
