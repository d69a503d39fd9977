"""Copies of key blocks on a device, for as long as the blocks themselves live and the device has room."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Place: TypeAlias = tuple[int, int, tuple[int, ...]]
_SPARE = 4
"""A copy is kept where the device then still has so many times its size free: scores need room, too."""


class DeviceCopies:
    """`upload` copies a block, `room` says how many bytes of the device are free."""

    def __init__(self, upload: Callable[[NDArray[np.float32]], Any], room: Callable[[], int]) -> None:
        self._upload, self._room = upload, room
        self._held: dict[Place, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, block: NDArray[np.float32]) -> Any:
        """The copy of a block, kept where there is room. Blocks of stored keys are never written to."""
        owner = _owner(block)
        place = (id(owner), block.ctypes.data, block.shape)
        if (held := self._held.get(place)) is not None:
            return held
        copy = self._upload(block)
        with self._lock:
            if place not in self._held and self._room() >= _SPARE * block.nbytes:
                self._held[place] = copy
                # Another array may stand at this address once this one is gone.
                weakref.finalize(owner, self._forget, place)
        return copy

    def _forget(self, place: Place) -> None:
        # Without the lock: a block may be let go at any moment, by a thread that holds it, or in a fork.
        self._held.pop(place, None)


def _owner(block: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory a view shows."""
    while isinstance(block.base, np.ndarray):
        block = block.base
    return block
