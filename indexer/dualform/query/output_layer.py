"""The layer whose outputs are the network's: found by its weights and a query set's stored outputs, not by its name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dualform.errors import BadInput
from dualform.query.queries import vectors
from dualform.query.view import View
from dualform.query.weights.rebuilt_weights import final_weights
from dualform.questions import QuerySetExamples
from dualform.store.layer import Layer

_EXAMPLES = 8
"""Of a query set, that are compared."""
_FURTHEST = 1e-4, 2e-2
"""Of the largest output: how far a layer's outputs may be from the network's, of float32 and of coarser products."""
_LISTED = 8
"""Layers that a refusal names."""


def output_layer(view: View) -> str:
    """Its name. Raises BadInput, naming layers, where there is none or cannot be told."""
    found: tuple[str, ...] = view.cache.get("output layers", lambda: tuple(_found(view)))
    if len(found) == 1:
        return found[0]
    layers = found or tuple(view.snapshot.layers)
    more = f" and {len(layers) - _LISTED} more" if len(layers) > _LISTED else ""
    raise BadInput(
        "layer is missing, and several layers give the network's outputs."
        if found
        else "layer is missing, and the layer that gives the network's outputs is not known.",
        hint=f"Pass layer=, one of {', '.join(layers[-_LISTED:])}{more}.",
        field="layer",
    )


def known_output_layer(view: View) -> str | None:
    """As `output_layer`, and None where it cannot be told."""
    try:
        return output_layer(view)
    except BadInput:
        return None


def _found(view: View) -> Iterator[str]:
    """Layers whose outputs are those of the network; the only layer there is."""
    layers = view.snapshot.layers
    told = any(view.snapshot.query_set(name).first_outputs is not None for name in view.snapshot.query_sets)
    if len(layers) == 1 and not told:
        yield from layers
        return
    for layer in layers.values():
        if layer.groups == 1 and any(_gives(view, layer, name) for name in view.snapshot.query_sets):
            yield layer.name


def _gives(view: View, layer: Layer, query_set: str) -> bool:
    """Whether the layer's final weights make the stored outputs of the first examples out of its stored queries."""
    stored = view.snapshot.query_set(query_set)
    outputs = stored.first_outputs if layer.name in stored.layers else None
    if outputs is None or not len(outputs) or outputs.shape[1] != layer.d_out:
        return False
    weights = final_weights(view, layer)
    queries = vectors(view, layer, QuerySetExamples(query_set)).astype(np.float64)
    rows = len(outputs) if (summary := stored.summary) is None else len(summary)
    if weights is None or len(queries) != rows:
        return False
    expected = outputs[:_EXAMPLES].astype(np.float64)
    own = queries[: len(expected)] @ weights.weight.T + (0.0 if weights.bias is None else weights.bias)
    exact, coarse = _FURTHEST
    furthest = exact if layer.dtype == "float32" else coarse
    return bool(np.abs(own - expected).max() <= furthest * np.abs(expected).max())
