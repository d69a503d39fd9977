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
    """On the processor, or on a GPU."""

    rounding = 0.0

    def __init__(self, gpu: bool = False) -> None:
        self.name, self._faiss = "faiss-gpu" if gpu else "faiss", load_faiss()
        if gpu and not (hasattr(self._faiss, "pairwise_distance_gpu") and self._faiss.get_num_gpus()):
            raise MissingPackage(
                "this FAISS sees no GPU.",
                hint="pip install 'dualform[gpu]' instead of 'dualform[cpu]', on a machine with a GPU.",
                field="backend",
            )
        self._resources = self._faiss.StandardGpuResources() if gpu else None

    def scores(self, keys: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        own, others = np.ascontiguousarray(queries), np.ascontiguousarray(keys)
        metric, gpu = self._faiss.METRIC_INNER_PRODUCT, self._resources
        if forked():  # OpenMP would wait for threads of the parent's
            self._faiss.omp_set_num_threads(1)
        scores: NDArray[np.float32] = (
            self._faiss.pairwise_distances(own, others, metric=metric)
            if gpu is None
            else self._faiss.pairwise_distance_gpu(gpu, own, others, metric=metric)
        )
        return scores


def gpu_backend() -> FaissBackend:
    return FaissBackend(gpu=True)


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
