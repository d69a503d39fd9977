"""Clients that ask one question each, again and again.

    python -m benchmarks.clients_process ADDRESS FOLDER CLIENTS ROUNDS SECONDS

Prints one line of JSON: questions a second by one client alone and by all at once, round by round. Their answers go
to FOLDER/crowd.npz; an answer that changes from one time to the next is an error.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import LAYER
from dualform import Hits
from dualform_client import Client

K = 10


class Asker:
    """A client with a query of its own, and the answer that it got first."""

    def __init__(self, address: str, query: NDArray[np.float32]) -> None:
        self._client, self._query = Client(address), query
        self.answer = self._client.topk(LAYER, query, K)

    def ask_until(self, end: float) -> int:
        """How many questions were answered by then."""
        asked = 0
        while time.perf_counter() < end:
            self._compare(self._client.topk(LAYER, self._query, K))
            asked += 1
        return asked

    def _compare(self, answer: Hits) -> None:
        same_scores = np.array_equal(answer.flat_scores, self.answer.flat_scores)
        if not (same_scores and np.array_equal(answer.ids, self.answer.ids)):
            raise AssertionError("the same question got two answers")


def main(address: str, folder: Path, clients: int, rounds: int, seconds: float) -> None:
    queries = np.load(folder / "queries.npy")
    askers = [Asker(address, queries[i % len(queries)][None]) for i in range(clients)]
    slots, scores = ([getattr(asker.answer, name)[0] for asker in askers] for name in ("slots", "scores"))
    np.savez(folder / "crowd.npz", slots=np.stack(slots), scores=np.stack(scores))
    alone, together = [], []
    with ThreadPoolExecutor(clients) as pool:
        for _ in range(rounds):
            alone.append(_rate(pool, askers[:1], seconds))
            together.append(_rate(pool, askers, seconds))
    print(json.dumps({"alone": alone, "together": together}))


def _rate(pool: ThreadPoolExecutor, askers: list[Asker], seconds: float) -> float:
    """Questions a second."""
    began = time.perf_counter()
    asked = sum(pool.map(Asker.ask_until, askers, [began + seconds] * len(askers)))
    return asked / (time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
