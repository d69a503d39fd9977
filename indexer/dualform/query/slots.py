"""What is read of single slots and of query sets: columns, keys, values, queries, previews.

The queries of a question as numbers: vectors, stored queries of a query set, or keys of training datapoints.

Shapes: n queries, d_in of the layer, t queries that each example of a query set has in the layer: its tokens, or 1.

Single slots: their columns, keys, values and coefficients. Shapes: n slots, d_in and d_out of a layer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.answers import Columns, Previews, QuerySet
from dualform.errors import BadInput, NotFound
from dualform.query.view import View
from dualform.questions import LayerQuestion, PreviewLookup, Queries, QuerySetExamples, SlotKeys, Vectors, as_ids
from dualform.questions.question import ALL_TOKENS
from dualform.store.layer import Layer
from dualform.store.previews.stored_previews import StoredPreviewSet
from dualform.store.reading.shard_tables import as_numpy
from dualform.store.reading.space import Space
from dualform.store.tables import arrow_type


def slot_columns(view: View, ids: NDArray[np.int64], space: str | None) -> Columns:
    """All columns of some slots, in the order of `ids`.

    Raises NotFound for an id or a space that does not exist, BadInput without a space where there are several.
    """
    began = time.perf_counter()
    stored = view.snapshot.space(check_space(view, space))
    view.bounds.require(len(ids), _row_bytes(stored), "Look up at most {} slots at a time.", "ids")
    rows = within(ids, stored.count, "slot", "ids")
    with view.snapshot.reading():
        table = stored.at(rows, list(stored.columns))
    columns = {name: as_numpy(table[name]) for name in table.column_names}
    return Columns(columns, view.scan(began, stored.count, len(rows), space=stored.name), stored.name)


def _row_bytes(space: Space) -> int:
    """Least bytes of a slot's columns in an answer: a text takes two where it is empty."""
    types = [arrow_type(kind) for kind in space.columns.values()]
    return sum(2 if pa.types.is_string(own) else max(1, own.bit_width // 8) for own in types)


def check_space(view: View, space: str | None) -> str:
    """The space, or the only one there is. Raises NotFound and BadInput as `slot_columns`."""
    spaces = view.snapshot.spaces_of_layers
    if space is None:
        if len(spaces) > 1:
            raise BadInput(
                f"space is missing: this memory has several slot spaces, {', '.join(spaces)}.",
                hint=f'Pass a space, for example space="{spaces[0]}", or call memory.slots(hits).',
                field="space",
            )
        return spaces[0]
    if space not in spaces:
        raise NotFound(f"There is no space {space!r}.", hint=f"Spaces: {', '.join(spaces)}.", field="space")
    return space


def keys(view: View, layer: str, ids: Sequence[int] | NDArray[np.int64] | None) -> NDArray[np.float32]:
    """float32[n, d_in]: the layer's inputs of some slots, or of all that it has. Raises NotFound for one it lacks."""
    return view.snapshot.keys(layer).of_entries(_entries(view, view.snapshot.layer(layer), ids))


def values(view: View, layer: str, ids: Sequence[int] | NDArray[np.int64] | None) -> NDArray[np.float32]:
    """float32[n, d_out]: the recorded gradients of the layer's outputs. Raises NotFound as `keys`."""
    return view.snapshot.values(layer).take(_entries(view, view.snapshot.layer(layer), ids))


def key_rows(view: View, layer: str, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: the stored key of each slot, by number. Raises NotFound as `keys`."""
    entries = _entries(view, view.snapshot.layer(layer), ids)
    rows = view.snapshot.keys(layer).row_of_entry
    return entries if rows is None else rows[entries]


def coefficients(
    view: View, layer: str, ids: Sequence[int] | NDArray[np.int64], at_step: int | None
) -> NDArray[np.float64]:
    """float64[n]: what turns each slot's value into its term of the layer's first weight, after `at_step` steps.

    0.0 for slots of later steps. Raises NotFound as `keys`, BadInput for a step that was not recorded.
    """
    stored = view.snapshot.layer(layer)
    steps = view.slot_steps(stored)[_entries(view, stored, ids)]
    return view.coefficients(stored, stored.weights[0].block_name, at_step).per_step[steps]


def _entries(view: View, layer: Layer, ids: Sequence[int] | NDArray[np.int64] | None) -> NDArray[np.int64]:
    if ids is None:
        return np.arange(view.snapshot.entries(layer.name).count)
    return entries_of(view, layer, within(as_ids(ids), view.snapshot.space(layer.space).count, "slot", "ids"))


def entries_of(view: View, layer: Layer, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: the layer's entry of each of n slots of its space. Raises NotFound for one that it lacks."""
    entries = view.snapshot.entries(layer.name).of(slots)
    if (entries < 0).any():
        raise NotFound(
            f"Layer {layer.name!r} has no key for slot {int(slots[entries < 0][0])}: it was not called there.",
            hint=f"Pass slots that it has, such as the hits of a search in layer {layer.name!r}.",
            field="queries",
        )
    return entries


def within(numbers: Sequence[int] | NDArray[np.int64], count: int, what: str, field: str) -> NDArray[np.int64]:
    """The numbers, checked. Raises NotFound, naming the first one that is not from 0 to count - 1."""
    ids = np.asarray(numbers)
    if ids.size and ids.dtype.kind not in "iu":
        raise BadInput(f"{field} must be whole numbers.", field=field)
    beyond = np.flatnonzero((ids < 0) | (ids >= count))
    if len(beyond):
        there = f"Pass 0 to {count - 1}." if count else "There are none."
        raise NotFound(f"There is no {what} with number {int(ids[beyond[0]])}.", hint=there, field=field)
    return ids.astype(np.int64)


A = TypeVar("A")


def vectors(view: View, layer: Layer, queries: Queries) -> NDArray[np.float32]:
    """float32[n, d_in], finite.

    Raises BadInput for a wrong width, no query at all, and examples of a query set whose queries cannot be told apart;
    NotFound for a query set, example, token or slot that does not exist.
    """
    match queries:
        case Vectors(rows):
            if rows.shape[1] != layer.d_in:
                raise BadInput(
                    f"queries must have {layer.d_in} columns, the inputs of layer {layer.name!r}, not {rows.shape[1]}.",
                    field="queries",
                )
            return rows
        case QuerySetExamples():
            rows = _stored(view, layer, queries.query_set)
            if queries.examples is None:
                found = rows
            else:
                numbers = _row_numbers(view, layer, queries, len(rows))
                view.bounds.require_queries(len(numbers), rows.shape[1])
                found = rows[numbers]
        case SlotKeys(slots):
            view.bounds.require_queries(len(slots), layer.d_in)
            ids = within(slots, view.snapshot.space(layer.space).count, "slot", "queries")
            found = view.snapshot.keys(layer.name).of_entries(entries_of(view, layer, ids))
    return Vectors(found).rows  # refuses none at all, and what is not finite


def counted(view: View, question: LayerQuestion[A]) -> LayerQuestion[A]:
    """The question with each of its queries named, so that their number is known. Raises as `vectors`."""
    queries = question.queries
    if not isinstance(queries, QuerySetExamples) or queries.examples is None or not queries.every_token:
        return question
    assert question.layer is not None, "the engine names it"
    layer = view.snapshot.layer(question.layer)
    rows = _row_numbers(view, layer, queries, len(_stored(view, layer, queries.query_set)))
    each = tokens_each(view, layer, queries.query_set)
    named = QuerySetExamples(queries.query_set, tuple((rows // each).tolist()), tuple((rows % each).tolist()))
    return replace(question, queries=named)


def tokens_each(view: View, layer: Layer, query_set: str) -> int:
    """t. Raises BadInput where the layer is not given the examples of the query set one after another."""
    rows = len(_stored(view, layer, query_set))
    examples: int = view.cache.get(("examples", query_set), lambda: _examples(view, query_set))
    if view.snapshot.space(layer.space).extents.rowless or not examples or rows % examples:
        raise BadInput(
            f"The queries of layer {layer.name!r} in query set {query_set!r} cannot be matched to its examples: the "
            "network chose their rows, or their order is not known.",
            hint=f"Pass all, {query_set!r}, or rows of memory.query_set({query_set!r}, {layer.name!r}).queries.",
            field="queries",
        )
    return max(1, rows // examples)


def labels_of(view: View, layer: Layer, queries: Queries, count: int) -> NDArray[np.int64]:
    """int64[count]: the label of each query, -1 where it is not known."""
    if isinstance(queries, QuerySetExamples):
        labels, rows = view.snapshot.query_set(queries.query_set).labels, len(_stored(view, layer, queries.query_set))
        if labels is not None and len(labels) == rows:
            numbers = None if queries.examples is None else _row_numbers(view, layer, queries, rows)
            return labels if numbers is None else labels[numbers]
    return np.full(count, -1, dtype=np.int64)


def _examples(view: View, query_set: str) -> int:
    """How many a query set has. Where the record cannot tell, each of the network's outputs is one or, where it gave
    none, each query of the layer that ran first.
    """
    stored = view.snapshot.query_set(query_set)
    if stored.examples is not None:
        return stored.examples
    outputs = stored.outputs
    return stored.rows if outputs is None else len(outputs)


def _stored(view: View, layer: Layer, query_set: str) -> NDArray[np.float32]:
    """float32[rows, d_in]: all queries of the layer in a query set."""
    stored = view.snapshot.query_set(query_set)
    return view.cache.get(
        ("query_set", query_set, layer.name),
        lambda: np.ascontiguousarray(stored.queries(layer.stored.name)[:, layer.own_keys]),
    )


def _row_numbers(view: View, layer: Layer, queries: QuerySetExamples, rows: int) -> NDArray[np.int64]:
    """int64[n]: which of the layer's queries are those of the examples and tokens that were named."""
    each, name = tokens_each(view, layer, queries.query_set), queries.query_set
    examples = within(queries.examples or (), rows // each, f"example of query set {name!r}", "queries")
    given = queries.tokens or (ALL_TOKENS,) * len(examples)
    one = f"token of an example of query set {name!r} in layer {layer.name!r}"
    firsts = within([0 if token == ALL_TOKENS else token for token in given], each, one, "queries")
    counts = np.array([each if token == ALL_TOKENS else 1 for token in given], dtype=np.int64)
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # among an example's own
    return np.asarray(np.repeat(examples * each + firsts, counts) + places)


def stored_query_set(view: View, name: str, layer: str | None) -> QuerySet:
    """A stored query set. Raises NotFound for one that does not exist, or that does not hold the layer."""
    began = time.perf_counter()
    stored = view.snapshot.query_set(name)
    queries = None
    if layer is not None:
        asked = view.snapshot.layer(layer)
        view.bounds.require(stored.rows, 4 * asked.d_in, "Ask by the query set's name instead.", "layer")
        queries = np.ascontiguousarray(stored.queries(asked.stored.name)[:, asked.own_keys])
    outputs = stored.outputs
    if outputs is not None:
        hint = "Record fewer examples in one query set, or ask where the memory lies."
        view.bounds.require(len(outputs), 4 * outputs.shape[1], hint, "name")
    return QuerySet(name, stored.labels, outputs, queries, view.scan(began), stored.examples, stored.summary)


def previews(view: View, question: PreviewLookup) -> Previews:
    """Raises NotFound if there is no such preview set, BadInput for more than an answer holds, Damaged for a file."""
    began = time.perf_counter()
    if question.query_set is None:
        dataset = question.dataset or ""
        preview_set = view.cache.get(("preview_set", dataset), lambda: view.snapshot.preview_set(dataset))
    else:
        preview_set = view.cache.get(
            ("query set preview set", question.query_set), lambda: _of_query_set(view, question.query_set or "")
        )
    found = preview_set.look(question.samples, view.bounds.answer_bytes)
    return replace(found, scan=view.scan(began))


def _of_query_set(view: View, name: str) -> StoredPreviewSet:
    found = view.snapshot.query_set(name).preview_set
    if found is None:
        known = ", ".join(own.name for own in view.snapshot.query_sets.values() if own.previews) or "none"
        raise NotFound(
            f"Query set {name!r} was recorded without previews.",
            hint=f"Query sets with previews: {known}.",
            field="query_set",
        )
    return found
