"""Scores by FAISS, on the CPU or on a GPU. On a GPU: written to its documentation, not measured."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import MissingPackage
from dualform.store.locks import forked


class FaissBackend:
    name = "faiss"
    rounding = 0.0

    def __init__(self) -> None:
        self._faiss = load_faiss()

    def scores(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self._module().pairwise_distances(
            np.ascontiguousarray(queries), np.ascontiguousarray(keys), metric=self._faiss.METRIC_INNER_PRODUCT
        )
        return scores

    def top(
        self, keys: NDArray[np.float32], queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        scores, rows = self._module().knn(
            np.ascontiguousarray(queries), np.ascontiguousarray(keys), k, metric=self._faiss.METRIC_INNER_PRODUCT
        )
        return scores, rows

    def _module(self) -> Any:
        if forked():  # OpenMP would wait for threads of the parent's
            self._faiss.omp_set_num_threads(1)
        return self._faiss


class FaissGpuBackend:
    name = "faiss-gpu"
    rounding = 0.0

    def __init__(self) -> None:
        self._faiss = load_faiss()
        if not hasattr(self._faiss, "pairwise_distance_gpu") or not self._faiss.get_num_gpus():
            raise MissingPackage(
                "this FAISS sees no GPU.",
                hint="pip install 'dualform[gpu]' instead of 'dualform[cpu]', on a machine with a GPU.",
                field="backend",
            )
        self._resources = self._faiss.StandardGpuResources()

    def scores(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self._faiss.pairwise_distance_gpu(
            self._resources,
            np.ascontiguousarray(queries),
            np.ascontiguousarray(keys),
            metric=self._faiss.METRIC_INNER_PRODUCT,
        )
        return scores


def load_faiss() -> Any:
    """The module faiss. Raises MissingPackage as `check_faiss` does."""
    check_faiss()
    import faiss

    return faiss


def check_faiss() -> None:
    """Raises MissingPackage where FAISS is not installed, or twice: both builds write the same files."""
    if all(_installed(name) for name in ("faiss-cpu", "faiss-gpu")):
        raise MissingPackage(
            "faiss-cpu and faiss-gpu are both installed, and each overwrites the other.",
            hint="Uninstall both, then pip install 'dualform[cpu]' or 'dualform[gpu]'.",
            field="backend",
        )
    if find_spec("faiss") is None:
        raise MissingPackage(
            "faiss is not installed.", hint="pip install 'dualform[cpu]' or 'dualform[gpu]'.", field="backend"
        )


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
