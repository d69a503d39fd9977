"""The layer whose outputs are the network's: found by asking it, not by its name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualform.answers import MemoryInfo
from dualform.errors import Inexact
from dualform.methods import Answers
from dualform_explorer.examples import Examples
from dualform_explorer.reading import layers_of, query_set_of

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
    if query_set is None or examples.outputs is None or not len(examples.outputs):
        return None
    tried = np.unique(np.linspace(0, len(examples.outputs) - 1, _TRIED).astype(int))
    stored = examples.outputs[tried].astype(np.float64)
    scale = float(np.abs(stored).max())
    for layer in reversed(layers_of(info, query_set)):
        if layer.d_out != stored.shape[1] or layer.space != "sample" or not layer.values:
            continue
        try:
            rows = ",".join(map(str, tried.tolist()))
            own = np.asarray(memory.output(layer.name, f"{examples.query_set}/{rows}"), dtype=np.float64)
        except Inexact:
            continue
        difference = float(np.abs(own - stored).max())
        if difference <= scale * _tolerance(layer.status.name, layer.status.error):
            return OutputLayer(layer.name, difference, len(tried))
    return None


def _tolerance(status: str, error: float | None) -> float:
    if status == "exact":
        return _LEAST
    return min(_MOST, max(1e-2, 10 * (error or 0.0)))
