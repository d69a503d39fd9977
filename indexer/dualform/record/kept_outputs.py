"""What a model returns for a query set, as it is kept.

    [n, outputs]                          as it is
    [n, L, outputs], or [L, n, outputs]   a row for each token, [n * L, outputs], example after example; where that
                                          takes much, a summary of each row, and the first rows

Shapes: n examples of L tokens. Which axis is the batch is told by how long axes are. Where examples and tokens are as
many, the model runs once more without an example: the axis of the batch is shorter then, and that of tokens is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.answers.contents import OutputSummary
from dualform.record.example_count import ExampleCount

MOST_BYTES = 32 << 20
"""That the outputs of tokens may take: half of what one answer of a server may."""
FIRST_ROWS = 8
"""Rows that are kept whole beside summaries: the output layer is known by them."""
_AT_ONCE_BYTES = 64 << 20
"""Of outputs that are summarized."""


@dataclass(frozen=True)
class Outcome:
    """What a model made of a query set."""

    outputs: NDArray[np.float32] | None
    """float32[n, outputs], or float32[n * L, outputs]; with `summary` only those of the first rows. None where the
    model returns anything else."""
    summary: OutputSummary | None
    """Of outputs of tokens that would take more than MOST_BYTES."""
    tokens: int | None
    """L of outputs for each token; None of others."""
    examples: int | None
    """n; None where it cannot be told."""
    why_none: str
    """Why outputs of three dimensions are not kept."""


class KeptOutputs:
    """Filled batch by batch: `add` what the model returned, `tell` what it returns for an example less where `square`,
    and `settle`.
    """

    def __init__(self, examples: ExampleCount, labels: NDArray[np.int64] | None) -> None:
        """`labels`: of the examples, or of their tokens."""
        self._examples, self._labels = examples, labels
        self._returned: Tensor | None = None
        """Of the batch that ran."""
        self._like: tuple[int, int] | None = None
        """Dimensions and outputs of the first batch."""
        self._axes = {0, 1}
        """Of outputs of tokens, axes that were as long as the batch each time."""
        self._parts: list[Tensor] = []
        self._summaries: list[OutputSummary] = []
        self.tokens: int | None = None
        """L of outputs for each token; None of others."""
        self.rows: int | None = None
        """Rows so far; None where nothing is kept."""
        self.why_none = ""
        self._other = False

    def add(self, returned: Any) -> None:
        output = output_in(returned)
        if output is None or self._like not in (None, (output.dim(), output.shape[-1])):
            self._drop()
            self._other = True
        if output is None or self._other or self.why_none:
            return
        self._like, self._returned = (output.dim(), output.shape[-1]), output.detach()
        if output.dim() == 3:
            batch = self._examples.batch
            self._axes &= {axis for axis in (0, 1) if output.shape[axis] == batch}
            if not self._axes:
                self.refuse(f"they are {list(output.shape)} for {batch} examples, which are along none of their axes")

    @property
    def square(self) -> bool:
        """Whether nothing tells examples from tokens so far."""
        own = self._returned
        return own is not None and own.dim() == 3 and len(self._axes) == 2 and self._examples.batch > 1

    def tell(self, returned: Any) -> None:
        """What the model returns for the batch that ran, without its last example."""
        output, batch = output_in(returned), self._examples.batch
        if output is not None and output.dim() == 3:
            shape = output.shape
            self._axes = {axis for axis in (0, 1) if (shape[axis], shape[1 - axis]) == (batch - 1, batch)}
        if len(self._axes) != 1:
            self.refuse(
                "examples and tokens are as many, and cannot be told apart. Pass another batch_size= to query_set"
            )

    def settle(self, start: int) -> None:
        """Keep what was returned for the batch that began with this example."""
        output, self._returned = self._returned, None
        if output is None:
            return
        if output.dim() == 2:
            self._parts.append(_owned(output))
            self.rows = (self.rows or 0) + len(output)
            return
        output = output.movedim(min(self._axes), 0)
        batch, length, width = output.shape
        if self.tokens not in (None, length):
            self.refuse("examples of different batches have different numbers of tokens")
            return
        self.tokens, self.rows = length, (self.rows or 0) + batch * length
        if 4 * self._examples.given * length * width <= MOST_BYTES:
            self._parts.append(_owned(output.flatten(0, 1)))
            return
        if lacking := FIRST_ROWS - sum(map(len, self._parts)):
            self._parts.append(_owned(output.flatten(0, 1)[:lacking]))
        labels = self._labels
        if labels is not None and len(labels) == self._examples.given * length:
            labels = labels[start * length : (start + batch) * length]
        else:
            labels = None
        self._summaries += _summaries(output, labels)

    def refuse(self, why: str) -> None:
        self._drop()
        self.why_none = why

    def _drop(self) -> None:
        self._parts, self._summaries, self._returned, self.rows, self.tokens = [], [], None, None, None

    def outcome(self, seen: Callable[[], set[int]], labels: int | None, shown: bool) -> Outcome:
        """`seen`: how many rows each layer took; `labels`: how many there are of them, None for none; `shown`: whether
        a preview set has as many samples as there are examples.
        """
        rows = self.rows if self.tokens is None else self._examples.given
        known = self._examples.known(rows, labels, shown)
        if self.tokens is not None and known is None:
            self.refuse("which axis of its inputs is the batch cannot be told. Pass batch_dim= to query_set")
        elif self.tokens not in (None, 1) and self.rows not in {*seen(), labels}:
            self.refuse(f"no layer takes {self.tokens} tokens of an example, and no label belongs to each of them")
        outputs = torch.cat(self._parts).numpy() if self._parts else None
        summary = OutputSummary.joined(self._summaries) if self._summaries else None
        return Outcome(outputs, summary, self.tokens, known, self.why_none)


def _owned(output: Tensor) -> Tensor:
    return output.to("cpu", torch.float32, copy=True)


def _summaries(output: Tensor, labels: NDArray[np.int64] | None) -> list[OutputSummary]:
    """`output`: [batch, L, outputs]; `labels`: int64[batch * L]."""
    rows = output.flatten(0, 1)
    size = max(1, _AT_ONCE_BYTES // (4 * rows.shape[1]))
    return [
        OutputSummary.of(
            _owned(rows[start : start + size]).numpy(), None if labels is None else labels[start : start + size]
        )
        for start in range(0, len(rows), size)
    ]


def output_in(returned: Any) -> Tensor | None:
    """The outputs of two or three dimensions in what a model returned: a tensor, a Hugging Face output with logits, or
    a tuple with one such tensor alone, such as (logits, loss).
    """
    found = getattr(returned, "logits", returned)
    of_several = found if isinstance(found, tuple | list) else (found,)
    fitting = [own for own in of_several if isinstance(own, Tensor) and own.dim() in (2, 3)]
    return fitting[0] if len(fitting) == 1 else None
