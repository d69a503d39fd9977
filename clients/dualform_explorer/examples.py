"""Query sets: their layers, their examples and labels, what the network made of them, and its output layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dualform.answers import LayerInfo, MemoryInfo, Placebos, QuerySet, QuerySetInfo
from dualform.answers.output_summary import OutputSummary
from dualform.errors import DualformError, Inexact, NotFound
from dualform.methods import Answers
from dualform_explorer.filter import complete_columns
from dualform_explorer.memories import beside_of
from dualform_explorer.places import first_shown, places_of
from dualform_explorer.state import CELL, MISCLASSIFIED, State
from dualform_explorer.words import Words, visible


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """int64[min(count, most)]: numbers below `count`, evenly spread, both ends included."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def layer_of(info: MemoryInfo, name: str) -> LayerInfo | None:
    """The recorded layer of a name, which may be that of one of its parts."""
    return next((layer for layer in info.layers if layer.name == name or name in layer.views), None)


def query_set_of(info: MemoryInfo, name: str) -> QuerySetInfo | None:
    return next((query_set for query_set in info.query_sets if query_set.name == name), None)


def layers_of(info: MemoryInfo, query_set: QuerySetInfo | str) -> list[LayerInfo]:
    """Those that a query set, or that of a name, has queries of."""
    found = query_set_of(info, query_set) if isinstance(query_set, str) else query_set
    return [] if found is None else [layer for layer in info.layers if layer.name in found.layers]


NAMES = "SELECT dataset, label, name FROM labels"


@dataclass(frozen=True)
class LabelNames:
    by_dataset: Mapping[tuple[Any, Any], str] = field(default_factory=dict)
    datasets: frozenset[str | None] = frozenset()
    """Those of the memory, with None where beside them some slots have no dataset; empty where none has any."""
    words: Words | None = None
    """Of a tokenizer, which name what the memory has no name for."""

    def of(self, label: Any, *dataset: Any) -> str:
        """The name of a label of a dataset, or without one that which it has in all; empty where there is none, or
        several, or where it says no more than the number, and where a dataset has no names: its labels may mean others.
        White space at its ends is shown.
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


def label_names(memory: Answers, info: MemoryInfo) -> LabelNames:
    """Empty where there are none, and where a server answers no SQL: numbers stand for themselves then."""
    words = beside_of(memory).words
    try:
        rows = memory.sql(NAMES)
    except DualformError:
        return LabelNames(words=words)
    datasets: set[str | None] = {*info.datasets}
    if datasets and "dataset" not in complete_columns(info):
        datasets.add(None)
    return LabelNames({(row["dataset"], row["label"]): str(row["name"]) for row in rows}, frozenset(datasets), words)


@dataclass(frozen=True, eq=False)
class Examples:
    """n examples of a query set, of L tokens where those have outputs or labels of their own."""

    query_set: str
    count: int
    labels: NDArray[np.int64] | None
    """int64[n], -1 where unknown."""
    outputs: NDArray[np.float32] | None
    """float32[n, outputs] of the network when the query set was taken."""
    token_labels: NDArray[np.int64] | None
    """int64[n * L], in place of `labels` where each token has its own."""
    of_tokens: OutputSummary | None = None
    """Of n * L rows, in place of `outputs` where the network has some for each token."""

    @property
    def read(self) -> NDArray[np.int64] | None:
        """int64[n]: the output that is largest; None where there are no outputs, and of a single one, whose size says
        nothing beside others.
        """
        return None if self.outputs is None or self.outputs.shape[1] < 2 else self.outputs.argmax(axis=1)

    @property
    def tokens(self) -> int | None:
        """L; None where neither outputs nor labels are those of tokens."""
        own = self.token_labels if self.of_tokens is None else self.of_tokens
        return None if own is None or not self.count or len(own) % self.count else len(own) // self.count

    @property
    def token_errors(self) -> tuple[int, int] | None:
        """How many tokens have another label than their largest output, and how many have a label at all; None where
        outputs or labels of tokens are not known.
        """
        if self.of_tokens is None or self.token_labels is None or self.of_tokens.width < 2:
            return None
        if len(self.token_labels) != len(self.of_tokens):
            return None
        known = ~np.isnan(self.of_tokens.label)
        wrong = known & (self.token_labels != self.of_tokens.largest[:, 0])
        return int(np.count_nonzero(wrong)), int(np.count_nonzero(known))

    def read_at(self, row: int, token: int | None, tokens: int) -> int | None:
        """The largest output of an example, or of its token where those have their own."""
        if self.read is not None:
            return int(self.read[row])
        if self.of_tokens is None or token is None or tokens != self.tokens or self.of_tokens.width < 2:
            return None
        return int(self.of_tokens.largest[row * tokens + token, 0])

    def losses(self, row: int) -> NDArray[np.float64] | None:
        """float64[L]: how surprising the label of each token of an example was, -log of the share that a softmax of the
        outputs gives it, in nats; NaN where a token has none. None where outputs or labels of tokens are not known.
        """
        tokens = self.tokens
        if self.of_tokens is None or tokens is None or self.token_errors is None:
            return None
        return self.of_tokens.loss[row * tokens : (row + 1) * tokens]

    def default_token(self, row: int, tokens: int) -> int:
        """The last token that has a label, where tokens have their own; else the last one."""
        if self.token_labels is not None and len(self.token_labels) == self.count * tokens:
            labelled = np.flatnonzero(self.token_labels[row * tokens : (row + 1) * tokens] >= 0)
            if len(labelled):
                return int(labelled[-1])
        return tokens - 1

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
        if which == MISCLASSIFIED:
            return self.misclassified
        if CELL.fullmatch(which) and self.labels is not None and self.read is not None:
            label, read = map(int, which.split("-"))
            return np.flatnonzero((self.labels == label) & (self.read == read))
        return np.arange(self.count)


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
    made = 0 if outputs is None else len(outputs)
    of_tokens = query_set.summary is not None or (made > count > 0 and made % count == 0)
    return Examples(
        name,
        count,
        labels if labels is not None and len(labels) == count else None,
        outputs if outputs is not None and len(outputs) == count else None,
        labels if labels is not None and len(labels) > count else None,
        _summary_of(query_set) if of_tokens else None,
    )


_SUMMARIES: WeakKeyDictionary[QuerySet, OutputSummary] = WeakKeyDictionary()
"""Of query sets that were asked for: their outputs are gone through once."""


def _summary_of(query_set: QuerySet) -> OutputSummary:
    """Of the outputs of tokens."""
    found = query_set.summary or _SUMMARIES.get(query_set)
    if found is None:
        outputs, labels = query_set.outputs, query_set.labels
        assert outputs is not None
        own = labels if labels is not None and len(labels) == len(outputs) else None
        found = _SUMMARIES[query_set] = OutputSummary.of(outputs, own)
    return found


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


def token_of(
    memory: Answers, info: MemoryInfo, examples: Examples, layer: str, tokens: int, state: State
) -> int | None:
    """The place that is asked about of so many that an example has in a layer: where none is named, or one that other
    layers alone have, the last one with a label, and of a convolution the one with the largest attention; None of an
    example that is seen whole. Raises NotFound for a token that no layer has, and an example that there is not.
    """
    if state.row >= examples.count:
        raise NotFound(
            f"The query set {state.query_set} has no example {state.row}: it has 0 to {examples.count - 1}.",
            field="item",
        )
    if tokens == 1:
        return None
    if state.token is not None and state.token < tokens:
        return state.token
    if state.token is not None:
        query_set = query_set_of(info, examples.query_set)
        by_space = {} if query_set is None else {own.space: own.name for own in layers_of(info, query_set)}
        if state.token >= max(tokens_of(memory, info, examples, own) for own in by_space.values()):
            raise NotFound(f"The example has no token {state.token}: it has 0 to {tokens - 1}.", field="token")
    places = places_of(info, examples.query_set, layer_of(info, layer))
    if places is not None and places.count == tokens:
        return first_shown(memory, layer, state.item, places)
    return examples.default_token(state.row, tokens)


def of_no_sample(memory: Answers, info: MemoryInfo, layer: LayerInfo) -> bool:
    """Whether a layer's slots are of no sample, as those of a table of positions that is looked up once for all."""
    if layer.space in ("sample", "token") or not info.slots.get(layer.space):
        return False
    try:
        (slot,) = memory.slots([0], layer.space).records()
    except NotFound:  # it was deleted
        return False
    return slot.get("row") is None and slot.get("sample") is None


def shared_row(memory: Answers, info: MemoryInfo, state: State, layer: str) -> tuple[int, int] | None:
    """Of a layer whose stored queries are of no example, as those of a table of positions that is looked up once for
    all of them: which one is asked, the one with the number of the page's token, and how many there are; None of any
    other layer.
    """
    found = layer_of(info, layer)
    if found is None or not of_no_sample(memory, info, found):
        return None
    queries = memory.query_set(state.query_set, found.name).queries
    if queries is None or not len(queries):
        return None
    examples = examples_of(memory, info, state.query_set)
    token = state.token if state.token is not None else examples.default_token(state.row, examples.tokens or 1)
    return (token if token < len(queries) else 0), len(queries)


def query_of(memory: Answers, info: MemoryInfo, state: State, layer: str | None = None) -> str | NDArray[np.float32]:
    """The stored query of the page's example in a layer, as questions name it, or its numbers where the layer's queries
    are of no example. Raises NotFound for a token or an example that there is not.
    """
    name = state.layer if layer is None else layer
    if (shared := shared_row(memory, info, state, name)) is not None:
        queries = memory.query_set(state.query_set, name).queries
        assert queries is not None
        return queries[shared[0] : shared[0] + 1]
    examples = examples_of(memory, info, state.query_set)
    token = token_of(memory, info, examples, name, tokens_of(memory, info, examples, name), state)
    return state.item if token is None else f"{state.item}:{token}"


def label_in(memory: Answers, info: MemoryInfo, state: State, examples: Examples, layer: str) -> int | None:
    """The label of the page's example, or of the token that is asked about in a layer."""
    tokens = tokens_of(memory, info, examples, layer)
    return examples.label_at(state.row, token_of(memory, info, examples, layer, tokens, state), tokens)


SETS, MOST_RATED = 50, 1000
"""Random sets, and examples of a query set that base rates are counted over."""
_MOST_RATED_OUTPUTS = 1_000_000
"""Of all those examples."""


@dataclass(frozen=True, eq=False)
class Rated:
    """What an ablation of the output layer makes of a query set, and what random ones of its size do."""

    rows: NDArray[np.int64]
    """int64[n]: the examples, or tokens of all examples, evenly over those whose label is an output."""
    answer: Placebos
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
            int(found.corrected[0]),
            found.misclassified,
            int(found.broken[0]),
            found.correct,
            found.random,
            _median(found.corrected[random]),
            _median(found.broken[random]),
            self.of_tokens,
        )


def _median(counts: NDArray[np.int64]) -> float:
    """A whole one as int, and so without a point on the page; 0 of none."""
    found = float(np.median(counts)) if len(counts) else 0.0
    return int(found) if found.is_integer() else found


@dataclass(frozen=True)
class BaseRates:
    examples: int
    corrected: int
    misclassified: int
    """Before, of which some are corrected."""
    broken: int
    correct: int
    """Before, of which some are broken."""
    sets: int
    random_corrected: float
    """By the median of the random sets."""
    random_broken: float
    of_tokens: bool = False
    """Whether tokens were counted, not examples."""


def rated(
    memory: Answers, examples: Examples, layer: str, where: str, at: int | None = None, inexact: bool = False
) -> Rated | None:
    """None where no labels are known. Of a layer that gives the network's outputs, of examples or of their tokens.
    Raises as `placebo` does.
    """
    each = examples.tokens if examples.token_errors is not None else None
    if each is not None and examples.of_tokens is not None:
        labels, width = examples.token_labels, examples.of_tokens.width
    else:
        labels, width = examples.labels, 0 if examples.outputs is None else examples.outputs.shape[1]
    if labels is None or width < 2:
        return None
    known = np.flatnonzero((labels >= 0) & (labels < width))
    most = min(len(known), MOST_RATED, max(1, _MOST_RATED_OUTPUTS // width))
    if not most:
        return None
    rows = known[np.linspace(0, len(known) - 1, most).round().astype(int)]
    named = map(str, rows.tolist()) if each is None else (f"{row // each}:{row % each}" for row in rows.tolist())
    query = f"{examples.query_set}/{','.join(named)}"
    return Rated(rows, memory.placebo(layer, query, where, SETS, at, inexact), each is not None)


MOST_OUTPUTS = 12
"""Of a layer that has more, a page shows so many."""
_TRIED = 8
"""Examples that a layer is asked about."""
_LEAST, _MOST = 1e-3, 5e-2
"""Of the largest output: how far the layer's outputs may be from the network's, in float32 and at most."""


@dataclass(frozen=True)
class OutputLayer:
    name: str
    difference: float
    """The largest between its outputs and the network's, over the examples that were tried."""
    tried: int


def output_layer(memory: Answers, info: MemoryInfo, examples: Examples) -> OutputLayer | None:
    """None where the network's outputs are not known, or are those of no recorded layer: of a softmax in the model, or
    behind a sum with other layers.
    """
    query_set = query_set_of(info, examples.query_set)
    summary, outputs = examples.of_tokens, examples.outputs
    count = len(summary) if summary is not None else 0 if outputs is None else len(outputs)
    if query_set is None or not count:
        return None
    tokens, tried = count // examples.count, evenly(count, _TRIED)
    if summary is not None:
        numbers, stored, width = summary.largest[tried], summary.values[tried].astype(np.float64), summary.width
    else:
        assert outputs is not None
        stored, width = outputs[tried].astype(np.float64), outputs.shape[1]
        numbers = np.broadcast_to(np.arange(width), stored.shape)
    scale = float(np.abs(stored).max())
    places = zip(*(own.tolist() for own in np.divmod(tried, tokens)), strict=True)
    rows = ",".join(str(row) if summary is None else f"{row}:{token}" for row, token in places)
    layers = layers_of(info, query_set)
    layers.reverse()
    layers.sort(key=lambda own: own.name != info.output_layer)
    for layer in layers:
        if layer.d_out != width or not layer.values:
            continue
        if layer.space != "sample" if summary is None else tokens_of(memory, info, examples, layer.name) != tokens:
            continue
        try:
            own = np.asarray(memory.output(layer.name, f"{examples.query_set}/{rows}"), dtype=np.float64)
        except Inexact:
            continue
        difference = float(np.abs(np.take_along_axis(own, numbers, axis=1) - stored).max())
        if difference <= scale * _tolerance(layer.status.name, layer.status.error):
            return OutputLayer(layer.name, difference, len(tried))
    return None


def _tolerance(status: str, error: float | None) -> float:
    if status == "exact":
        return _LEAST
    return min(_MOST, max(1e-2, 10 * (error or 0.0)))
