"""A query set, as it is stored."""

from __future__ import annotations

import time

import numpy as np

from dualform.answers import QuerySet
from dualform.query.view import View


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
