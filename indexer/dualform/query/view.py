"""One snapshot of a memory, and what is derived from it and kept: masks, groups, norms, key sums, rebuilt weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import duckdb
import numpy as np
from numpy.typing import NDArray

from dualform.query import groups
from dualform.query.cache import Cache
from dualform.query.groups import Groups
from dualform.query.score.backends import Backend
from dualform.query.score.bound import norms
from dualform.query.search.tally import Tally
from dualform.query.weights.coefficients import coefficients
from dualform.query.where import mask
from dualform.query.where.mask import Selection
from dualform.rules import Coefficients
from dualform.store.layer import Layer
from dualform.store.snapshot import Snapshot

Check: TypeAlias = Callable[[], None]
"""Called between blocks of work; raises Cancelled where nobody waits for the answer any more."""

NORM_ROWS = 1 << 14


class View:
    """What one question is asked of; a question sees one snapshot from its start to its end."""

    def __init__(self, snapshot: Snapshot, backend: Backend, cache_bytes: int, tally: Tally | None = None) -> None:
        self.snapshot = snapshot
        self.backend = backend
        self.cache = Cache(cache_bytes)
        self.tally = tally or Tally()
        # A connection that outlives the interpreter makes DuckDB's binding print pages of "leaked" at exit.
        weakref.finalize(self, snapshot.close)

    @property
    def path(self) -> Path:
        return self.snapshot.path

    def layer(self, name: str) -> Layer:
        return self.snapshot.layer(name)

    @property
    def spaces(self) -> list[str]:
        """In the order of the layers that use them."""
        return list(dict.fromkeys(layer.space for layer in self.snapshot.layers.values()))

    def tables(self, space: str) -> duckdb.DuckDBPyConnection:
        return self.snapshot.tables(space)

    def count(self, space: str) -> int:
        return self.snapshot.count(space)

    def columns(self, space: str) -> dict[str, str]:
        return self.snapshot.columns(space)

    def column(self, space: str, name: str) -> NDArray[Any]:
        return self.snapshot.column(space, name)

    def datasets(self) -> dict[str, int]:
        """Slots by dataset over all spaces; slots without one are left out."""
        return self.cache.get("datasets", self._count_datasets).counts

    def _count_datasets(self) -> _Datasets:
        counts: dict[str, int] = {}
        for space in self.spaces:
            rows = self.tables(space).execute(
                "SELECT dataset, count(*) FROM slots WHERE dataset IS NOT NULL GROUP BY dataset ORDER BY dataset"
            )
            for name, slots in rows.fetchall():
                counts[name] = counts.get(name, 0) + slots
        return _Datasets(dict(sorted(counts.items())))

    def select(self, space: str, where: str | None) -> Selection:
        """The slots that a mask leaves, which may be none.

        Raises BadMask or NotFound as `mask.check` and `mask.select` say.
        """
        if where is None:
            return self.cache.get(("selection", space, ""), lambda: mask.every_slot(self, space))
        expression = mask.check(self, space, where, list(self.datasets()))
        key = ("selection", space, expression.identity)
        return self.cache.get(key, lambda: mask.select(self, space, expression))

    def selection(self, space: str, where: str | None) -> Selection:
        """As `select`; raises EmptyMask where the mask leaves nothing."""
        return mask.require_slots(self.select(space, where), where, list(self.datasets()))

    def groups(self, space: str, selection: Selection, by: tuple[str, ...]) -> Groups:
        key = ("groups", space, selection.identity, by)
        return self.cache.get(key, lambda: groups.group(self, space, selection, by))

    def key_norms(self, layer: str, check: Check, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        """float64[rows]: the norm of each stored key of a layer, or of some columns of it."""
        last = self.layer(layer).d_in if stop is None else stop

        def measure() -> NDArray[np.float64]:
            keys = self.snapshot.keys(layer)
            found = np.empty(keys.rows)
            for first, block in keys.blocks(NORM_ROWS):
                check()
                found[first : first + len(block)] = norms(block[:, start:last])
            return found

        return self.cache.get(("norms", layer, start, last), measure)

    def coefficients(self, layer: Layer, parameter: str, at_step: int | None) -> Coefficients:
        """As dualform.query.weights.coefficients; `per_step` is float64[recorded steps], 0.0 from `at_step` on."""
        found = coefficients(self.snapshot, parameter, at_step)
        later = self.snapshot.steps - len(found.per_step)
        return replace(found, per_step=np.pad(found.per_step, (0, later)))

    def stored_weights(self, which: Literal["initial", "final"]) -> Mapping[str, NDArray[Any]]:
        """The model's state dict as it was stored; the initial one where the training was cut off before its end."""
        held = self.cache.get(("stored", which), lambda: _Arrays(getattr(self.snapshot, which)()))
        return self.stored_weights("initial") if held.arrays is None else held.arrays

    def slot_steps(self, space: str) -> NDArray[np.int64]:
        """int64[slots]: the recorded step of each slot."""
        return self.cache.get(("steps", space), lambda: np.asarray(self.column(space, "step"), dtype=np.int64))


class _Arrays:
    def __init__(self, arrays: Mapping[str, NDArray[Any]] | None) -> None:
        self.arrays = arrays
        self.nbytes = 0 if arrays is None else sum(array.nbytes for array in arrays.values())


class _Datasets:
    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.nbytes = 100 * len(counts)
