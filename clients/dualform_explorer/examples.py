"""The examples of query sets: their labels, their names, the network's outputs for them, and what an ablation changes.

Shapes: n examples of L tokens; P places of a convolution, row by row.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dualform.answers import LayerInfo, MemoryInfo, Patches, Placebos, QuerySet
from dualform.answers.contents import PNG, OutputSummary
from dualform_explorer.state import CELL, MISCLASSIFIED
from dualform_explorer.words import Words, visible


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """int64[min(count, most)]: numbers below `count`, evenly spread, including both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


NAMES = "SELECT dataset, label, name FROM labels"


@dataclass(frozen=True)
class LabelNames:
    by_dataset: Mapping[tuple[Any, Any], str] = field(default_factory=dict)
    datasets: frozenset[str | None] = frozenset()
    """The datasets of the memory; with None if some slots have a dataset and others do not, and empty if no slot has
    one."""
    words: Words | None = None
    """Names from a tokenizer, for labels that have no recorded name."""

    def of(self, label: Any, *dataset: Any) -> str:
        """The name of a label in a dataset; without a dataset, the name it has in all of them. Empty if it has no name
        or several, if its name is just the number, and if its dataset has no names, because labels may mean something
        else there. White space at its ends is made visible.
        """
        found = visible(self._recorded(label, *dataset))
        return self.words.of(label) if not found and self.words is not None and isinstance(label, int) else found

    def _recorded(self, label: Any, *dataset: Any) -> str:
        known = {own for own, _ in self.by_dataset}
        asked = {*dataset} if dataset and self.datasets else self.datasets or known
        if label is None or not asked <= known:
            return ""
        named = {name for (own, number), name in self.by_dataset.items() if number == label and own in asked}
        name = named.pop() if len(named) == 1 else ""
        return "" if name == str(label) else name


@dataclass(frozen=True, eq=False)
class Examples:
    """n examples of a query set, each of L tokens if outputs or labels are per token."""

    query_set: str
    count: int
    labels: NDArray[np.int64] | None
    """int64[n], -1 if unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs]: the network's outputs when the query set was stored."""
    token_labels: NDArray[np.int64] | None
    """int64[n * L], in place of `labels` if each token has a label."""
    of_tokens: OutputSummary | None = None
    """A summary of n * L rows, in place of `outputs` if each token has outputs."""

    @property
    def read(self) -> NDArray[np.int64] | None:
        """int64[n]: the largest output. None without outputs, and for a single output, which has nothing to be compared
        with.
        """
        return None if self.outputs is None or self.outputs.shape[1] < 2 else self.outputs.argmax(axis=1)

    @property
    def tokens(self) -> int | None:
        """L; None if neither outputs nor labels are per token."""
        own = self.token_labels if self.of_tokens is None else self.of_tokens
        return None if own is None or not self.count or len(own) % self.count else len(own) // self.count

    @property
    def token_errors(self) -> tuple[int, int] | None:
        """The number of tokens whose largest output differs from their label, and the number of tokens with a label.
        None if outputs or labels of tokens are unknown.
        """
        if self.of_tokens is None or self.token_labels is None or self.of_tokens.width < 2:
            return None
        if len(self.token_labels) != len(self.of_tokens):
            return None
        known = ~np.isnan(self.of_tokens.label)
        wrong = known & (self.token_labels != self.of_tokens.largest[:, 0])
        return int(np.count_nonzero(wrong)), int(np.count_nonzero(known))

    def read_at(self, row: int, token: int | None, tokens: int) -> int | None:
        """The largest output of an example, or of one of its tokens if outputs are per token."""
        if self.read is not None:
            return int(self.read[row])
        if self.of_tokens is None or token is None or tokens != self.tokens or self.of_tokens.width < 2:
            return None
        return int(self.of_tokens.largest[row * tokens + token, 0])

    def losses(self, row: int) -> NDArray[np.float64] | None:
        """float64[L]: the loss of each token of an example, -log softmax of the outputs at its label, in nats. NaN for
        a token without a label; None if outputs or labels of tokens are unknown.
        """
        tokens = self.tokens
        if self.of_tokens is None or tokens is None or self.token_errors is None:
            return None
        return self.of_tokens.loss[row * tokens : (row + 1) * tokens]

    def default_token(self, row: int, tokens: int) -> int:
        """The last token with a label if labels are per token; otherwise the last token."""
        if self.token_labels is not None and len(self.token_labels) == self.count * tokens:
            labelled = np.flatnonzero(self.token_labels[row * tokens : (row + 1) * tokens] >= 0)
            if len(labelled):
                return int(labelled[-1])
        return tokens - 1

    @property
    def misclassified(self) -> NDArray[np.int64]:
        """The rows of examples whose largest output is not their label."""
        if self.read is None or self.labels is None or self.outputs is None:
            return np.empty(0, np.int64)
        known = (self.labels >= 0) & (self.labels < self.outputs.shape[1])
        return np.flatnonzero(known & (self.read != self.labels))

    def label(self, row: int) -> int | None:
        known = self.labels is not None and row < len(self.labels) and self.labels[row] >= 0
        return int(self.labels[row]) if known and self.labels is not None else None

    def label_at(self, row: int, token: int | None, tokens: int) -> int | None:
        """The label of an example, or of one of its tokens if labels are per token."""
        if self.token_labels is None or token is None:
            return self.label(row)
        label = int(self.token_labels[row * tokens + token]) if len(self.token_labels) == self.count * tokens else -1
        return label if label >= 0 else None

    def among(self, which: str) -> NDArray[np.int64]:
        if which == MISCLASSIFIED:
            return self.misclassified
        if CELL.fullmatch(which) and self.labels is not None and self.read is not None:
            label, read = map(int, which.split("-"))
            return np.flatnonzero((self.labels == label) & (self.read == read))
        return np.arange(self.count)


_SUMMARIES: WeakKeyDictionary[QuerySet, OutputSummary] = WeakKeyDictionary()
"""Summaries by query set, so that outputs are read only once."""


def summary_of(query_set: QuerySet) -> OutputSummary:
    """The summary of a query set with outputs per token."""
    found = query_set.summary or _SUMMARIES.get(query_set)
    if found is None:
        outputs, labels = query_set.outputs, query_set.labels
        assert outputs is not None
        own = labels if labels is not None and len(labels) == len(outputs) else None
        found = _SUMMARIES[query_set] = OutputSummary.of(outputs, own)
    return found


MOST_PLACES = 1 << 14
"""The most places whose attention is asked for. Of more, the middle one is shown first."""


@dataclass(frozen=True)
class Box:
    """An area of a picture, in pixels."""

    picture: tuple[int, int]
    """Width and height."""
    x: float
    y: float
    width: float
    height: float
    exact: bool
    """Whether it is the patch itself instead of a cell of the grid."""


@dataclass(frozen=True)
class Places:
    """The places of a layer over pictures."""

    patches: Patches
    first: bool
    """Whether the layer ran first, so that its input may be the picture."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.patches.places
        return rows, columns

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1]

    def box(self, place: int, png: bytes) -> Box | None:
        """The area of a place; None for an unknown place. If the layer's input has the picture's size, it is the patch.
        Otherwise it is a cell of the grid, because the earlier layers decide how much a later layer sees.
        """
        rows, columns = self.grid
        if not 0 <= place < rows * columns or not png.startswith(PNG):
            return None
        width, height = struct.unpack(">II", png[16:24])
        if self.first and (height, width) == self.patches.size:
            (top, bottom), (left, right) = self.patches.spans(place)
            return Box((width, height), left, top, right - left, bottom - top, True)
        row, column = divmod(place, columns)
        wide, high = width / columns, height / rows
        return Box((width, height), column * wide, row * high, wide, high, False)


def places_of(info: MemoryInfo, query_set: str, layer: LayerInfo | None) -> Places | None:
    """None unless the layer is a two-dimensional convolution."""
    if layer is None or layer.patches is None or len(layer.patches.size) != 2:
        return None
    layers = next((own.layers for own in info.query_sets if own.name == query_set), ())
    return Places(layer.patches, layers[:1] == (layer.name,))


SETS, MOST_RATED = 50, 1000
"""The number of random sets, and the most examples that base rates are counted over."""
MOST_RATED_OUTPUTS = 1_000_000
"""The most outputs of all those examples."""


@dataclass(frozen=True, eq=False)
class Rated:
    """The effect of an ablation of the output layer on a query set, and the effect of random ablations of its size."""

    rows: NDArray[np.int64]
    """int64[n]: examples, or tokens of all examples, spread evenly over those whose label is an output."""
    answer: Placebos
    total: int
    of_tokens: bool = False

    @property
    def corrected_rows(self) -> NDArray[np.int64]:
        answer = self.answer
        wrong, right = answer.predicted != answer.labels, answer.outcomes[:, 0] == answer.labels
        return np.asarray(self.rows[wrong & right])

    @property
    def rates(self) -> BaseRates:
        found, random = self.answer, slice(1, 1 + self.answer.random)
        return BaseRates(
            len(self.rows),
            self.total,
            int(found.corrected[0]),
            found.misclassified,
            int(found.broken[0]),
            found.correct,
            found.random,
            _median(found.corrected[random]),
            _median(found.broken[random]),
            int(np.count_nonzero(found.corrected[random] >= found.corrected[0])),
            int(np.count_nonzero(found.broken[random] >= found.broken[0])),
            self.of_tokens,
        )


def _median(counts: NDArray[np.int64]) -> float:
    """The median, as int if it is whole, so that the page shows no decimal point; 0 without counts."""
    found = float(np.median(counts)) if len(counts) else 0.0
    return int(found) if found.is_integer() else found


@dataclass(frozen=True)
class BaseRates:
    examples: int
    total: int
    """The number of examples, or tokens, with a known label, over which those that were asked are evenly spread."""
    corrected: int
    misclassified: int
    """The number of misclassified examples before, of which some are corrected."""
    broken: int
    correct: int
    """The number of correct examples before, of which some are broken."""
    sets: int
    random_corrected: float
    """The median over the random sets."""
    random_broken: float
    as_corrected: int
    """The number of random sets that correct at least as many."""
    as_broken: int
    of_tokens: bool = False
    """Whether tokens were counted instead of examples."""
