"""What a memory holds, in one value."""

from __future__ import annotations

from dualform.answers import LayerInfo, MemoryInfo
from dualform.query.exactness import why_not
from dualform.query.view import View
from dualform.store.layer import Layer


def describe(view: View) -> MemoryInfo:
    memory = view.memory
    return MemoryInfo(
        format=memory.format,
        snapshot=memory.snapshot,
        recording=memory.recording,
        slots={grain: memory.count(grain) for grain in view.grains},
        steps=memory.steps,
        optimizer=memory.optimizer,
        layers=tuple(_describe(view, layer) for layer in memory.layers.values()),
        skipped=dict(memory.skipped),
        datasets=view.datasets(),
        columns={name: kind for grain in view.grains for name, kind in memory.columns(grain).items()},
        probes=tuple(memory.probes.values()),
    )


def _describe(view: View, layer: Layer) -> LayerInfo:
    reason = why_not(view, layer)
    return LayerInfo(
        name=layer.name,
        d_in=layer.d_in,
        d_out=layer.d_out,
        bias=bool(layer.biases),
        grain=layer.grain,
        slots=view.count(layer.grain),
        distinct_keys=view.memory.keys(layer.name).rows if layer.keys else 0,
        values=layer.values,
        exact=not reason,
        reason=reason,
    )
