"""Codes of key sources: held between questions, read from beside the keys, or made.

Shapes: R rows of a key source.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from dualform.query.search.codes import Codes, quantise_source
from dualform.query.search.stored_codes import StoredCodes, keep
from dualform.store.sources.key_source import KeySource


class CodesCache:
    """Codes of key sources, which never change; the least recently used dropped beyond a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held: OrderedDict[Hashable, Codes] = OrderedDict()
        self._bytes = 0
        self._passed = set[Hashable]()
        """Sources whose stored codes were screened without being held."""
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def get(self, source: KeySource, norms: NDArray[np.float64] | None = None) -> Codes:
        """The codes of a key source: held, or stored beside it, or made.

        With its canonical `norms`, float64[R], what is made is stored for the next process.
        """
        identity = source.identity
        if (held := self._look(identity)) is not None:
            return held
        with self._making:  # makers share all cores: one at a time is as fast, and never makes the same twice
            if (held := self._look(identity)) is not None:
                return held
            stored = StoredCodes.of(source)
            made = stored.whole() if stored else None
            if made is None:
                made = quantise_source(source)
                if norms is not None:
                    keep(source, made, norms)
        with self._lock:
            if made.nbytes <= self.most_bytes:
                self._held[identity] = made
                self._bytes += made.nbytes
                while self._bytes > self.most_bytes:
                    self._bytes -= self._held.popitem(last=False)[1].nbytes
        return made

    def passing(self, source: KeySource, hold: bool) -> StoredCodes | None:
        """Stored codes of a source that is not held, to be screened block by block and not held either.

        None where there are none, and, with `hold`, from the second time on: a process that asks once neither waits
        for memory nor fills it.
        """
        identity = source.identity
        if self._look(identity) is not None or (hold and identity in self._passed):
            return None
        stored = StoredCodes.of(source)
        if stored is not None:
            with self._lock:
                self._passed.add(identity)
        return stored

    def _look(self, identity: Hashable) -> Codes | None:
        with self._lock:
            if identity in self._held:
                self._held.move_to_end(identity)
            return self._held.get(identity)
