"""Whose loss is followed through a training, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from dualform.errors import BadInput
from dualform.questions.arguments import as_by
from dualform.record.example_signals import Examples, Loss
from dualform.record.model_arguments import Inputs

Method: TypeAlias = Literal["first-order", "path"]
METHODS = ("first-order", "path")


@dataclass(frozen=True, eq=False)
class Influence:
    """Examples whose loss `ledger` follows through every update of a training.

    Raises BadInput for an unknown method, and for points or a tail out of range.
    """

    name: str
    """The name of the ledger."""
    inputs: Inputs
    """The inputs of n examples, as in `Recorder.query_set`."""
    labels: Any
    """Passed to `loss` with the model's outputs: a tensor or array whose first axis is the examples."""
    loss: Loss
    by: Sequence[str] | str = ("sample",)
    """Columns of the slots; contributions are summed by their values."""
    method: Method = "first-order"
    """ "first-order" multiplies each update by the gradient of the loss before it. This is TracIn with every step as a
    checkpoint (Pruthi et al., 2020) and first-order In-Run Data Shapley (Wang et al., 2024). "path" averages the
    gradient along each update, so that contributions add up to the change of the loss."""
    points: int = 2
    """The number of Gauss-Legendre points for the average of "path", 1 to 16."""
    tail: float = 1e-3
    """Under momentum, a slot moves the weights again and again, by less each time. It is followed until an update is
    this fraction of the largest one; 0 follows it to the end. The rest is the line `truncated` of the ledger."""
    batch_dim: int = 0
    """The axis of examples in `inputs`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", as_by(self.by))
        if not self.by:
            raise BadInput("by must name at least one column.", hint='For example by=("sample",).', field="by")
        if self.method not in METHODS:
            known = ", ".join(METHODS)
            raise BadInput(f"Unknown method {self.method!r}.", hint=f"Choose one of {known}.", field="method")
        if not isinstance(self.points, int) or isinstance(self.points, bool) or not 1 <= self.points <= 16:
            raise BadInput(f"points must be a whole number from 1 to 16, not {self.points!r}.", field="points")
        if not 0 <= self.tail < 1:
            hint = "Pass tail=0 to follow each slot to the end, or a share of its largest part in an update."
            raise BadInput(f"tail must be at least 0 and less than 1, not {self.tail!r}.", hint=hint, field="tail")

    @property
    def examples(self) -> Examples:
        """The examples and their loss, as the ledger reads them."""
        return Examples(f"influence {self.name!r}", self.inputs, self.labels, self.loss, self.batch_dim)

    @property
    def places(self) -> list[tuple[float, float]]:
        """The points along an update, from 0 to 1, at which the gradient is taken, and their weights."""
        if self.method == "first-order":
            return [(0.0, 1.0)]
        nodes, weights = np.polynomial.legendre.leggauss(self.points)
        return [((1 + node) / 2, weight / 2) for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True)]
