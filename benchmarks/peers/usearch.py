"""usearch: its exact search over the matrix itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from usearch.index import MetricKind, search

from benchmarks.data import Data, Mask
from benchmarks.peers import SearchOnly, Slots
from benchmarks.timing import Cannot


class Usearch(SearchOnly):
    name = "usearch"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        self._keys = data.keys

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        if mask is not None:
            raise Cannot("exact search takes no filter")
        found = search(self._keys, queries, k, MetricKind.IP, exact=True)
        return list(np.asarray(found.keys).astype(np.int64).reshape(len(queries), -1))
