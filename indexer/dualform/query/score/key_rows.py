"""The stored keys of a layer as a mask leaves them.

Shapes: H entries (the slots that the layer has), R stored rows. A layer whose inputs repeat stores each distinct key
once: R < H, and all entries of a row score exactly alike, so that a scan goes over rows and its answer over entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Inexact
from dualform.kernels.workers import divide
from dualform.query.score.canonical import norms
from dualform.query.search.codes import StoredCodes
from dualform.query.view import Check, View
from dualform.query.where.mask import Selection
from dualform.store.rows import Keys
from dualform.store.sources.key_format import KeySource

_NORM_BYTES = 16 << 20
"""Keys that are measured at once, at most."""
_NORM_TASK = 1 << 9
"""Keys that a worker measures at a time."""


@dataclass(frozen=True, eq=False)
class KeyRows:
    identity: str
    """The mask's."""
    keys: Keys
    norms: NDArray[np.float64]
    """float64[R]."""
    stays: NDArray[np.bool_]
    """bool[R]: rows of which the mask leaves an entry."""
    largest: float
    """The largest norm among them."""
    source_starts: tuple[int, ...]
    """The first row of each key source."""
    order: NDArray[np.int64]
    """The entries that stay, by row and then ascending; empty where row and entry are the same."""
    starts: NDArray[np.int64]
    """int64[R + 1]: where each row begins in `order`; empty likewise."""

    @property
    def nbytes(self) -> int:
        return self.stays.nbytes + self.order.nbytes + self.starts.nbytes  # the norms are kept once for all masks

    def first_entries(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first staying entry of each of some staying rows: what decides between rows of equal score."""
        return rows if self.keys.row_of_entry is None else self.order[self.starts[rows]]

    def entries_of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All staying entries of some rows, and for each the index of its row in `rows`."""
        if self.keys.row_of_entry is None:
            return rows, np.arange(len(rows))
        counts = self.starts[rows + 1] - self.starts[rows]
        index = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.order[self.starts[rows][index] + within], index

    def rows_of(self, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        return entries if self.keys.row_of_entry is None else self.keys.row_of_entry[entries]


def key_rows(view: View, layer: str, selection: Selection, check: Check) -> KeyRows:
    """The rows of a layer that a mask leaves.

    Raises Inexact where one of them is not finite: such a score has no place in any order.
    """
    lengths = key_norms(view, layer, check)

    def lay_out() -> KeyRows:
        keys = view.snapshot.keys(layer)
        if keys.row_of_entry is None:
            stays, order, starts = selection.stays, np.empty(0, np.int64), np.empty(0, np.int64)
        else:
            rows = keys.row_of_entry[selection.entries]
            order = selection.entries[np.argsort(rows, kind="stable")]
            counts = np.bincount(rows, minlength=keys.rows)
            starts = np.concatenate([[0], np.cumsum(counts)])
            stays = counts > 0
        largest = float(np.max(lengths, where=stays, initial=0.0))
        firsts = tuple(source.first_row for source in keys.sources)
        found = KeyRows(selection.identity, keys, lengths, stays, largest, firsts, order, starts)
        if not np.isfinite(largest):
            _refuse(found, view, layer)
        return found

    return view.cache.get(("rows", layer, selection.identity), lay_out, check)


def key_norms(view: View, layer: str, check: Check, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
    """float64[R]: the norm of each stored key of a layer, or of some columns of it."""
    last = view.snapshot.layer(layer).d_in if stop is None else stop

    def measure() -> NDArray[np.float64]:
        keys = view.snapshot.keys(layer)
        found = np.empty(keys.rows)
        for source in keys.sources:
            check()
            own = found[source.first_row : source.first_row + source.rows]
            stored = StoredCodes.open(source) if (start, last) == (0, source.width) else None
            kept = stored.norms() if stored else None
            if kept is not None:
                own[:] = kept
            else:
                measure_rows(source, slice(start, last), own, check)
        return found

    return view.cache.get(("norms", layer, start, last), measure, check)


def value_norms(view: View, layer: str, check: Check) -> NDArray[np.float64]:
    """float64[R]: the norm of each stored value of a layer."""

    def made() -> NDArray[np.float64]:
        rows = view.snapshot.values(layer)
        found = np.empty(rows.stored_rows)
        for source in rows.sources:
            check()
            measure_rows(source, slice(None), found[source.first_row : source.first_row + source.rows], check)
        return found

    return view.cache.get(("value norms", layer), made, check)


def measure_rows(source: KeySource, columns: slice, found: NDArray[np.float64], check: Check) -> None:
    """Write the norm of some columns of each row of a source to float64[R]."""
    source = source.passing()  # the norms are kept, and codes are as a rule read instead of keys
    size = max(1, _NORM_BYTES // (4 * max(1, source.width)))  # whole blocks of the file, of narrow layers, too
    for first in range(0, source.rows, size):
        check()
        block = source.read(first, min(first + size, source.rows))

        def work(_: int, start: int, block: NDArray[np.float32] = block, first: int = first) -> None:
            part = block[start : start + _NORM_TASK, columns]
            found[first + start : first + start + len(part)] = norms(part)

        divide(range(0, len(block), _NORM_TASK), work)


def _refuse(rows: KeyRows, view: View, layer: str) -> None:
    bad = np.flatnonzero(rows.stays & ~np.isfinite(rows.norms))
    slot = int(view.snapshot.entries(layer).slots_of(rows.first_entries(bad).min(keepdims=True))[0])
    raise Inexact(
        f"Layer {layer!r} has keys with NaN or infinity, first at slot {slot}.",
        hint=f'The training diverged there. Leave those slots out: where="slot < {slot}".',
        field="where",
    )
