"""The queries of a question as numbers: vectors, stored queries of a query set, or keys of training datapoints.

Shapes: n queries, d_in of the layer, t queries that each example of a query set has in the layer: its tokens, or 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.query.slots import entries_of, within
from dualform.query.view import View
from dualform.questions import LayerQuestion, Queries, QuerySetExamples, SlotKeys, Vectors
from dualform.questions.question import ALL_TOKENS
from dualform.store.layer import Layer

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
