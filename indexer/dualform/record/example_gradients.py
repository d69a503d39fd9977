"""The gradients of single examples at the model's own weights, layer by layer, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from dualform.errors import BadInput
from dualform.questions.gradients import ExampleGradients, LayerGradients
from dualform.record.example_signals import Examples, LayerSignals, SharedRows, SignalPasses, named_tensors
from dualform.record.taps import Tap


@torch.inference_mode(False)
def example_gradients(
    model: nn.Module, taps: Sequence[Tap], batch_dims: Mapping[str, int], examples: Examples, batch_size: int
) -> ExampleGradients:
    """What the examples' losses send back to tapped layers, at the model's own weights, batch by batch.

    Where rows of a layer are of several examples together, the examples run one by one. Warns of layers, those of
    `batch_dims`, that nothing comes back to. Raises as SignalPasses.
    """

    check_values(batch_dims, examples.what)
    # Tables of a greatest norm write to their weights whenever they are read.
    own_copy = any(getattr(module, "max_norm", None) is not None for module in model.modules())
    weights = {name: own.detach().clone() for name, own in named_tensors(model).items()} if own_copy else None

    def passes(size: int) -> Iterator[tuple[int, Mapping[str, LayerSignals]]]:
        start, stop = 0, 1
        while start < stop:
            own = SignalPasses(model, taps, batch_dims, examples, start, start + size)
            with own.attached():
                yield start, own.signals(weights).layers
            start, stop = start + own.count, own.available

    try:
        found = list(passes(batch_size))
    except SharedRows:
        found = list(passes(1))
    count, parts = 0, dict[str, list[LayerGradients]]()
    for start, layers in found:
        for name, own in layers.items():
            count = max(count, start + int(own.examples.max(initial=-1)) + 1)
            keys, errors = own.keys.astype(np.float32), own.errors.astype(np.float32)
            parts.setdefault(name, []).append(LayerGradients(keys, errors, own.examples + start))
    if not parts:
        raise BadInput(
            f"The loss of {examples.what} does not reach any layer recorded with values.",
            hint="Pass a loss of the model's output, and the model that was recorded.",
            field="loss",
        )
    if missing := [name for name in batch_dims if name not in parts]:
        warnings.warn(
            f"{examples.what} has no gradients in {', '.join(map(repr, missing))}: its loss does not depend on "
            "a call of these modules. Sums over layers leave them out.",
            RuntimeWarning,
            stacklevel=2,
        )
    arrays = ("keys", "errors", "examples")
    joined = {
        name: LayerGradients(*(np.concatenate([getattr(part, array) for part in own]) for array in arrays))
        for name, own in parts.items()
    }
    return ExampleGradients(count, joined)


def check_values(layers: Collection[str], what: str) -> None:
    """Raises BadInput where no layer has values; `what` is asked of them."""
    if not layers:
        raise BadInput(
            f"The memory was recorded without values, which {what} need.",
            hint="Record with keys=True and values=True, or leave out the loss and use dualform.Influence.",
            field="loss",
        )
