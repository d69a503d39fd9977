"""The examples of a query set: how many there are, what the network made of them, and which one follows which."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualform.answers import MemoryInfo, QuerySetInfo
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform_explorer.reading import layer_of, layers_of, query_set_of
from dualform_explorer.state import MISCLASSIFIED, State


@dataclass(frozen=True, eq=False)
class Examples:
    """n examples of a query set."""

    query_set: str
    count: int
    labels: NDArray[np.int64] | None
    """int64[n], -1 where unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs] of the network when the query set was taken."""
    token_labels: NDArray[np.int64] | None
    """int64[n * tokens], in place of `labels` where each token has its own."""

    @property
    def read(self) -> NDArray[np.int64] | None:
        """int64[n]: the output that is largest; None where there are no outputs, and of a single one, whose size says
        nothing beside others.
        """
        return None if self.outputs is None or self.outputs.shape[1] < 2 else self.outputs.argmax(axis=1)

    @property
    def misclassified(self) -> NDArray[np.int64]:
        """Rows of examples whose largest output is not their label."""
        if self.read is None or self.labels is None or self.outputs is None:
            return np.empty(0, np.int64)
        known = (self.labels >= 0) & (self.labels < self.outputs.shape[1])
        return np.flatnonzero(known & (self.read != self.labels))

    def label(self, row: int) -> int | None:
        known = self.labels is not None and row < len(self.labels) and self.labels[row] >= 0
        return int(self.labels[row]) if known and self.labels is not None else None

    def label_at(self, row: int, token: int | None, tokens: int) -> int | None:
        """The label of an example, or of its token where those have their own."""
        if self.token_labels is None or token is None:
            return self.label(row)
        label = int(self.token_labels[row * tokens + token]) if len(self.token_labels) == self.count * tokens else -1
        return label if label >= 0 else None

    def among(self, which: str) -> NDArray[np.int64]:
        return self.misclassified if which == MISCLASSIFIED else np.arange(self.count)


def examples_of(memory: Answers, info: MemoryInfo, name: str) -> Examples:
    """Where the record does not say how many there are, each of the network's outputs is one; where it gave none, each
    query of a layer that sees examples whole, or each label, and without those each stored row.
    """
    query_set, stored = memory.query_set(name), query_set_of(info, name)
    labels, outputs = query_set.labels, query_set.outputs
    if stored is not None and stored.examples is not None:
        count = stored.examples
    elif outputs is not None:
        count = len(outputs)
    else:
        whole = None if stored is None else _seen_whole(memory, info, stored)
        rows = 0 if stored is None else stored.rows
        count = whole or (rows if labels is None else len(labels))
    return Examples(
        name,
        count,
        labels if labels is not None and len(labels) == count else None,
        outputs if outputs is not None and len(outputs) == count else None,
        labels if labels is not None and len(labels) > count else None,
    )


def _seen_whole(memory: Answers, info: MemoryInfo, query_set: QuerySetInfo) -> int | None:
    """How many queries a layer has that sees examples whole; None where there is none beside layers that see tokens."""
    own = layers_of(info, query_set)
    whole = [layer for layer in own if layer.space == "sample"]
    if not whole or len(whole) == len(own):
        return None
    queries = memory.query_set(query_set.name, min(whole, key=lambda layer: layer.d_in).name).queries
    return None if queries is None else len(queries)


def moved(memory: Answers, info: MemoryInfo, state: State, by: int) -> State:
    """The page of the example so many further on among those that are gone through, or back; the last one, or the
    first, where there are not so many.
    """
    rows = examples_of(memory, info, state.query_set).among(state.among)
    if not by or not len(rows):
        return state
    at = int(np.searchsorted(rows, state.row))
    if by > 0 and (at == len(rows) or rows[at] != state.row):
        at -= 1  # the next one is one step away, too
    place = min(max(at + by, 0), len(rows) - 1)
    return replace(state, row=int(rows[place]), token=None)


def tokens_of(memory: Answers, info: MemoryInfo, examples: Examples, layer: str) -> int:
    """How many queries of a layer an example has: one, or one for each token or place."""
    found, query_set = layer_of(info, layer), query_set_of(info, examples.query_set)
    if found is None or query_set is None or not examples.count:
        return 1
    first = layer_of(info, query_set.layers[0])  # whose rows the query set counts: the one that ran first
    if first is not None and found.space == first.space:
        rows = query_set.rows
    elif found.space == "sample":
        rows = examples.count
    else:
        queries = memory.query_set(examples.query_set, found.name).queries
        rows = examples.count if queries is None else len(queries)
    return rows // examples.count if rows % examples.count == 0 else 1


def token_of(examples: Examples, tokens: int, state: State) -> int | None:
    """The place that is asked about of so many in an example: the last one where none is named; None of an example that
    is seen whole. Raises NotFound for a token or an example that there is not.
    """
    if state.row >= examples.count:
        raise NotFound(
            f"The query set {state.query_set} has no example {state.row}: it has 0 to {examples.count - 1}.",
            field="item",
        )
    if tokens == 1:
        return None
    token = tokens - 1 if state.token is None else state.token
    if token >= tokens:
        raise NotFound(f"The example has no token {token}: it has 0 to {tokens - 1}.", field="token")
    return token


def query_of(memory: Answers, info: MemoryInfo, state: State, layer: str | None = None) -> str:
    """The stored query of the page's example in a layer, as questions name it. Raises NotFound for a token or an
    example that there is not.
    """
    examples = examples_of(memory, info, state.query_set)
    tokens = tokens_of(memory, info, examples, state.layer if layer is None else layer)
    token = token_of(examples, tokens, state)
    return state.item if token is None else f"{state.item}:{token}"
