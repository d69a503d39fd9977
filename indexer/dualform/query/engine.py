"""The engine: answers questions about one memory, in process.

    memory = dualform.open("runs/mnist")
    memory.topk("0", "test-mnist/17", k=10, where="dataset <> 'fashion-mnist'")

Shapes: n queries, d_in and d_out of a layer. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Certificate, Columns, GroupSums, Hits, MemoryInfo, Probe, Scan
from dualform.errors import BadInput, Cancelled
from dualform.query import info, resolve
from dualform.query.asking import Asking
from dualform.query.score import backends
from dualform.query.search.tally import Tally
from dualform.query.sql.process import Sql
from dualform.query.view import Check, View
from dualform.query.weights import cancellation, certificate, parameters
from dualform.questions import GroupSum, Output, QueriesLike, Score, TopK, as_by, as_queries
from dualform.store.manifest import Manifest
from dualform.store.rows import SegmentCache
from dualform.store.snapshot import Snapshot

if TYPE_CHECKING:
    import torch

CACHE_BYTES = 1 << 30
Asker = Callable[[], bool]
"""Says whether the asker went away."""


def open_memory(path: str | Path, backend: str | None = None, cache_bytes: int = CACHE_BYTES) -> Engine:
    """The memory in a folder, ready for questions.

    `backend` scores keys: int8, numpy, torch, faiss, torch-cuda or faiss-gpu; None picks what fits the machine. All
    give the same answers. `cache_bytes` bounds what is kept between questions (masks, key sums, rebuilt weights).

    Raises NotAMemory or Damaged for the folder, NotFound or MissingPackage for the backend.
    """
    segments = SegmentCache()
    return Engine(Snapshot.open(path, segments), backends.choose(backend), cache_bytes, segments)


class Engine:
    """Answers about one memory; satisfies dualform.answers.Answers."""

    def __init__(
        self,
        memory: Snapshot,
        backend: backends.Backend,
        cache_bytes: int = CACHE_BYTES,
        segments: SegmentCache | None = None,
    ) -> None:
        self._backend, self._cache_bytes = backend, cache_bytes
        self._segments = segments
        """Key and value segments held in memory; committed segments never change, so a refresh keeps them."""
        self._refreshing = threading.Lock()
        self.tally = Tally()
        self._see(memory)

    def _see(self, memory: Snapshot) -> None:
        self._view = View(memory, self._backend, self._cache_bytes, self.tally)
        self._sql = Sql(self._view)

    @property
    def path(self) -> Path:
        return self._view.path

    def info(self) -> MemoryInfo:
        """What the memory holds, as of the snapshot that questions see."""
        return info.describe(self._view)

    def topk(
        self,
        layer: str,
        queries: QueriesLike,
        k: int = 10,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        score: Score = "signed",
    ) -> Hits:
        """The k slots that each query attends to most, or the k of each group.

        Scores are canonical (canonical.py); with score="abs" they are absolute values, and rank as such. Raises
        BadMask, EmptyMask, BadInput or NotFound, naming what is wrong; Inexact where recorded keys are not finite.
        """
        return self.ask(TopK(layer, as_queries(queries), k, where, as_by(by), score))

    def group_sum(
        self,
        layer: str,
        queries: QueriesLike,
        by: str | Sequence[str],
        where: str | None = None,
        score: Score = "signed",
    ) -> GroupSums:
        """The sum of scores, or of their absolute values, that each query gives to each group. Raises as `topk`."""
        return self.ask(GroupSum(layer, as_queries(queries), as_by(by), where, score))

    def output(
        self, layer: str, queries: QueriesLike, where: str | None = None, at_step: int | None = None
    ) -> NDArray[np.float32]:
        """float32[n, d_out]: what the layer answers, bias included, when only the slots of `where` speak.

        Raises as `topk`, and Inexact where the record does not explain the layer's weights.
        """
        return self.ask(Output(layer, as_queries(queries), where, at_step))[0]

    @overload
    def ask(self, question: TopK, cancelled: Asker | None = None) -> Hits: ...
    @overload
    def ask(self, question: GroupSum, cancelled: Asker | None = None) -> GroupSums: ...
    @overload
    def ask(self, question: Output, cancelled: Asker | None = None) -> tuple[NDArray[np.float32], Scan]: ...
    def ask(self, question: TopK | GroupSum | Output, cancelled: Asker | None = None) -> Any:
        """The answer to a question. `cancelled` is asked between blocks of work.

        Raises Cancelled once it says so, and what `topk`, `group_sum` and `output` say.
        """
        asking = Asking(self._view, question, _check(cancelled))
        match question:
            case TopK():
                return asking.top_k(question)
            case GroupSum():
                return asking.group_sum(question)
            case Output():
                return asking.output(question)

    def weights(self, where: str | None = None, at_step: int | None = None) -> dict[str, torch.Tensor]:
        """The network's state dict when only the slots of `where` speak, or as of an earlier step.

        Load it into the model to evaluate the masked network. See parameters.state_dict for what stands as it was, and
        what is raised.
        """
        return parameters.state_dict(self._view, where, at_step, False, _check(None))

    def cancellation(self, where: str, at_step: int | None = None, layer: str | None = None) -> dict[str, float]:
        """By layer (all, or the one named), how much the slots that `where` removes cancel (cancellation.py)."""
        if where is None:
            raise BadInput("cancellation needs a where.", hint="It is about the slots a mask removes.", field="where")
        view, check = self._view, _check(None)
        asked = view.snapshot.layers.values() if layer is None else [view.layer(layer)]
        return {
            one.name: cancellation.cancellation(view, one, view.select(one.space, where), at_step, False, check)
            for one in asked
        }

    def slots(self, ids: Sequence[int] | NDArray[np.int64], space: str | None = None) -> Columns:
        """The columns of some slots, in the order of `ids`. Raises NotFound for an id that does not exist."""
        return resolve.slot_columns(self._view, ids, space)

    def sql(self, statement: str, cancelled: Asker | None = None) -> Columns:
        """The rows of one SELECT over slots, steps, and the other tables of the snapshot.

        Runs in a process of its own that sees nothing else. Raises BadInput with DuckDB's message, TimedOut.
        """
        return self._sql.run(statement, _check(cancelled))

    def probe(self, name: str, layer: str | None = None) -> Probe:
        """A stored probe, with the queries of a layer where one is named. Raises NotFound."""
        return resolve.probe(self._view, name, layer)

    def verify(self, cancelled: Asker | None = None) -> Mapping[str, Certificate]:
        """How well the record rebuilds each layer's final weights (certificate.py)."""
        return certificate.certify(self._view, _check(cancelled))

    def refresh(self) -> bool:
        """See what was committed since the memory was opened. True where there is something new.

        Questions already being answered keep the snapshot that they began with.
        """
        with self._refreshing:
            seen = self._view.snapshot
            if Manifest.read(seen.path) == seen.manifest:
                return False
            memory = Snapshot.open(seen.path, self._segments)
            self._sql.close()
            self._see(memory)
            return True

    def close(self) -> None:
        """End the process that runs SQL. The engine can still be asked; a statement starts another."""
        self._sql.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine({str(self.path)!r}, snapshot {self._view.snapshot.commits}, {self._backend.name})"


def _check(cancelled: Asker | None) -> Check:
    def check() -> None:
        if cancelled is not None and cancelled():
            raise Cancelled("the question was given up before its answer was ready.")

    return check
