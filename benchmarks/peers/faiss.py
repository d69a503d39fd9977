"""FAISS: a flat index, and its brute force over a plain matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Data, Mask
from benchmarks.peers import SearchOnly, Slots
from benchmarks.timing import Cannot

# Its stubs know nothing of the constructors that its Python layer adds.
faiss: Any = _faiss


class FaissSearch(SearchOnly):
    """IndexFlatIP.search; a mask is a bitmap selector, which is its fastest for any slots."""

    name = "FAISS search"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        self._index = faiss.IndexFlatIP(data.keys.shape[1])
        self._index.add(data.keys)
        self._selectors: dict[str, Any] = {}

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        parameters = None if mask is None else faiss.SearchParameters(sel=self._selector(mask))
        _, slots = self._index.search(queries, k, params=parameters)
        return [row[row >= 0] for row in slots]

    def _selector(self, mask: Mask) -> Any:
        if mask.where not in self._selectors:
            bits = np.packbits(mask.stays, bitorder="little")
            self._selectors[mask.where] = faiss.IDSelectorBitmap(bits)
        return self._selectors[mask.where]


class FaissKnn(SearchOnly):
    """faiss.knn over the matrix itself."""

    name = "FAISS knn"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        self._keys = data.keys

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        if mask is not None:
            raise Cannot("knn takes no selector")
        _, slots = faiss.knn(queries, self._keys, k, metric=faiss.METRIC_INNER_PRODUCT)
        return list(slots)
