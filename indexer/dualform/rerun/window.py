"""Keys of a training that is run again, gathered until they are worth asking, and then let go.

Shapes: d_in of a layer, m entries of a window that a mask leaves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups, Members
from dualform.query.score.backends import Backend
from dualform.query.sums.key_sums import BLOCK
from dualform.query.view import View
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer
from dualform.store.rows import Keys
from dualform.store.shard_tables import HeldTables
from dualform.store.snapshot import Snapshot
from dualform.store.sources.held_rows import HeldRows
from dualform.store.tables import SAMPLES, SETTINGS, extents_table, rows_table

_CACHE_BYTES = 256 << 20
"""For what the questions about one window share: norms and masks."""


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive entries of one layer, to be asked as a memory of their own, in which they count from 0."""

    view: View
    layer: Layer
    start: int
    stop: int

    @classmethod
    def of(cls, memory: Snapshot, layer: Layer, start: int, keys: NDArray[np.float32], backend: Backend) -> Window:
        """The window of float32[entries, d_in] keys that begin at entry `start` of a memory that holds none.

        What is said of the slots is settled before a window is asked, so that it has none of their columns.
        """
        held = Layer(layer.name, layer.space, layer.d_in, layer.d_out, layer.parameters, values=layer.values)
        columns = {"samples": dict(SAMPLES), "steps": dict(SETTINGS), layer.space: dict[str, str]()}
        manifest = replace(memory.manifest, layers=[held], spaces=[layer.space], columns=columns)
        extent = (0, 0, 0, len(keys), len(keys), None, 0, None, None)
        rows: dict[str, list[tuple[Any, ...]]] = {extents_table(layer.space): [extent]}
        rows["entries"] = [(layer.name, 0, len(keys))]
        types = manifest.tables()
        tables = HeldTables({name: rows_table(own, types[name]) for name, own in rows.items()}, types)
        # A window's memory is written to again once it was asked: what is derived from it is nobody else's.
        sources = {(layer.name, "keys"): [HeldRows(object(), 0, keys)]}
        snapshot = Snapshot(memory.path, manifest, tables, sources)
        return cls(View(snapshot, backend, _CACHE_BYTES), held, start, start + len(keys))

    @property
    def keys(self) -> Keys:
        return self.view.snapshot.keys(self.layer.name)

    def selection(self, whole: Selection) -> Selection:
        """The window's part of a mask."""
        return Selection(whole.identity, whole.stays[self.start : self.stop])

    def members(self, groups: Groups) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64[m] each: the window's entries among those of some groups, and the number of each one's group."""
        part = slice(*np.searchsorted(groups.entries, [self.start, self.stop]).tolist())
        return groups.entries[part] - self.start, groups.numbers[part]

    def groups(self, groups: Groups) -> tuple[Groups, NDArray[np.int64]]:
        """The groups that the window has entries of, and the number of each among all groups."""
        entries, numbers = self.members(groups)
        present, own, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        return Groups.of(groups.by, tuple(present.tolist()), Members(entries, own), counts), present


class RunningAnswer(Protocol):
    """An answer that grows window by window."""

    seconds: float
    """Spent on it so far."""

    def add(self, window: Window) -> None:
        """Take the next entries into account."""


class KeyBuffer:
    """Holds one layer's keys until there is a window of them, which begins where a block of sums does, and hands it to
    the answers that wait for it.
    """

    def __init__(
        self, memory: Snapshot, layer: Layer, answers: Sequence[RunningAnswer], backend: Backend, most_bytes: int
    ) -> None:
        """`most_bytes`: of keys held at once; one block of entries is held in any case."""
        self.stored = layer.stored.name
        """The layer that is run again."""
        self._memory, self._layer, self._answers, self._backend = memory, layer, answers, backend
        blocks = max(1, most_bytes // (4 * max(1, layer.d_in) * BLOCK))
        size = min(blocks * BLOCK, max(1, memory.entries(layer.name).count))
        self._keys = np.empty((size, layer.d_in), dtype=np.float32)
        self._start, self._held = 0, 0

    def append(self, keys: NDArray[np.float32]) -> None:
        """The keys of the next entries of the stored layer, float32[n, d_in], of which a view has some columns."""
        keys = keys[:, self._layer.own_keys]
        while len(keys):
            part = keys[: len(self._keys) - self._held]
            self._keys[self._held : self._held + len(part)] = part
            self._held += len(part)
            keys = keys[len(part) :]
            if self._held == len(self._keys):
                self.finish()

    def finish(self) -> None:
        """Ask what is held."""
        if not self._held:
            return
        window = Window.of(self._memory, self._layer, self._start, self._keys[: self._held], self._backend)
        for answer in self._answers:
            began = time.perf_counter()
            answer.add(window)
            answer.seconds += time.perf_counter() - began
        self._start, self._held = window.stop, 0
