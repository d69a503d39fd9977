"""An engine whose answers are known beforehand: what the wire must carry, without a memory on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dualform.answers import Certificate, Columns, GroupSums, Hits, LayerInfo, MemoryInfo, Probe, ProbeInfo, Scan
from dualform.errors import Cancelled, NotFound
from dualform.questions import GroupSum, Output, TopK, as_by, as_queries
from dualform_service.sharing import queries_of

LAYER = LayerInfo("fc", 3, 2, True, "sample", 4, 4, True, True)
INFO = MemoryInfo(
    format=1,
    snapshot=7,
    recording=False,
    slots={"sample": 4},
    steps=2,
    optimizer="SGD",
    layers=(LAYER,),
    skipped={"norm": "no tap for LayerNorm"},
    datasets={"mnist": 4},
    columns={"slot": "BIGINT", "step": "BIGINT", "dataset": "VARCHAR", "label": "BIGINT"},
    probes=(ProbeInfo("test", 2, ("fc",)),),
)
SCAN = Scan(7, 4, 3, "numpy", 0.25)
COLUMNS = {
    "slot": np.arange(4),
    "step": np.array([0, 0, 1, 1]),
    "dataset": np.array(["mnist", "mnist", None, "[bold]\x1b[31m"], dtype=object),
    "label": np.ma.MaskedArray([3, 8, 0, 1], mask=[False, False, True, False]),
}


class Canned:
    """Satisfies the service's Engine. What it was asked stands in `asked`."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: Exception | None = None
        """Raised in place of every answer, where set."""
        self.hold = threading.Event()
        """While clear, questions wait, as long scans do: until it is set, or they are cancelled."""
        self.hold.set()
        self.waiting = threading.Semaphore(0)
        """Released by each question that starts to wait."""
        self.cancelled = threading.Event()
        self.refreshed = threading.Event()
        self.told = INFO

    def _begin(self, asked: Any, cancelled: Callable[[], bool] | None = None) -> None:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        self.waiting.release()
        while not self.hold.is_set():
            if cancelled is not None and cancelled():
                self.cancelled.set()
                raise Cancelled("stopped")
            time.sleep(0.005)

    def info(self) -> MemoryInfo:
        self.asked.append("info")
        if self.error is not None:
            raise self.error
        return self.told

    def ask(self, question: Any, cancelled: Callable[[], bool] | None = None) -> Any:
        self._begin(question, cancelled)
        if isinstance(question, TopK):
            groups = ((3,), (8,)) if question.by else None
            asked = queries_of(question) or 1  # a shared scan is asked with the queries of several
            counts = np.tile([1, 1] if groups else [2], (asked, 1))
            ids, weights = np.tile([1, 3], asked), np.tile(np.array([2.5, -1], np.float32), asked)
            return Hits(ids, weights, counts, groups, question.by, SCAN)
        if isinstance(question, GroupSum):
            keys = tuple((key,) * len(question.by) for key in (3, None))
            return GroupSums(keys, np.array([[1.5, 2.5]]), np.array([3, 1]), question.by, SCAN)
        assert isinstance(question, Output)
        return np.array([[0.5, np.inf]], np.float32), SCAN

    def topk(
        self, layer: str, queries: Any, k: int = 10, where: Any = None, by: Any = None, score: Any = "signed"
    ) -> Any:
        return self.ask(TopK(layer, as_queries(queries), k, where, as_by(by), score))

    def group_sum(self, layer: str, queries: Any, by: Any, where: Any = None, score: Any = "signed") -> Any:
        return self.ask(GroupSum(layer, as_queries(queries), as_by(by), where, score))

    def output(self, layer: str, queries: Any, where: Any = None, at_step: Any = None) -> Any:
        return self.ask(Output(layer, as_queries(queries), where, at_step))[0]

    def slots(self, ids: Any, space: str | None = None) -> Columns:
        self._begin((list(ids), space))
        missing = [one for one in ids if not 0 <= one < 4]
        if missing:
            raise NotFound(f"there is no slot {missing[0]}.", hint="Slots: 0 to 3.", field="ids")
        return Columns({name: column[np.asarray(ids, dtype=int)] for name, column in COLUMNS.items()})

    def sql(self, statement: str, cancelled: Callable[[], bool] | None = None) -> Columns:
        self._begin(statement, cancelled)
        return Columns(COLUMNS)

    def probe(self, name: str, layer: str | None = None) -> Probe:
        self._begin((name, layer))
        queries = None if layer is None else np.ones((2, 3), np.float32)
        return Probe(name, np.array([3, -1]), np.ones((2, 2), np.float32), queries)

    def verify(self, cancelled: Callable[[], bool] | None = None) -> dict[str, Certificate]:
        self._begin("verify", cancelled)
        return {"fc": Certificate(1e-6, True), "tied": Certificate(None, False, "a weight used twice")}

    def refresh(self) -> bool:
        self.refreshed.set()
        return True
