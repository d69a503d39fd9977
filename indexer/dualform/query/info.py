"""What a memory holds, in one value, with its output layer and its sampling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dualform.answers import LayerInfo, MemoryInfo, Patches
from dualform.answers.table import percent
from dualform.errors import BadInput
from dualform.query.score.backends import described
from dualform.query.slots import vectors
from dualform.query.view import View
from dualform.query.weights.exactness import status
from dualform.query.weights.reconstruction import final_weights
from dualform.questions import QuerySetExamples
from dualform.store.layer import Layer
from dualform.store.rows import DroppedSlots


def sampling_note(view: View) -> str:
    """One sentence; empty where every slot was kept, and nothing was to hold."""
    snapshot = view.snapshot
    rule = snapshot.manifest.sampling
    if rule is None:
        return ""
    what = "samples, each with all of its slots" if rule.keep == "samples" else "whole steps"
    several = any(len(run.manifest.shards) > 1 for run in snapshot.runs)
    whose = ", of which each process has its own rows by a share of its own" if several else ""
    said = f"A budget of {rule.budget:,} bytes a process keeps {what}{whose}, by lot (seed {rule.seed})"
    if not snapshot.dropped:
        return f"{said}: all of them so far."
    shares = ", ".join(
        f"{percent(snapshot.share([space]))} of the slots of {space}{_up_to(own)}"
        for space, own in snapshot.dropped.items()
    )
    return f"{said}: {shares}. The column share says with which probability each was kept."


def _up_to(dropped: DroppedSlots) -> str:
    return f", all of them before step {dropped.first_step}" if dropped.first_step else ""


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


def describe(view: View) -> MemoryInfo:
    memory = view.snapshot
    return MemoryInfo(
        format=memory.format,
        snapshot=memory.commits,
        recording=memory.recording,
        slots={space: memory.space(space).count for space in memory.spaces_of_layers},
        steps=memory.steps,
        optimizer=memory.optimizer,
        layers=tuple(_describe(view, layer) for layer in memory.layers.values()),
        skipped=dict(memory.skipped),
        datasets=view.datasets(),
        columns={space: dict(memory.space(space).columns) for space in memory.spaces_of_layers},
        query_sets=tuple(memory.query_sets.values()),
        cut_off=memory.cut_off,
        sampling=sampling_note(view),
        final=dict(memory.final_digests),
        answered_by=described(view.backend),
        previews=dict(memory.preview_sets),
        output_layer=known_output_layer(view),
    )


def _describe(view: View, layer: Layer) -> LayerInfo:
    return LayerInfo(
        name=layer.name,
        d_in=layer.d_in,
        d_out=layer.d_out,
        bias=bool(layer.biases),
        space=layer.space,
        slots=view.snapshot.entries(layer.name).count,
        distinct_keys=view.cache.get(("distinct keys", layer.name), lambda: view.snapshot.keys(layer.name).rows)
        if layer.keys
        else 0,
        values=layer.values,
        status=status(view, layer, None),
        views=layer.view_names,
        batch_dim=layer.batch_dim,
        patches=_patches(layer),
    )


def _patches(layer: Layer) -> Patches | None:
    if layer.source != "patches":
        return None
    own = {name: tuple(numbers) for name, numbers in layer.geometry.items() if name != "shape"}
    return Patches(tuple(layer.geometry["shape"])[1:], **own)
