"""From a question's queries to numbers, and from slot ids to their columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Columns, Probe
from dualform.errors import BadInput, NotFound
from dualform.query.view import View
from dualform.questions import ProbeRows, Queries, SlotKeys, Vectors, as_ids
from dualform.store.layer import Layer
from dualform.store.snapshot import as_numpy


def vectors(view: View, layer: Layer, queries: Queries) -> NDArray[np.float32]:
    """float32[n, d_in], finite.

    Raises BadInput for a wrong width or no query at all, NotFound for a probe, row or slot that does not exist.
    """
    match queries:
        case Vectors(rows):
            if rows.shape[1] != layer.d_in:
                raise BadInput(
                    f"layer {layer.name!r} takes {layer.d_in} numbers, got {rows.shape[1]}.", field="queries"
                )
            return rows
        case ProbeRows(probe, numbers):
            rows = view.snapshot.probe(probe).queries(layer.name)
            found = rows if numbers is None else rows[_within(numbers, len(rows), f"row of probe {probe!r}")]
        case SlotKeys(slots):
            ids = _within(slots, view.count(layer.space), "slot")
            found = view.snapshot.keys(layer.name).of_entries(view.entries_of(layer, ids))
    return Vectors(found).rows  # refuses none at all, and what is not finite


def _within(
    numbers: Sequence[int] | NDArray[np.int64], count: int, what: str, field: str = "queries"
) -> NDArray[np.int64]:
    """The numbers, checked. Raises NotFound, naming the first one that is not from 0 to count - 1."""
    ids = np.asarray(numbers)
    if ids.size and ids.dtype.kind not in "iu":
        raise BadInput(f"a {what} is numbered by integers.", field=field)
    beyond = np.flatnonzero((ids < 0) | (ids >= count))
    if len(beyond):
        there = f"There are {count}: 0 to {count - 1}." if count else "There is none."
        raise NotFound(f"no {what} has number {int(ids[beyond[0]])}.", hint=there, field=field)
    return ids.astype(np.int64)


def slot_columns(view: View, ids: Sequence[int] | NDArray[np.int64], space: str | None) -> Columns:
    """All columns of some slots, in the order of `ids`. Without a space: samples, or the only space there is.

    Raises NotFound for an id or a space that does not exist.
    """
    space = view.snapshot.space(space or default_space(view)).name
    rows = _within(as_ids(ids), view.count(space), "slot", "ids")
    table = view.snapshot.space(space).at(rows, list(view.columns(space)))
    return Columns({name: as_numpy(table[name]) for name in table.column_names})


def default_space(view: View) -> str:
    """Samples, or the only space there is."""
    return "sample" if "sample" in view.spaces else view.spaces[0]


def probe(view: View, name: str, layer: str | None) -> Probe:
    """Raises NotFound for a probe that does not exist, or that does not hold the layer."""
    stored = view.snapshot.probe(name)
    queries = None if layer is None else stored.queries(view.layer(layer).name)
    return Probe(name, stored.labels, stored.outputs, queries)
