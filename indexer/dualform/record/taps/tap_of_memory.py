"""The tap of a free matrix that a memory names, before a product with it was seen again."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dualform.record.taps.free_matrix import FreeTap
from dualform.record.taps.matrix_block import MatrixBlock
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter, as_matrix

LOOKED_UP = "row numbers"
"""The key source of a matrix whose rows are looked up."""


def tap_of_memory(layer: Layer, tensors: Mapping[str, Tensor], values: bool) -> FreeTap | None:
    """The tap of a layer as it was recorded before, by the parameters of the model; None where one of them is not there
    any more, or not as it was.
    """
    if not layer.parameters or any(place.name not in tensors for place in layer.parameters):
        return None
    weight, *biases = layer.parameters
    tensor = tensors[weight.name]
    tap = FreeTap(layer.name, weight.name, tensor, _block(weight, tensor), layer.source == LOOKED_UP, values)
    tap.parameters |= {place: tensors[place.name] for place in biases}
    return tap if tuple(tap.parameters) == layer.parameters else None


def _block(place: Parameter, tensor: Tensor) -> MatrixBlock:
    """With the ranges that a manifest leaves out where they are all of the parameter."""
    height, width = as_matrix(tensor.shape, place.leading)
    return MatrixBlock(place.rows or (0, height), place.columns or (0, width or 1), place.transposed, place.leading)
