"""What a server has done, counted: the one book, of which the log has a summary as the server drains, and whoever
scrapes it all of it.

Labels of calls are memories and methods that there are, and layers that an engine has answered about: who makes names
up adds none.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualform.questions import LayerQuestion, Question
from dualform_proto.calls import call_of
from dualform_service.call_record import CallRecord, layer_of

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets, included."""
LAYERS = 1000
"""Most that have a label of their own; grouped convolutions have as many views as groups."""


class Histogram:
    """How often a number was how large."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket, the last of which has no bound."""
        self.sum = self.largest = 0.0

    def copy(self) -> Histogram:
        other = Histogram(self.bounds)
        other.counts, other.sum, other.largest = list(self.counts), self.sum, self.largest
        return other

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.largest = max(self.largest, value)


@dataclass(frozen=True)
class LoopState:
    """What only the event loop may look at, at one moment."""

    calls: int
    """That there are."""
    waiting: Mapping[str, int]
    """How many wait, by what for."""


class Metrics:
    """Counts of calls and of what the engine was asked; safe to use from several threads.

    Where a count is of calls, its key has memory and method, and then the layer, which is empty where none is known.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """To be held while what is below is read."""
        self.calls: Counter[tuple[str, str, str, str]] = Counter()
        """The outcome stands last."""
        self.seconds: defaultdict[tuple[str, str, str], Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.working: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        """Seconds."""
        self.bytes_in: Counter[tuple[str, str]] = Counter()
        self.bytes_out: Counter[tuple[str, str]] = Counter()
        self.queries: defaultdict[tuple[str, str, str], Histogram] = defaultdict(lambda: Histogram(QUERIES))
        """Of each scan: those of all calls that shared it."""
        self.slots_scanned: Counter[tuple[str, str, str]] = Counter()
        self.shut: Counter[str] = Counter()
        """Connections that the server has shut, by reason."""
        self.wrong_tokens = 0
        self._layers = set[tuple[str, str]]()
        """With a label, by memory."""

    def add(self, record: CallRecord) -> None:
        """A call that has ended."""
        of = record.memory, record.method
        with self.lock:
            key = *of, record.layer if (record.memory, record.layer) in self._layers else ""
            self.calls[*key, record.outcome] += 1
            self.seconds[key].add(record.seconds)
            self.working[key] += record.working
            self.bytes_in[of] += record.bytes_in
            self.bytes_out[of] += record.bytes_out

    def answered(self, memory: str, question: Question[Any], answer: Any) -> None:
        """What an engine has answered: to one call, or to several that asked together."""
        layer, scan = layer_of(question), getattr(answer, "scan", None)
        with self.lock:
            if layer and len(self._layers) < LAYERS:
                self._layers.add((memory, layer))
            key = memory, call_of(question).method, layer if (memory, layer) in self._layers else ""
            if scan is not None:
                self.slots_scanned[key] += scan.slots_scanned
            if isinstance(question, LayerQuestion) and question.queries.count is not None:
                self.queries[key].add(question.queries.count)

    def shut_one(self, reason: str) -> None:
        """A connection was shut by the server."""
        with self.lock:
            self.shut[reason] += 1

    def wrong_token(self) -> None:
        """A call was refused for its token, or for want of one."""
        with self.lock:
            self.wrong_tokens += 1

    def outcomes(self, method: str) -> dict[str, int]:
        """Number of calls by outcome."""
        found: Counter[str] = Counter()
        with self.lock:
            for (_, own, _, outcome), count in self.calls.items():
                if own == method:
                    found[outcome] += count
        return dict(found)

    def lines(self) -> list[str]:
        """One line for each method that was called."""
        with self.lock:
            methods = sorted({method for _, method, _, _ in self.calls})
        return [f"{method}: {self._line(method)}" for method in methods]

    def _line(self, method: str) -> str:
        outcomes = self.outcomes(method)
        with self.lock:
            took = [own for (_, one, _), own in self.seconds.items() if one == method]
        mean, slowest = sum(own.sum for own in took) / sum(outcomes.values()), max(own.largest for own in took)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        return f"{counts}; mean {mean:.3g} s, slowest {slowest:.3g} s"
