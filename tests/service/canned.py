"""An engine whose answers are known beforehand: what the wire must carry, without a memory on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dualform.answers import (
    Cancellation,
    Columns,
    Concentration,
    Contributions,
    Distributions,
    GroupSums,
    Hits,
    LayerInfo,
    MemoryInfo,
    Outputs,
    Previews,
    QuerySet,
    QuerySetInfo,
    Reconstruction,
    Reconstructions,
    Scan,
    Status,
    Weights,
)
from dualform.errors import Cancelled, NotFound
from dualform.methods import Answers
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.questions import (
    Contribution,
    Distribution,
    GradientSum,
    GradientTopK,
    GroupSum,
    Inventory,
    MaskCancellation,
    NetworkWeights,
    Output,
    PreviewLookup,
    QuerySetLookup,
    SlotLookup,
    SqlStatement,
    TopK,
    Verification,
)

EXACT = Status("exact", 1e-7, 2e-8)
OFF = Status("approximate", 0.25, 1e-6, 3, "the weights were moved by hand.")
LAYER = LayerInfo("fc", 3, 2, True, "sample", 4, 4, True, EXACT, ("fc.q", "fc.k"))
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
    columns={"sample": {"slot": "BIGINT", "step": "BIGINT", "dataset": "VARCHAR", "label": "BIGINT"}},
    query_sets=(QuerySetInfo("test", 2, ("fc",), "texts", 2), QuerySetInfo("older", 6, ("fc",))),
    previews={"mnist": "texts"},
)
SCAN = Scan(7, 4, 3, "numpy", 0.25)
COLUMNS = {
    "slot": np.arange(4),
    "step": np.array([0, 0, 1, 1]),
    "dataset": np.array(["mnist", "mnist", None, "[bold]\x1b[31m"], dtype=object),
    "label": np.ma.MaskedArray([3, 8, 0, 1], mask=[False, False, True, False]),
}


def _status_of(question: TopK | GroupSum | Distribution) -> Status | None:
    return None if question.target is None else OFF


class Canned(Answers):
    """An engine for the service. What it was asked stands in `asked`."""

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
        self.contents = INFO
        self.table = Columns(COLUMNS, SCAN)
        """What every SQL statement gets."""

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

    def counted(self, question: Any) -> Any:
        return question

    def ask(
        self, question: Any, cancelled: Callable[[], bool] | None = None, bounds: QuestionBounds = UNBOUNDED
    ) -> Any:
        if isinstance(question, Inventory):
            return self._info()
        self._begin(question, cancelled)
        match question:
            case TopK() | GroupSum() | Distribution() | Output() | Contribution():
                return self._scanned(question)
            case GradientTopK():
                return Hits(
                    np.array([3, 1]), np.array([2.5, -1], np.float32), np.array([[2]]), None, (), SCAN, "sample"
                )
            case GradientSum():
                keys = tuple((key,) * len(question.by) for key in (3, None))
                sums = GroupSums(keys, np.array([[1.5, -2.5]]), np.array([3, 1]), question.by, SCAN, "sample")
                return sums if question.k is None else sums.of_largest(question.k)
            case NetworkWeights():
                arrays = {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)}
                return Weights(arrays, {"fc": OFF}, {"fc": 0.5}, ("steps",), {"sample": 3}, SCAN, ("norm.weight",))
            case MaskCancellation():
                return Cancellation({"fc": 12.5}, SCAN, {"emb": Concentration(0.75, 2.5)})
            case SlotLookup():
                return _columns(question.ids)
            case SqlStatement(text):
                no_names = Columns({"dataset": [], "label": [], "name": []})
                return no_names if text.endswith("FROM labels") else self.table
            case PreviewLookup(samples):
                texts = ("a <b> c",) * len(samples)
                return Previews(samples, "texts", np.ones(len(samples), dtype=bool), texts=texts, scan=SCAN)
            case QuerySetLookup(name, layer):
                queries = None if layer is None else np.ones((2, 3), np.float32)
                return QuerySet(name, np.array([3, -1]), np.ones((2, 2), np.float32), queries, SCAN)
        assert isinstance(question, Verification)
        tied = Status("scores only", reason="a weight used twice")
        return Reconstructions({"fc": Reconstruction(1e-6, EXACT, 0.25), "tied": Reconstruction(None, tied)}, SCAN)

    def _info(self) -> MemoryInfo:
        self.asked.append("info")
        if self.error is not None:
            raise self.error
        return self.contents

    def _scanned(self, question: Any) -> Any:
        if isinstance(question, TopK):
            groups = ((3,), (8,)) if question.by else None
            asked = question.queries.count or 1  # a shared scan is asked with the queries of several
            counts = np.tile([1, 1] if groups else [2], (asked, 1))
            ids, weights = np.tile([1, 3], asked), np.tile(np.array([2.5, -1], np.float32), asked)
            return Hits(ids, weights, counts, groups, question.by, SCAN, "sample", _status_of(question))
        if isinstance(question, GroupSum):
            keys = tuple((key,) * len(question.by) for key in (3, None))
            beside = question.by, SCAN, "sample", _status_of(question)
            sums = GroupSums(keys, np.array([[1.5, 2.5]]), np.array([3, 1]), *beside)
            return sums if question.k is None else sums.of_largest(question.k)
        if isinstance(question, Distribution):
            asked, ranks = question.queries.count or 1, np.array([1, 2, 3])
            scores = np.tile(np.array([2.5, 0.5, -1], np.float32), (asked, 1))
            beside = np.full(asked, 4.0), np.full(asked, 16 / 7.5)
            sums = np.tile([2.5, 3.0, 4.0], (asked, 1))
            return Distributions(ranks, scores, sums, *beside, 3, SCAN, "sample", _status_of(question))
        if isinstance(question, Contribution):
            keys = tuple((key,) * len(question.by) for key in (3, None))
            one, sums = np.array([[0.5, np.inf]]), np.array([[[1.5, 2.5], [0, -1]]])
            return Contributions(
                keys,
                sums,
                np.array([3, 1]),
                one,
                one[0],
                -one,
                np.array([[np.nan, 0.0]]),
                None if question.at_step else 2 * one,
                question.by,
                "sample",
                EXACT,
                SCAN,
            )
        status, unrecorded_change = (OFF, 0.5) if question.allow_inexact else (EXACT, 0.0)
        effective = np.array([2.5]) if question.kernel == "softmax" else None
        how = (question.kernel, question.temperature, question.initial, effective)
        return Outputs(np.array([[0.5, np.inf]], np.float32), "sample", status, unrecorded_change, SCAN, *how)

    @property
    def recording(self) -> bool:
        return self.contents.recording

    def refresh(self) -> bool:
        self.refreshed.set()
        return True

    def close(self) -> None:
        """Holds nothing."""


def _columns(ids: np.ndarray) -> Columns:
    missing = [one for one in ids.tolist() if not 0 <= one < 4]
    if missing:
        raise NotFound(f"there is no slot {missing[0]}.", hint="Slots: 0 to 3.", field="ids")
    return Columns({name: column[ids] for name, column in COLUMNS.items()}, SCAN, "sample")
