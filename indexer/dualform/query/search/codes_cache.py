"""Codes of key sources: held between questions, read from beside the keys, or made.

Shapes: R rows of a key source.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from dualform.query.search.codes import Codes, quantise_source
from dualform.query.search.stored_codes import StoredCodes, write_codes
from dualform.store.machine_memory import memory_bytes
from dualform.store.ram_budget import RamBudget
from dualform.store.sources.key_source import KeySource


class CodesCache:
    """Codes of key sources, which never change; the least recently used dropped beyond a budget."""

    def __init__(self, most_bytes: int | None = None, budget: RamBudget | None = None) -> None:
        """`most_bytes`: an eighth of the machine's memory where it is None. `budget`: what is shared with other caches;
        None for one of `most_bytes`.
        """
        self.most_bytes = most_bytes = memory_bytes() // 8 if most_bytes is None else most_bytes
        """Of the codes of one layer: beyond it they are not held, since each question would push them out."""
        self._budget = budget or RamBudget(most_bytes)
        self._owner = object()
        self._passed = set[Hashable]()
        """Sources whose stored codes were screened without being held."""
        self.found = self.made = 0
        """How often a scan found a source's codes held, and how often they were read or made."""
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
            self._count(made=1)
            stored = StoredCodes.open(source)
            made = stored.whole() if stored else None
            if made is None:
                made = quantise_source(source)
                if norms is not None:
                    write_codes(source, made, norms)
        self._budget.keep(self._owner, identity, made, made.nbytes)
        return made

    @property
    def nbytes(self) -> int:
        """Of what is held."""
        return self._budget.bytes_of(self._owner)

    def clear(self) -> None:
        """Let go of everything; whoever is screening keeps what it has."""
        self._budget.forget(self._owner)

    def passing(self, source: KeySource, hold: bool) -> StoredCodes | None:
        """Stored codes of a source that is not held, to be screened block by block and not held either.

        None where there are none, and, with `hold`, from the second time on: a process that asks once neither waits
        for memory nor fills it.
        """
        identity = source.identity
        if self._look(identity) is not None:
            self._count(found=1)
            return None
        if hold and identity in self._passed:
            return None
        stored = StoredCodes.open(source)
        if stored is not None:
            with self._lock:
                self._passed.add(identity)
            self._count(made=1)
        return stored

    def _look(self, identity: Hashable) -> Codes | None:
        held: Codes | None = self._budget.find(self._owner, identity)
        return held

    def _count(self, *, found: int = 0, made: int = 0) -> None:
        with self._lock:
            self.found += found
            self.made += made
