"""Gradients of examples' own losses by what a network is given: for questions about dot products with those of slots.

Shapes: n examples.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from dualform.answers import MemoryInfo
from dualform.errors import BadInput
from dualform.live.queries import BATCH, check_widths, tell_of_other_weights
from dualform.questions import ExampleGradients
from dualform.record.discovery.layers import taps_named
from dualform.record.examples import Examples, Loss, check_values, example_gradients
from dualform.record.query_sets import Inputs
from dualform.record.ranks import whole_model


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

    `inputs` and `batch_dim` are as in `Recorder.query_set`; `loss` gives a number for each example of what the model
    returns and the labels. `info` is the memory's, whose layers the model must have. The model runs in eval mode, with
    gradients that are added to no parameter, and is left as it was. Where rows of a layer are of several examples
    together, as those of a table of places, the examples run one by one. Warns where the model's weights are not those
    that the training ended with. Raises BadInput for a model that is not the recorded one, labels that do not fit, and
    a loss that is not one finite number an example; RecordingError where a layer runs in compiled code or under a
    transform of torch.func, which show no single examples.
    """
    model = whole_model(model)
    layers = {layer.name: layer for layer in info.layers if layer.values}
    check_values(layers, "gradients")
    taps = taps_named(model, layers.keys())
    if not taps:
        raise BadInput(
            f"The model lacks every layer that was recorded with values: {', '.join(layers)}.",
            hint="Pass the model that was recorded, with the same names of layers.",
            field="model",
        )
    check_widths(taps.values(), layers)
    examples = Examples("gradients", inputs, labels, loss, batch_dim)
    batch_dims = {name: layer.batch_dim for name, layer in layers.items()}

    found = example_gradients(model, list(taps.values()), batch_dims, examples, batch_size)
    tell_of_other_weights(model, info, "the gradients are those at its own weights")
    return found
