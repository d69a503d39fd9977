"""Queries by what a network is given: the model is run, and what its layers take are the queries.

Shapes: n examples. The queries of a layer that sees tokens are one for each token, an example's after one another.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.answers import LayerInfo, MemoryInfo
from dualform.errors import BadInput, NotFound
from dualform.questions import Vectors
from dualform.record.discovery.found_layers import FoundLayers
from dualform.record.discovery.layers import taps_named
from dualform.record.query_sets import Inputs, QuerySetTaker
from dualform.record.ranks import whole_model
from dualform.record.setup.optimizers import Owners
from dualform.record.setup.plan import state_of
from dualform.record.slots.step_record import Collector
from dualform.record.taps import Tap
from dualform.store.files.durable_files import digest_of

BATCH = 256
"""Examples that the model is run on at once."""


def queries(
    model: nn.Module, inputs: Inputs, info: MemoryInfo, batch_size: int = BATCH, batch_dim: int = 0
) -> dict[str, Vectors]:
    """The queries of every recorded layer that the model calls for the inputs, and of its views, by name; of a layer
    that is called several times, those of its first call.

    `inputs` and `batch_dim` are as in `Recorder.query_set`; `info` is the memory's, whose layers the model must have.
    The model runs in eval mode, without gradients, and is left as it was. Under an autocast around the call it computes
    in half precision, and the queries are what its layers then take. Warns where its weights are not those that the
    training ended with. Raises BadInput for a model that is not the recorded one, RecordingError for a
    call of a layer that has no keys.
    """
    model = whole_model(model)
    layers = {layer.name: layer for layer in info.layers}
    taker = QuerySetTaker(lambda tap: layers[tap.name].batch_dim if tap.name in layers else 0)
    with _listening(model, layers.keys(), taker) as taps:
        check_widths(taps.values(), layers)
        taker.run(model, inputs, batch_size, batch_dim)
    found = {name: rows for name, rows in taker.queries().items() if name in layers}
    if not found:
        raise BadInput(
            f"The model does not call any layer of the memory: {', '.join(layers)}.",
            hint="Pass the model that was recorded, with the same names of layers.",
            field="model",
        )
    tell_of_other_weights(model, info, "the queries are what its layers take as it is")
    return {name: Vectors(own) for layer, rows in found.items() for name, own in _with_views(layers[layer], rows)}


def of_layer(found: Mapping[str, Vectors], layer: str) -> Vectors:
    """A layer's own of the queries of all. Raises NotFound where the model did not call it."""
    if layer not in found:
        raise NotFound(
            f"The model did not call layer {layer!r} for these inputs.",
            hint=f"It called {', '.join(found)}.",
            field="layer",
        )
    return found[layer]


@contextmanager
def _listening(model: nn.Module, names: Iterable[str], taker: QuerySetTaker) -> Iterator[dict[str, Tap]]:
    """The model's layers of some names hand their inputs to the taker."""
    taps = taps_named(model, set(names))
    owners = _Everything([], model)
    found = FoundLayers(model, owners)
    listener = Collector(owners, lambda tap: None, lambda tap, error: _raise(error), _raise)
    listener.query_set = taker
    try:
        for tap in taps.values():
            tap.attach(listener)
        found.attach(listener, list(taps.values()))
        yield taps
    finally:
        for tap in taps.values():
            tap.detach()
        found.detach()


class _Everything(Owners):
    """Nobody trains the model any more: whatever may be a layer is looked at, frozen or not."""

    def untrained(self, weights: Iterable[Tensor], it: str = "") -> str:
        return ""


def _raise(error: Exception, *_: object) -> None:
    raise error


def check_widths(taps: Iterable[Tap], layers: Mapping[str, LayerInfo]) -> None:
    """Raises BadInput where a layer of the model is of other widths than the memory's."""
    for tap in taps:
        layer = layers[tap.name]
        if (tap.d_in, tap.d_out) != (layer.d_in, layer.d_out):
            raise BadInput(
                f"Layer {tap.name!r} maps {tap.d_in} to {tap.d_out} in the model, but {layer.d_in} to {layer.d_out} "
                "in the memory.",
                hint="Pass the model that was recorded.",
                field="model",
            )


def tell_of_other_weights(model: nn.Module, info: MemoryInfo, what: str) -> None:
    """Warns where some are not those that the training ended with. `what`: a clause on what was taken then."""
    own = state_of(model) if info.final else {}
    other = [name for name, array in own.items() if info.final.get(name) not in (None, digest_of(array))]
    if other:
        shown = ", ".join(other[:4]) + (f" and {len(other) - 4} more" if len(other) > 4 else "")
        warnings.warn(
            f"the model's weights are not those that the training ended with ({shown}): {what}.",
            RuntimeWarning,
            stacklevel=4,
        )


def _with_views(layer: LayerInfo, rows: NDArray[np.float32]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """A layer's queries, and those of its groups: the columns that each takes."""
    yield layer.name, rows
    for number, name in enumerate(layer.views):
        wide = layer.d_in // len(layer.views)
        yield name, rows[:, number * wide : (number + 1) * wide]
