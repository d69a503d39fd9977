"""A memory at one snapshot, and the view of it that one page has: its example, token, layers, filter and outputs.

All panels ask through these, so that what they ask alike is named alike, and answered once.

Shapes: n queries of a layer; P places of a convolution, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import LayerInfo, MemoryInfo, Outputs, QuerySetInfo
from dualform.errors import DualformError, NotFound
from dualform.methods import Answers
from dualform_explorer.examples import (
    MOST_PLACES,
    MOST_RATED,
    MOST_RATED_OUTPUTS,
    NAMES,
    SETS,
    Examples,
    LabelNames,
    Places,
    Rated,
    places_of,
    summary_of,
)
from dualform_explorer.filter import complete_columns
from dualform_explorer.memories import beside_of
from dualform_explorer.state import State, layer_of, layers_of, query_set_of


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A memory, and what it holds."""

    memory: Answers
    info: MemoryInfo

    def page(self, state: State) -> View:
        """The view of a page."""
        return View(self.memory, self.info, state)

    @cached_property
    def names(self) -> LabelNames:
        """Empty if no names were recorded, or if a server answers no SQL. Pages then show numbers."""
        words = beside_of(self.memory).words
        try:
            rows = self.memory.sql(NAMES)
        except DualformError:
            return LabelNames(words=words)
        datasets: set[str | None] = {*self.info.datasets}
        if datasets and "dataset" not in self.complete:
            datasets.add(None)
        return LabelNames(
            {(row["dataset"], row["label"]): str(row["name"]) for row in rows}, frozenset(datasets), words
        )

    @cached_property
    def complete(self) -> frozenset[str]:
        """The columns that are never NULL."""
        return complete_columns(self.info)

    @cached_property
    def unmarked(self) -> str:
        """Why tokens cannot be marked; empty if a position is the place of a token in the texts. An encoder and a
        decoder have separate positions, and previews do not say whose theirs are. Slots without a sample, such as those
        of a table of positions, have no text.
        """
        spaces = sorted({layer.space for layer in self.info.layers if not self.of_no_sample(layer)} - {"sample"})
        if len(spaces) < 2:
            return ""
        return f"No token is marked: positions are of several kinds ({', '.join(spaces)}), and texts do not say which."

    def of_no_sample(self, layer: LayerInfo) -> bool:
        """Whether a layer's slots belong to no sample, such as those of a table of positions that all samples share."""
        if layer.space in ("sample", "token") or not self.info.slots.get(layer.space):
            return False
        try:
            (slot,) = self.memory.slots([0], layer.space).records()
        except NotFound:  # it was deleted
            return False
        return slot.get("row") is None and slot.get("sample") is None

    def examples_of(self, name: str) -> Examples:
        """If the record does not state the number of examples, count the network's outputs. Without outputs, count the
        queries of a layer that sees examples whole, then the labels, then the stored rows.
        """
        query_set, stored = self.memory.query_set(name), query_set_of(self.info, name)
        labels, outputs = query_set.labels, query_set.outputs
        if stored is not None and stored.examples is not None:
            count = stored.examples
        elif outputs is not None:
            count = len(outputs)
        else:
            whole = None if stored is None else self._seen_whole(stored)
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
            summary_of(query_set) if of_tokens else None,
        )

    def _seen_whole(self, query_set: QuerySetInfo) -> int | None:
        """The number of queries of a layer that sees examples whole. None if there is no such layer, or no other."""
        own = layers_of(self.info, query_set)
        whole = [layer for layer in own if layer.space == "sample"]
        if not whole or len(whole) == len(own):
            return None
        queries = self.memory.query_set(query_set.name, min(whole, key=lambda layer: layer.d_in).name).queries
        return None if queries is None else len(queries)

    def output_layer(self, examples: Examples) -> LayerInfo | None:
        """The layer that gives the network's outputs. None if these were not stored with the query set, or if no
        recorded layer gives them, such as after a softmax in the model or a sum with other layers.
        """
        if examples.outputs is None and examples.of_tokens is None:
            return None
        own = layers_of(self.info, examples.query_set)
        return next((layer for layer in own if layer.name == self.info.output_layer), None)

    def tokens_of(self, examples: Examples, layer: str) -> int:
        """The number of queries that an example has in a layer: one, or one for each token or place."""
        found, query_set = layer_of(self.info, layer), query_set_of(self.info, examples.query_set)
        if found is None or query_set is None or not examples.count:
            return 1
        first = layer_of(self.info, query_set.layers[0])  # the query set counts rows of the layer that ran first
        if first is not None and found.space == first.space:
            rows = query_set.rows
        elif found.space == "sample":
            rows = examples.count
        else:
            queries = self.memory.query_set(examples.query_set, found.name).queries
            rows = examples.count if queries is None else len(queries)
        return rows // examples.count if rows % examples.count == 0 else 1

    def rated(
        self, examples: Examples, layer: str, where: str, at: int | None = None, inexact: bool = False
    ) -> Rated | None:
        """The base rates of an ablation in the layer that gives the network's outputs, over examples or their tokens.
        None if labels are unknown. Raises the errors of `placebo`.
        """
        each = examples.tokens if examples.token_errors is not None else None
        if each is not None and examples.of_tokens is not None:
            labels, width = examples.token_labels, examples.of_tokens.width
        else:
            labels, width = examples.labels, 0 if examples.outputs is None else examples.outputs.shape[1]
        if labels is None or width < 2:
            return None
        known = np.flatnonzero((labels >= 0) & (labels < width))
        most = min(len(known), MOST_RATED, max(1, MOST_RATED_OUTPUTS // width))
        if not most:
            return None
        rows = known[np.linspace(0, len(known) - 1, most).round().astype(int)]
        named = map(str, rows.tolist()) if each is None else (f"{row // each}:{row % each}" for row in rows.tolist())
        query = f"{examples.query_set}/{','.join(named)}"
        return Rated(rows, self.memory.placebo(layer, query, where, SETS, at, inexact), len(known), each is not None)


@dataclass(frozen=True, eq=False)
class View(Snapshot):
    """A page of one example."""

    state: State
    name: str = ""
    """The name of the memory."""

    @property
    def same(self) -> tuple[str, int, State]:
        """Equal for pages with equal answers."""
        return self.name, self.info.snapshot, self.state

    def changed(self, **changes: Any) -> View:
        """The view of the page with some fields changed."""
        return replace(self, state=replace(self.state, **changes))

    @cached_property
    def examples(self) -> Examples:
        return self.examples_of(self.state.query_set)

    @cached_property
    def layer(self) -> LayerInfo:
        """The page's layer. Raises NotFound."""
        return self.layer_named(self.state.layer)

    def layer_named(self, name: str) -> LayerInfo:
        found = layer_of(self.info, name)
        if found is None:
            raise NotFound(f"There is no layer {name!r}.", field="layer")
        return found

    @cached_property
    def outputs(self) -> LayerInfo | None:
        """The layer that gives the network's outputs; None if there is none."""
        return self.output_layer(self.examples)

    @cached_property
    def places(self) -> Places | None:
        """The places of the page's layer in a picture; None unless it is a two-dimensional convolution."""
        return places_of(self.info, self.state.query_set, layer_of(self.info, self.state.layer))

    def tokens(self, layer: str) -> int:
        """The number of queries that an example has in a layer."""
        return self.tokens_of(self.examples, layer)

    def token(self, layer: str, tokens: int | None = None) -> int | None:
        """The token or place to ask about in a layer. The default is the last token with a label, or the place of a
        convolution with the largest attention. None if the layer sees examples whole. `tokens`: that each example has
        in the layer. Raises NotFound for a token that no layer has, or an unknown example.
        """
        state, examples = self.state, self.examples
        tokens = self.tokens(layer) if tokens is None else tokens
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
            by_space = {own.space: own.name for own in layers_of(self.info, state.query_set)}
            if state.token >= max(map(self.tokens, by_space.values())):
                raise NotFound(f"The example has no token {state.token}: it has 0 to {tokens - 1}.", field="token")
        places = places_of(self.info, state.query_set, layer_of(self.info, layer))
        if places is None or places.count != tokens:
            return examples.default_token(state.row, tokens)
        if places.count > MOST_PLACES:
            rows, columns = places.grid
            return rows // 2 * columns + columns // 2
        return int(self.attention_by_place(layer).argmax())

    def attention_by_place(self, layer: str, where: str | None = None, score: str = "dot") -> NDArray[np.float64]:
        """float64[P]: the sum of the scores of the slots that the filter keeps, at each place of the example."""
        answer = self.memory.group_sum(layer, self.state.item, by="dataset", where=where, score=score)
        return np.asarray(answer.sums.sum(axis=1), dtype=np.float64)

    def label(self, layer: str) -> int | None:
        """The label of the page's example, or of the token that a layer is asked about. None if it is unknown, and if
        it is none of the layer's outputs.
        """
        tokens = self.tokens(layer)
        label = self.examples.label_at(self.state.row, self.token(layer, tokens), tokens)
        return label if label is None or label < self.layer_named(layer).d_out else None

    def predicted(self, layer: str) -> int | None:
        """The network's largest output for the example, or for that token, when the query set was stored."""
        tokens = self.tokens(layer)
        return self.examples.read_at(self.state.row, self.token(layer, tokens), tokens)

    def shared_row(self, layer: str) -> tuple[int, int] | None:
        """For a layer whose stored queries belong to no example, such as a table of positions: the row to ask about,
        which has the number of the page's token, and the number of rows. None for any other layer.
        """
        found = layer_of(self.info, layer)
        if found is None or not self.of_no_sample(found):
            return None
        queries = self.memory.query_set(self.state.query_set, found.name).queries
        if queries is None or not len(queries):
            return None
        token = self.state.token
        if token is None:
            token = self.examples.default_token(self.state.row, self.examples.tokens or 1)
        return (token if token < len(queries) else 0), len(queries)

    def query(self, layer: str | None = None) -> str | NDArray[np.float32]:
        """The stored query of the page's example in a layer, by default the page's, as questions name it; an array if
        the layer's queries belong to no example. Raises NotFound for an unknown token or example.
        """
        name = self.state.layer if layer is None else layer
        if (shared := self.shared_row(name)) is not None:
            queries = self.memory.query_set(self.state.query_set, name).queries
            assert queries is not None
            return queries[shared[0] : shared[0] + 1]
        token = self.token(name)
        return self.state.item if token is None else f"{self.state.item}:{token}"

    @property
    def where(self) -> str | None:
        """The slots to keep, for questions that take `at_step`. Raises BadMask, as all filters do."""
        return self.state.mask(self.complete)

    @property
    def where_before(self) -> str | None:
        """The slots to keep, for questions about scores: only those up to the page's step."""
        return self.state.mask_before(self.complete)

    def scored(self, masked: bool = True) -> dict[str, Any]:
        """Arguments for questions about scores in the page's layer; with `masked` false, without its filter."""
        state = self.state
        unmasked = None if state.at is None else f"step < {state.at}"
        asked: dict[str, Any] = {
            "layer": state.layer,
            "queries": self.query(),
            "where": self.where_before if masked else unmasked,
            "score": state.score,
        }
        if state.score == "contribution":
            asked |= {"target": state.target, "at_step": state.at, "allow_inexact": state.inexact}
        return asked

    def output(self, layer: str, masked: bool = True) -> Outputs:
        """The outputs of a layer, float32[1, d_out], at the page's step and under its filter, or without it."""
        where, initial = (self.where, self.state.initial) if masked else (None, True)
        return self.memory.output(layer, self.query(layer), where, self.state.at, self.state.inexact, initial=initial)

    def moved(self, by: int) -> State:
        """The state of an example that is `by` places further in the current selection, or further back. It stops at
        the first and the last one.
        """
        rows = self.examples.among(self.state.among)
        if not by or not len(rows):
            return self.state
        at = int(np.searchsorted(rows, self.state.row))
        if by > 0 and (at == len(rows) or rows[at] != self.state.row):
            at -= 1  # the next one is one step away, too
        place = min(max(at + by, 0), len(rows) - 1)
        return replace(self.state, row=int(rows[place]), token=None)

    def completed(self, move: int) -> State:
        """Move by some examples, and fill in the default target."""
        there = self.moved(move)
        if there.score != "contribution" or there.target:
            return there
        return replace(there, target=replace(self, state=there)._default_target())

    def _default_target(self) -> str:
        """The output the network predicted minus the correct one if the example is misclassified. Otherwise the largest
        output. A layer that does not give the network's outputs gets its first one.
        """
        found = self.outputs
        if found is None or found is not layer_of(self.info, self.state.layer) or self.state.row >= self.examples.count:
            return "0"
        read, label = self.predicted(found.name), self.label(found.name)
        if read is None:
            return "0"
        return str(read) if label in (None, read) else f"{read}-{label}"
