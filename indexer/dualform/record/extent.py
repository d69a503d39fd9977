"""The slots of one call, from its shape and what was said of them: how they extend, and which of them stay.

Shapes: n slots, of which some stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.record.column_values import Array, spread
from dualform.record.lineage import Place
from dualform.record.metadata import PLACES
from dualform.record.shape import Shape, misfit
from dualform.store.batch import Extent


def extent_of(shape: Shape, said: Mapping[str, Array]) -> tuple[Extent, Array | None]:
    """An extent, and which of its slots stay; `said`: columns, `mask`, `position` and `row` of its slots."""
    space, n = shape.space.name, shape.slots
    row = _rows_of(shape, said.get("row"))
    said = {name: entry for name, entry in said.items() if entry.ndim == 0 or not shape.untold}
    mask = spread_over_slots("mask", said["mask"], shape) if "mask" in said else None
    kept = None if mask is None or mask.all() else np.flatnonzero(mask)
    position = spread_over_slots("position", said["position"], shape) if "position" in said else None
    if shape.length is not None and kept is not None:
        position = np.arange(n) % shape.length if position is None else position
    if shape.length is not None and position is not None and kept is None:
        position = None if np.array_equal(position, np.arange(n) % shape.length) else position
    if kept is not None and row is None:
        row = np.arange(n) // (shape.length or 1)
    columns = {name: spread_over_slots(name, entry, shape) for name, entry in said.items() if name not in PLACES}
    extent = Extent(
        space,
        shape.call,
        rows=0 if shape.space.routed or shape.untold else shape.rows,
        length=shape.length,
        row=None if row is None else _chosen(row, kept).astype(np.int32),
        position=None if position is None else _chosen(position, kept).astype(np.int64),
        columns={name: _chosen(column, kept) for name, column in columns.items()},
    )
    return extent, kept


def stray_extent(
    shape: Shape, place: Place, position: Array | None, said: Mapping[str, Array]
) -> tuple[Extent, Array | None]:
    """As `extent_of`, of a call whose rows are not the batch's in any order; `position`: of each slot, if any."""
    row = np.full(shape.slots, -1) if place.row is None else place.row
    own: dict[str, Array] = {}
    for name, entry in said.items():
        if name == "row":
            _rows_of(shape, entry)
        elif entry.ndim == 0:
            own[name] = spread(entry, entry.dtype, shape.slots)
        elif entry.ndim == 1 and place.row is not None:
            own[name] = entry[row]
        elif place.position is not None and prod(entry.shape[1:]) == place.length:
            own[name] = entry.reshape(len(entry), -1)[row, place.position]
    mask = own.get("mask")
    kept = None if mask is None or mask.all() else np.flatnonzero(mask)
    extent = Extent(
        shape.space.name,
        shape.call,
        rows=0,
        length=None,
        row=_chosen(row, kept).astype(np.int32),
        position=None if position is None else _chosen(position, kept).astype(np.int64),
        columns={name: _chosen(column, kept) for name, column in own.items() if name not in PLACES},
    )
    return extent, kept


def _rows_of(shape: Shape, given: Array | None) -> Array | None:
    """int64[n]: the row of each slot, where it does not follow from the shape; -1 where it is not known."""
    if not shape.space.routed:
        if given is not None:
            raise BadInput(
                f"row cannot be passed for space {shape.space.name!r}, whose rows are the batch's.",
                hint="Pass it only for layers named in Recorder(routed=…).",
                field="row",
            )
        return np.full(shape.slots, -1) if shape.untold else None
    return np.full(shape.slots, -1) if given is None else spread_over_slots("row", given, shape)


def spread_over_slots(name: str, entry: Array, shape: Shape) -> Array:
    """An entry as one value a slot, [n]."""
    if entry.ndim == 0:
        return spread(entry, entry.dtype, shape.slots)
    if entry.shape == shape.leading:
        return entry.reshape(-1)
    if entry.shape == shape.leading[:1]:
        return np.repeat(entry, shape.length or 1)
    raise misfit(name, entry.shape, [shape])


def _chosen(array: Array, kept: NDArray[np.int64] | None) -> Array:
    return array if kept is None else array[kept]
