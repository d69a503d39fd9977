"""What a memory holds, in one value."""

from __future__ import annotations

from dualform.answers import LayerInfo, MemoryInfo, Patches
from dualform.query.output_layer import known_output_layer
from dualform.query.sampling_note import sampling_note
from dualform.query.score.backends import described
from dualform.query.view import View
from dualform.query.weights.exactness import status
from dualform.store.layer import Layer


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
