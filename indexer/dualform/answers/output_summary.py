"""Of outputs too many to keep, what predictions and losses are made of. Shapes: rows, k = min(5, outputs)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 5
"""Outputs of a row that are kept."""


@dataclass(frozen=True, eq=False)
class OutputSummary:
    """The largest outputs of each row, its label's, and the logarithm of the sum of all their exponentials."""

    largest: NDArray[np.int64]
    """int64[rows, k]: the numbers of the largest outputs, the largest first."""
    values: NDArray[np.float32]
    """float32[rows, k]: those outputs."""
    label: NDArray[np.float32]
    """float32[rows]: the output of the row's label, NaN without one."""
    logsumexp: NDArray[np.float32]
    """float32[rows]: less `label`, it is the cross-entropy in nats."""
    width: int
    """How many outputs a row has."""

    def __len__(self) -> int:
        return len(self.largest)

    @property
    def loss(self) -> NDArray[np.float64]:
        """float64[rows]: the cross-entropy of each row's label in nats, NaN without one."""
        return self.logsumexp.astype(np.float64) - self.label

    @classmethod
    def of(cls, outputs: NDArray[np.float32], labels: NDArray[np.int64] | None = None) -> OutputSummary:
        """`outputs`: float32[rows, outputs]; `labels`: int64[rows], -1 without one."""
        rows, width = outputs.shape
        k = min(LARGEST, width)
        largest = np.empty((rows, k), np.int64)
        logsumexp = np.empty(rows, np.float32)
        for start in range(0, rows, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            own = outputs[part]
            chosen = np.argpartition(-own, k - 1, axis=1)[:, :k]
            chosen.sort(axis=1)
            order = np.argsort(-np.take_along_axis(own, chosen, axis=1), axis=1, kind="stable")
            largest[part] = np.take_along_axis(chosen, order, axis=1)
            top = own.max(axis=1, keepdims=True).astype(np.float64)
            logsumexp[part] = top[:, 0] + np.log(np.exp(own - top).sum(axis=1))
        label = np.full(rows, np.nan, np.float32)
        if labels is not None:
            known = np.flatnonzero((labels >= 0) & (labels < width))
            label[known] = outputs[known, labels[known]]
        return cls(largest, np.take_along_axis(outputs, largest, axis=1), label, logsumexp, width)

    @classmethod
    def joined(cls, parts: list[OutputSummary]) -> OutputSummary:
        """Of rows one after another."""
        return cls(
            np.concatenate([own.largest for own in parts]),
            np.concatenate([own.values for own in parts]),
            np.concatenate([own.label for own in parts]),
            np.concatenate([own.logsumexp for own in parts]),
            parts[0].width,
        )


_AT_ONCE = 256
"""Rows."""
