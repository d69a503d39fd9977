"""Single slots: their columns, keys, values and coefficients. Shapes: n slots, d_in and d_out of a layer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.answers import Columns
from dualform.errors import BadInput, NotFound
from dualform.query.view import View
from dualform.questions import as_ids
from dualform.store.layer import Layer
from dualform.store.samples import as_numpy
from dualform.store.space import Space
from dualform.store.tables import arrow_type


def slot_columns(view: View, ids: NDArray[np.int64], space: str | None) -> Columns:
    """All columns of some slots, in the order of `ids`.

    Raises NotFound for an id or a space that does not exist, BadInput without a space where there are several.
    """
    began = time.perf_counter()
    stored = view.snapshot.space(check_space(view, space))
    view.bounds.require(len(ids), _row_bytes(stored), "Look up at most {} slots at a time.", "ids")
    rows = within(ids, stored.count, "slot", "ids")
    with view.snapshot.reading():
        table = stored.at(rows, list(stored.columns))
    columns = {name: as_numpy(table[name]) for name in table.column_names}
    return Columns(columns, view.scan(began, stored.count, len(rows), space=stored.name), stored.name)


def _row_bytes(space: Space) -> int:
    """Least bytes of a slot's columns in an answer: a text takes two where it is empty."""
    types = [arrow_type(kind) for kind in space.columns.values()]
    return sum(2 if pa.types.is_string(own) else max(1, own.bit_width // 8) for own in types)


def check_space(view: View, space: str | None) -> str:
    """The space, or the only one there is. Raises NotFound and BadInput as `slot_columns`."""
    spaces = view.snapshot.spaces_of_layers
    if space is None:
        if len(spaces) > 1:
            raise BadInput(
                f"space is missing: this memory has several slot spaces, {', '.join(spaces)}.",
                hint=f'Pass a space, for example space="{spaces[0]}", or call memory.slots(hits).',
                field="space",
            )
        return spaces[0]
    if space not in spaces:
        raise NotFound(f"There is no space {space!r}.", hint=f"Spaces: {', '.join(spaces)}.", field="space")
    return space


def keys(view: View, layer: str, ids: Sequence[int] | NDArray[np.int64] | None) -> NDArray[np.float32]:
    """float32[n, d_in]: the layer's inputs of some slots, or of all that it has. Raises NotFound for one it lacks."""
    return view.snapshot.keys(layer).of_entries(_entries(view, view.snapshot.layer(layer), ids))


def values(view: View, layer: str, ids: Sequence[int] | NDArray[np.int64] | None) -> NDArray[np.float32]:
    """float32[n, d_out]: the recorded gradients of the layer's outputs. Raises NotFound as `keys`."""
    return view.snapshot.values(layer).take(_entries(view, view.snapshot.layer(layer), ids))


def key_rows(view: View, layer: str, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: the stored key of each slot, by number. Raises NotFound as `keys`."""
    entries = _entries(view, view.snapshot.layer(layer), ids)
    rows = view.snapshot.keys(layer).row_of_entry
    return entries if rows is None else rows[entries]


def coefficients(
    view: View, layer: str, ids: Sequence[int] | NDArray[np.int64], at_step: int | None
) -> NDArray[np.float64]:
    """float64[n]: what turns each slot's value into its term of the layer's first weight, after `at_step` steps.

    0.0 for slots of later steps. Raises NotFound as `keys`, BadInput for a step that was not recorded.
    """
    stored = view.snapshot.layer(layer)
    steps = view.slot_steps(stored)[_entries(view, stored, ids)]
    return view.coefficients(stored, stored.weights[0].block_name, at_step).per_step[steps]


def _entries(view: View, layer: Layer, ids: Sequence[int] | NDArray[np.int64] | None) -> NDArray[np.int64]:
    if ids is None:
        return np.arange(view.snapshot.entries(layer.name).count)
    return entries_of(view, layer, within(as_ids(ids), view.snapshot.space(layer.space).count, "slot", "ids"))


def entries_of(view: View, layer: Layer, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: the layer's entry of each of n slots of its space. Raises NotFound for one that it lacks."""
    entries = view.snapshot.entries(layer.name).of(slots)
    if (entries < 0).any():
        raise NotFound(
            f"Layer {layer.name!r} has no key for slot {int(slots[entries < 0][0])}: it was not called there.",
            hint=f"Pass slots that it has, such as the hits of a search in layer {layer.name!r}.",
            field="queries",
        )
    return entries


def within(numbers: Sequence[int] | NDArray[np.int64], count: int, what: str, field: str) -> NDArray[np.int64]:
    """The numbers, checked. Raises NotFound, naming the first one that is not from 0 to count - 1."""
    ids = np.asarray(numbers)
    if ids.size and ids.dtype.kind not in "iu":
        raise BadInput(f"{field} must be whole numbers.", field=field)
    beyond = np.flatnonzero((ids < 0) | (ids >= count))
    if len(beyond):
        there = f"Pass 0 to {count - 1}." if count else "There are none."
        raise NotFound(f"There is no {what} with number {int(ids[beyond[0]])}.", hint=there, field=field)
    return ids.astype(np.int64)
