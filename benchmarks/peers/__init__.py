"""What a user would otherwise pick: one file each. Shapes: T slots, n queries, d dimensions, G groups.

Every peer gets all cores, and the keys in the form it likes best, built once and not timed with the questions. What a
peer cannot do raises Cannot, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Data, Groups, Mask
from benchmarks.timing import Cannot

Slots: TypeAlias = list[NDArray[np.int64]]
"""Of each query, or of each group, best first."""


class Peer(Protocol):
    name: str

    def build(self, data: Data, folder: Path, patience: float) -> None:
        """Load the keys, or find those that an earlier section of this run left in `folder`."""
        ...

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        """The k best slots of each query."""
        ...

    def top_of_groups(self, query: NDArray[np.float32], k: int, groups: Groups) -> Slots:
        """The k best slots of each group, for one query."""
        ...

    def sums(self, queries: NDArray[np.float32], groups: Groups, absolute: bool) -> NDArray[np.float64]:
        """float64[n, G]: the sums of scores, or of their absolute values."""
        ...

    def close(self) -> None: ...


class SearchOnly:
    """What vector indexes leave undone."""

    def top_of_groups(self, query: NDArray[np.float32], k: int, groups: Groups) -> Slots:
        raise Cannot("no exact search for the best of each group")

    def sums(self, queries: NDArray[np.float32], groups: Groups, absolute: bool) -> NDArray[np.float64]:
        raise Cannot("no sums of scores")

    def close(self) -> None:
        """Nothing to let go of."""


PEERS = {
    "FAISS search": ("benchmarks.peers.faiss", "FaissSearch", "faiss-cpu"),
    "FAISS knn": ("benchmarks.peers.faiss", "FaissKnn", "faiss-cpu"),
    "torch": ("benchmarks.peers.torch", "Torch", "torch"),
    "NumPy": ("benchmarks.peers.numpy", "Numpy", "numpy"),
    "DuckDB": ("benchmarks.peers.duckdb", "Duckdb", "duckdb"),
    "LanceDB": ("benchmarks.peers.lancedb", "Lancedb", "lancedb"),
    "Milvus Lite": ("benchmarks.peers.milvus", "Milvus", "milvus-lite"),
    "usearch": ("benchmarks.peers.usearch", "Usearch", "usearch"),
}


def installed(name: str) -> str:
    """The version of a peer's package. Raises PackageNotFoundError."""
    return version(PEERS[name][2])


def make(name: str) -> Peer:
    """Raises ImportError where the peer's package is missing."""
    module, kind, _ = PEERS[name]
    peer: Peer = getattr(import_module(module), kind)()
    return peer


@contextmanager
def closing(peers: list[Peer]) -> Iterator[None]:
    with ExitStack() as stack:
        for peer in peers:
            stack.callback(peer.close)
        yield
