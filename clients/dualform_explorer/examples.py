"""Query sets: their layers, examples and labels, the network's outputs for them, and its output layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dualform.answers import LayerInfo, MemoryInfo, Placebos, QuerySet, QuerySetInfo
from dualform.answers.contents import OutputSummary
from dualform.errors import DualformError, Inexact, NotFound
from dualform.methods import Answers
from dualform_explorer.filter import complete_columns
from dualform_explorer.memories import beside_of
from dualform_explorer.places import first_shown, places_of
from dualform_explorer.state import CELL, MISCLASSIFIED, State
from dualform_explorer.words import Words, visible


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """int64[min(count, most)]: numbers below `count`, evenly spread, including both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def layer_of(info: MemoryInfo, name: str) -> LayerInfo | None:
    """The recorded layer with a name, which may be the name of one of its parts."""
    return next((layer for layer in info.layers if layer.name == name or name in layer.views), None)


def query_set_of(info: MemoryInfo, name: str) -> QuerySetInfo | None:
    return next((query_set for query_set in info.query_sets if query_set.name == name), None)


def layers_of(info: MemoryInfo, query_set: QuerySetInfo | str) -> list[LayerInfo]:
    """The layers of which a query set stores queries."""
    found = query_set_of(info, query_set) if isinstance(query_set, str) else query_set
    return [] if found is None else [layer for layer in info.layers if layer.name in found.layers]


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


def label_names(memory: Answers, info: MemoryInfo) -> LabelNames:
    """Empty if no names were recorded, or if a server answers no SQL. Pages then show numbers."""
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


def examples_of(memory: Answers, info: MemoryInfo, name: str) -> Examples:
    """If the record does not state the number of examples, count the network's outputs. Without outputs, count the
    queries of a layer that sees examples whole, then the labels, then the stored rows.
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
"""Summaries by query set, so that outputs are read only once."""


def _summary_of(query_set: QuerySet) -> OutputSummary:
    """The summary of a query set with outputs per token."""
    found = query_set.summary or _SUMMARIES.get(query_set)
    if found is None:
        outputs, labels = query_set.outputs, query_set.labels
        assert outputs is not None
        own = labels if labels is not None and len(labels) == len(outputs) else None
        found = _SUMMARIES[query_set] = OutputSummary.of(outputs, own)
    return found


def _seen_whole(memory: Answers, info: MemoryInfo, query_set: QuerySetInfo) -> int | None:
    """The number of queries of a layer that sees examples whole. None if there is no such layer, or no other."""
    own = layers_of(info, query_set)
    whole = [layer for layer in own if layer.space == "sample"]
    if not whole or len(whole) == len(own):
        return None
    queries = memory.query_set(query_set.name, min(whole, key=lambda layer: layer.d_in).name).queries
    return None if queries is None else len(queries)


def moved(memory: Answers, info: MemoryInfo, state: State, by: int) -> State:
    """The state of an example that is `by` places further in the current selection, or further back. It stops at the
    first and the last one.
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
    """The number of queries that an example has in a layer: one, or one for each token or place."""
    found, query_set = layer_of(info, layer), query_set_of(info, examples.query_set)
    if found is None or query_set is None or not examples.count:
        return 1
    first = layer_of(info, query_set.layers[0])  # the query set counts rows of the layer that ran first
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
    """The token or place to ask about in a layer that has `tokens` of them for each example. The default is the last
    token with a label, or the place of a convolution with the largest attention. None if the layer sees examples whole.
    Raises NotFound for a token that no layer has, or an unknown example.
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
    """Whether a layer's slots belong to no sample, such as those of a table of positions that all samples share."""
    if layer.space in ("sample", "token") or not info.slots.get(layer.space):
        return False
    try:
        (slot,) = memory.slots([0], layer.space).records()
    except NotFound:  # it was deleted
        return False
    return slot.get("row") is None and slot.get("sample") is None


def shared_row(memory: Answers, info: MemoryInfo, state: State, layer: str) -> tuple[int, int] | None:
    """For a layer whose stored queries belong to no example, such as a table of positions: the row to ask about, which
    has the number of the page's token, and the number of rows. None for any other layer.
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
    """The stored query of the page's example in a layer, as questions name it; an array if the layer's queries belong
    to no example. Raises NotFound for an unknown token or example.
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
    """The label of the page's example, or of the token that a layer is asked about."""
    tokens = tokens_of(memory, info, examples, layer)
    return examples.label_at(state.row, token_of(memory, info, examples, layer, tokens, state), tokens)


SETS, MOST_RATED = 50, 1000
"""The number of random sets, and the most examples that base rates are counted over."""
_MOST_RATED_OUTPUTS = 1_000_000
"""The most outputs of all those examples."""


@dataclass(frozen=True, eq=False)
class Rated:
    """The effect of an ablation of the output layer on a query set, and the effect of random ablations of its size."""

    rows: NDArray[np.int64]
    """int64[n]: examples, or tokens of all examples, spread evenly over those whose label is an output."""
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


def rated(
    memory: Answers, examples: Examples, layer: str, where: str, at: int | None = None, inexact: bool = False
) -> Rated | None:
    """The base rates of an ablation in the layer that gives the network's outputs, over examples or their tokens. None
    if labels are unknown. Raises the errors of `placebo`.
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
"""The most outputs that a page shows of a layer."""
_TRIED = 8
"""The number of examples on which a layer is compared with the network."""
_LEAST, _MOST = 1e-3, 5e-2
"""How far the layer's outputs may be from the network's, relative to the largest output: in float32, and at most."""


@dataclass(frozen=True)
class OutputLayer:
    name: str
    difference: float
    """The largest difference between its outputs and the network's, over the examples that were compared."""
    tried: int


def output_layer(memory: Answers, info: MemoryInfo, examples: Examples) -> OutputLayer | None:
    """The layer that gives the network's outputs. None if these are unknown, or if no recorded layer gives them, such
    as after a softmax in the model or a sum with other layers.
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
