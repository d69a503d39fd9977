"""Gradients of examples' own losses by what a network is given: for questions about dot products with those of slots.

Shapes: n examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from dualform.answers import MemoryInfo
from dualform.errors import BadInput
from dualform.live.queries import BATCH, check_widths, tell_of_other_weights
from dualform.questions import ExampleGradients, LayerGradients
from dualform.record.example_signals import Examples, LayerSignals, Loss, SharedRows, SignalPasses
from dualform.record.model_arguments import Inputs
from dualform.record.module_taps import taps_named
from dualform.record.wrappers import whole_model


def gradients(
    model: nn.Module,
    inputs: Inputs,
    labels: Any,
    loss: Loss,
    info: MemoryInfo,
    batch_size: int = BATCH,
    batch_dim: int = 0,
) -> ExampleGradients:
    """What the examples' losses send back to every recorded layer with values that the model calls for them.

    `inputs` and `batch_dim` are as in `Recorder.probe`; `loss` gives a number for each example of what the model
    returns and the labels. `info` is the memory's, whose layers the model must have. The model runs in eval mode, with
    gradients that are added to no parameter, and is left as it was. Where rows of a layer are of several examples
    together, as those of a table of places, the examples run one by one. Warns where the model's weights are not those
    that the training ended with. Raises BadInput for a model that is not the recorded one, labels that do not fit, and
    a loss that is not one finite number an example.
    """
    model = whole_model(model)
    layers = {layer.name: layer for layer in info.layers if layer.values}
    taps = taps_named(model, layers.keys())
    if not taps:
        raise BadInput(
            f"the model has none of the layers that the memory has values of: {', '.join(layers)}.",
            hint="Give the model that was recorded, with the names that its layers had.",
            field="model",
        )
    check_widths(taps.values(), layers)
    examples = Examples("gradients", inputs, labels, loss, batch_dim)
    batch_dims = {name: layer.batch_dim for name, layer in layers.items()}

    def passes(size: int) -> Iterator[tuple[int, dict[str, LayerSignals]]]:
        start, stop = 0, 1
        while start < stop:
            own = SignalPasses(model, list(taps.values()), batch_dims, examples, start, start + size)
            weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            with own.attached():
                yield start, dict(own.signals(weights).layers)
            start, stop = start + own.count, own.available

    try:
        found = list(passes(batch_size))
    except SharedRows:
        found = list(passes(1))
    tell_of_other_weights(model, info)
    return ExampleGradients(*_together(found))


def _together(found: list[tuple[int, dict[str, LayerSignals]]]) -> tuple[int, dict[str, LayerGradients]]:
    """How many examples there are, and their rows by layer."""
    count = 0
    parts: dict[str, list[LayerGradients]] = {}
    for start, layers in found:
        for name, own in layers.items():
            examples = own.examples + start
            count = max(count, int(examples.max(initial=-1)) + 1)
            keys, errors = own.keys.astype(np.float32), own.errors.astype(np.float32)
            parts.setdefault(name, []).append(LayerGradients(keys, errors, examples))
    return count, {
        name: LayerGradients(
            *(np.concatenate([getattr(part, array) for part in own]) for array in ("keys", "errors", "examples"))
        )
        for name, own in parts.items()
    }
