"""The slots of one step, made of what was collected and the columns of the step.

The slots of one step, from what its taps brought and what was said of it.

Shapes: d_in and d_out of a layer, n slots of an extent that stay.

The slots of one call, from its shape and what was said of them: how they extend, and which of them stay.

Shapes: n slots, of which some stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import BadInput
from dualform.record.column_values import Array, spread
from dualform.record.layout import Shape, Signal, laid_rows, misfit
from dualform.record.lineage import Place
from dualform.record.slots.alignment import Aligner
from dualform.record.slots.columns import PLACES, Metadata, StepColumns, routed_columns
from dualform.record.slots.spaces import Spaces
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.store.batch import Extent, LayerRows, Product


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


@dataclass(frozen=True)
class CallRows:
    """One layer's rows of one extent."""

    layer: str
    call: int
    keys: Tensor
    """Of n slots, in the layer's form: float32[n, d_in] of rows."""
    errors: Tensor | None
    """float32[n, d_out]; where no values are wanted, None or what holds NaN or infinity."""
    product: Product | None = None


@dataclass(frozen=True)
class Slots:
    """One step's slots, aligned over the layers of each space."""

    samples: Mapping[str, Array]
    extents: Sequence[Extent]
    unknown: Mapping[str, Any] | None
    rows: Sequence[CallRows]
    """In the model's order, each layer's calls in forward order."""
    parted: Mapping[str, str]
    """Layer -> why it has no rows although gradients reached it."""

    def layer_rows(self, valued: set[str]) -> dict[str, list[LayerRows]]:
        """By layer, as the store takes them; `valued`: the layers whose values are kept."""
        layers: dict[str, list[LayerRows]] = {}
        for part in self.rows:
            values = None if part.errors is None or part.layer not in valued else part.errors.numpy()
            layers.setdefault(part.layer, []).append(LayerRows(part.call, part.keys.numpy(), values, part.product))
        return layers

    def row_bytes(self, valued: set[str]) -> int:
        """What keys take, and the values of those layers of which they are kept."""
        kept = [part.errors for part in self.rows if part.errors is not None and part.layer in valued]
        return sum(rows.nbytes for rows in (*(part.keys for part in self.rows), *kept))

    def surely_finite(self, valued: set[str]) -> bool:
        """False where there may be NaN or infinity among the gradients of layers that are not `valued`: only such are
        kept. Keys, and error signals that are wanted, are looked at where they are projected (Updates.add).
        """
        return all(part.errors is None for part in self.rows if part.layer not in valued)

    def finite(self) -> bool:
        """Whether there is no NaN and no infinity."""
        return all(
            bool(torch.isfinite(part.keys).all()) and (part.errors is None or bool(torch.isfinite(part.errors).all()))
            for part in self.rows
        )


class SlotMaker:
    """Makes the slots of one recording's steps."""

    def __init__(self, taps: Sequence[Tap], spaces: Spaces, columns: StepColumns) -> None:
        self._spaces, self._columns = spaces, columns
        self._aligner = Aligner(taps, spaces)

    def slots_of(self, record: StepRecord, first: bool) -> Slots:
        """What the step's calls and metadata come to. Raises BadInput and, at the first step, RecordingError."""
        metadata, found = record.metadata, self._aligner.align(record, first)
        self._spaces.check_names(metadata.spaces)
        shapes = sorted(found.shapes.values(), key=lambda shape: (shape.space.name, shape.call))
        extents = found.extents
        kept: Mapping[tuple[str, int], NDArray[np.int64] | None] = {}
        if extents is None:
            made = self._extents(record, shapes, first)
            extents = [extent for extent, _ in made]
            kept = {(extent.space, extent.call): stay for extent, stay in made if stay is not None}
        rows = []
        for name, calls in found.calls.items():
            signals = record.calls(name)
            rows += [_rows(name, shape, signals[n], kept.get((shape.space.name, shape.call))) for n, shape in calls]
        count = _sample_count(metadata, shapes, extents)
        _check_rows(extents, count)
        samples = self._columns.samples(metadata, count, record.step)
        if not metadata.of_slots and all(_is_plain(extent) for extent in extents):
            found.extents = extents
        unknown = any(extent.row is not None and bool((extent.row < 0).any()) for extent in extents)
        return Slots(samples, extents, self._columns.unknown(metadata) if unknown else None, rows, found.dropped)

    def _extents(
        self,
        record: StepRecord,
        shapes: Sequence[Shape],
        first: bool,
    ) -> list[tuple[Extent, NDArray[np.int64] | None]]:
        """Each shape's extent, and which of its slots stay: int64[n], None for all.

        `shapes` are those of a space after one another, in the order of their calls.
        """
        metadata, extents = record.metadata, list[tuple[Extent, NDArray[np.int64] | None]]()
        every = self._columns.of_slots(metadata, shapes)
        for space, said in every.items():
            calls = [shape for shape in shapes if shape.space.name == space]
            if calls[0].space.routed:
                said_of = routed_columns(metadata, calls, self._spaces, record.step, first)
                own = [
                    of_call
                    if "row" in of_call or shape.place is None
                    else _routed(shape.place, _positions(shape.place, every, metadata)) | of_call
                    for of_call, shape in zip(said_of, calls, strict=True)
                ]
            else:
                own = [metadata.at(space)] * len(calls)
            for shape, of_call in zip(calls, own, strict=True):
                if shape.place is None or shape.space.routed:
                    extents.append(extent_of(shape, said | of_call))
                else:
                    position = _positions(shape.place, every, metadata)
                    extents.append(stray_extent(shape, shape.place, position, said | of_call))
        return extents


def _positions(place: Place, said: Mapping[str, Mapping[str, Array]], metadata: Metadata) -> Array | None:
    """The position of each slot that was followed into the batch: that which was said of its token, if any was.
    `said`: of the whole step, by space.
    """
    if place.row is None or place.position is None:
        return None
    for space, own in said.items():
        entry = {**own, **metadata.at(space)}.get("position")
        if entry is not None and entry.ndim > 1 and prod(entry.shape[1:]) == place.length:
            given: Array = entry.reshape(len(entry), -1)[place.row, place.position]
            return given
    return place.position


def _routed(place: Place | None, position: Array | None) -> dict[str, Array]:
    """What was followed of a routed call's slots."""
    if place is None or place.row is None:
        return {}
    return {"row": place.row} | ({} if position is None else {"position": position})


def _is_plain(extent: Extent) -> bool:
    return extent.row is None and extent.position is None and not extent.columns


def _rows(layer: str, shape: Shape, signal: Signal, kept: NDArray[np.int64] | None) -> CallRows:
    errors = None if signal.errors is None else laid_rows(signal.errors, shape, kept)
    return CallRows(layer, shape.call, signal.form.laid(signal.keys, shape, kept), errors, signal.product)


def _sample_count(metadata: Metadata, shapes: Sequence[Shape], extents: Sequence[Extent]) -> int:
    """B: as many rows as the metadata has; without any, as the largest call of the batch; without one, as the rows that
    slots name.
    """
    if not shapes:
        return 0
    said = [len(entry) for entry in metadata.arrays.values()]
    seen = [shape.rows for shape in shapes if not shape.space.routed and shape.place is None]
    given = [int(extent.row.max()) + 1 for extent in extents if extent.row is not None and len(extent.row)]
    return max(said or seen or given or [0])


def _check_rows(extents: Sequence[Extent], count: int) -> None:
    """Raises BadInput for a row that the step has not."""
    for extent in extents:
        if extent.row is not None and len(extent.row) and not -1 <= extent.row.min() <= extent.row.max() < count:
            raise BadInput(
                f"row of space {extent.space!r} must be 0 to {count - 1}, the rows of the step, not "
                f"{extent.row.min()} to {extent.row.max()}.",
                hint="Rows count from 0; pass -1 for an unknown row.",
                field="row",
            )
