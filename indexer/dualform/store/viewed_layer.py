"""Views as layers: what is asked by a name of its own, and stored as a part of another layer.

Shapes: d_in and d_out of the stored layer, G of its groups.

A view is one group of a layer whose weight is block-diagonal, asked by its number. It has the slots of its layer; its
keys and values are the group's columns of the layer's. Nothing is stored for it: a convolution of many groups is one
layer on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dualform.store.layer import Layer
from dualform.store.parameter import Parameter, Range
from dualform.store.sources import KeyFormat


@dataclass(frozen=True)
class ViewedLayer(Layer):
    """A view: all that a question needs to know of a layer. Logs and statuses are those of the stored one."""

    whole: Layer = field(kw_only=True)
    """The stored layer that it is a part of."""
    key_columns: Range = field(kw_only=True)
    """Of the stored layer's keys, the last one excluded."""
    value_columns: Range = field(kw_only=True)
    """Of its values."""

    @property
    def stored(self) -> Layer:
        return self.whole

    @property
    def own_keys(self) -> slice:
        return slice(*self.key_columns)

    @property
    def own_values(self) -> slice:
        return slice(*self.value_columns)

    @property
    def key_format(self) -> KeyFormat:
        return self.whole.key_format

    def log_name(self, block: str) -> str:
        names = zip(self.parameters, self.whole.parameters, strict=True)
        return next((whole.block_name for own, whole in names if own.block_name == block), block)


def view_named(layers: Mapping[str, Layer], name: str) -> ViewedLayer | None:
    """The view of that name of one of some stored layers; None where there is none."""
    of, _, own = name.rpartition(".")
    layer = layers.get(of)
    columns = None if layer is None else _columns(layer, own)
    if layer is None or columns is None:
        return None
    keys, values = columns
    return ViewedLayer(
        name,
        layer.space,
        keys[1] - keys[0],
        values[1] - values[0],
        tuple(_part(layer, place, keys, values) for place in layer.parameters),
        source=layer.source,
        repeats=layer.repeats,
        values=layer.values,
        dtype=layer.dtype,
        reason=layer.reason,
        whole=layer,
        key_columns=keys,
        value_columns=values,
    )


def _columns(layer: Layer, name: str) -> tuple[Range, Range] | None:
    """The columns of keys and of values that a view has; None where the layer has no view of that name."""
    if layer.groups == 1 or not name.isdecimal() or name != str(int(name)) or int(name) >= layer.groups:
        return None
    number, wide, high = int(name), layer.d_in // layer.groups, layer.d_out // layer.groups
    return (number * wide, (number + 1) * wide), (number * high, (number + 1) * high)


def _part(layer: Layer, place: Parameter, keys: Range, values: Range) -> Parameter:
    """The block of a view that lies in a block of its layer: some of its outputs."""
    first = ((place.columns if place.transposed else place.rows) or (0, 0))[0]
    own = first + values[0], first + values[1]
    part = replace(place, columns=own) if place.transposed else replace(place, rows=own)
    if place.start < layer.d_in:
        return part
    width = keys[1] - keys[0]
    return replace(part, start=width, stop=width + 1)
