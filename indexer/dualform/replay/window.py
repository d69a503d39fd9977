"""Keys of a training that is run again, gathered until they are worth asking, and then let go.

Shapes: d_in of a layer, m slots of a window that a mask leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.query.groups import Groups
from dualform.query.score.backends import Backend
from dualform.query.sums.key_sums import BLOCK
from dualform.query.view import View
from dualform.query.where.mask import Selection
from dualform.store.layer import Layer
from dualform.store.rows import Keys, SegmentCache
from dualform.store.snapshot import Snapshot
from dualform.store.tables import TABLES, rows_table

_CACHE_BYTES = 256 << 20
"""For what the questions about one window share: norms and masks."""


def never() -> None:
    """The check of a question that nobody gives up."""


class _Held(SegmentCache):
    """The one segment of a window, which no file holds."""

    def __init__(self, matrix: NDArray[np.float32]) -> None:
        self._matrix = matrix

    def get(self, path: Path, read: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        return self._matrix


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive slots of one layer, to be asked as a memory of their own, in which they count from 0."""

    view: View
    layer: Layer
    start: int
    stop: int

    @classmethod
    def of(cls, memory: Snapshot, layer: Layer, start: int, keys: NDArray[np.float32], backend: Backend) -> Window:
        """The window of float32[slots, d_in] keys that begin at slot `start` of a memory that holds none."""
        name = memory.manifest.spaces[layer.space]
        segment = (0, layer.name, "keys", "window", 0, len(keys), keys.nbytes, "")
        tables = {
            name: memory.table(name).slice(start, len(keys)),
            "segments": rows_table([segment], TABLES["segments"]),
        }
        manifest = replace(memory.manifest, layers=[replace(layer, keys=True, repeats=False)])
        held = Snapshot(memory.path, manifest, tables, _Held(keys))
        return cls(View(held, backend, _CACHE_BYTES), layer, start, start + len(keys))

    @property
    def keys(self) -> Keys:
        return self.view.snapshot.keys(self.layer.name)

    def selection(self, whole: Selection) -> Selection:
        """The window's part of a mask."""
        return Selection(whole.identity, whole.stays[self.start : self.stop])

    def members(self, groups: Groups) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64[m] each: the window's slots among those of some groups, and the number of each one's group."""
        part = slice(*np.searchsorted(groups.slots, [self.start, self.stop]).tolist())
        return groups.slots[part] - self.start, groups.numbers[part]


class Running(Protocol):
    """An answer that grows window by window."""

    seconds: float
    """Spent on it so far."""

    def add(self, window: Window) -> None:
        """Take the next slots into account."""


class Gatherer:
    """Hands one layer's keys to the answers that wait for them, in windows that begin where a block of sums does."""

    def __init__(
        self, memory: Snapshot, layer: Layer, answers: Sequence[Running], backend: Backend, most_bytes: int
    ) -> None:
        """`most_bytes`: of keys held at once; one block of slots is held in any case."""
        self._memory, self._layer, self._answers, self._backend = memory, layer, answers, backend
        blocks = max(1, most_bytes // (4 * max(1, layer.d_in) * BLOCK))
        size = min(blocks * BLOCK, max(1, memory.count(layer.space)))
        self._keys = np.empty((size, layer.d_in), dtype=np.float32)
        self._start, self._held = 0, 0

    def append(self, keys: NDArray[np.float32]) -> None:
        """The keys of the next slots, float32[n, d_in]."""
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
