"""Small questions of one kind, asked at the same time, share one scan: 64 queries in one cost a few times one, not 64.

A kind is everything but the queries: layer, mask, groups, k, score. Where no scan of a kind is under way, a question is
asked at once; those that come while one is go together in the next. Answers are canonical, so each asker gets what it
would have got alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from dualform.errors import BadInput, NotFound
from dualform_service.limits import Deadline
from dualform_service.sharing import Kind, Shareable, bytes_expected, bytes_of, joined, parts, queries_of

QUERIES = 128
"""Most queries that share a scan."""
ANSWER_BYTES = 64 * 2**20
"""Most bytes that the answers of one scan take together, as far as its kind's last answer tells."""
LINGER = 0.03
"""Most seconds that a kind waits for those who were about in its last scan to ask again. What this and the share below
bring: `make bench ONLY=serving`, with other values here."""
LINGER_SHARE = 0.75
"""Most of that scan's own time that the wait takes."""


class Engine(Protocol):
    """Whatever answers the questions."""

    def ask(self, question: Shareable, cancelled: Callable[[], bool] | None = None) -> Any: ...


@dataclass(eq=False)
class _Asker:
    question: Shareable
    deadline: Deadline
    answered: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    error: BaseException | None = None

    @property
    def queries(self) -> int:
        return queries_of(self.question) or 0


@dataclass(eq=False)
class _Line:
    """Those who wait for the next scan of a kind. It exists while one of its scans is under way or about to be."""

    kind: Kind
    bytes_a_query: float | None
    """None before the first answer of a kind whose answers' size only the engine knows: that one is asked alone."""
    waiting: list[_Asker] = field(default_factory=list)
    expected: int = 0
    """Askers whose coming ends a wait."""


class Batches:
    """Asks an engine from many threads; at most `scans` at once, each of another kind."""

    def __init__(self, engine: Engine, scans: int) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._joined = threading.Condition(self._lock)
        self._lines: dict[Kind, _Line] = {}
        self._scans = ThreadPoolExecutor(scans, thread_name_prefix="dualform-batch")

    def ask(self, question: Shareable, kind: Kind, deadline: Deadline) -> Any:
        """What the engine answers to a question of a kind (sharing.kind_of).

        Raises what the engine raises to this question, and TimedOut or Cancelled at the deadline.
        """
        asker = _Asker(question, deadline)
        deadline.on_end(asker.answered.set)
        with self._lock:
            line = self._lines.get(kind)
            if line is None:
                line = self._lines[kind] = _Line(kind, bytes_expected(question))
                self._begin(line)
            line.waiting.append(asker)
            if len(line.waiting) == line.expected:
                self._joined.notify_all()
        asker.answered.wait(deadline.remaining())
        if asker.error is not None:
            raise asker.error
        if asker.answer is None:
            with self._lock:
                if asker in line.waiting:
                    line.waiting.remove(asker)
            raise deadline.error()
        return asker.answer

    def waiting(self) -> int:
        """Questions that wait for their scan to begin."""
        with self._lock:
            return sum(len(line.waiting) for line in self._lines.values())

    def close(self) -> None:
        """Returns when no scan is under way. Those whose askers have gone end soon."""
        self._scans.shutdown()

    def _begin(self, line: _Line) -> None:
        """A turn in the queue of scans. Where there is none to be had, raises and ends the line; the lock is held."""
        try:
            self._scans.submit(self._scan, line)
        except BaseException:
            self._end(line)
            raise

    def _end(self, line: _Line) -> None:
        if self._lines.get(line.kind) is line:  # what was refused a turn may have got one all the same
            del self._lines[line.kind]

    def _scan(self, line: _Line) -> None:
        """One scan of a kind, and a turn in the queue of scans for the next where there are askers for one."""
        with self._lock:
            askers = self._next(line)
        if askers:
            began = time.monotonic()
            self._answer(askers, line)
            if len(askers) > 1:
                self._linger(line, len(askers), min(LINGER, LINGER_SHARE * (time.monotonic() - began)))
        with self._lock:
            if not line.waiting:
                self._end(line)
                return
            try:
                self._begin(line)
            except Exception as error:
                _fail(line.waiting, error)
                line.waiting = []

    def _next(self, line: _Line) -> list[_Asker]:
        """The askers of the next scan, first come first served: at least one where one still waits."""
        line.waiting = [asker for asker in line.waiting if not asker.deadline.passed()]
        size = line.bytes_a_query
        room = 1 if size is None else min(QUERIES, int(ANSWER_BYTES / size))
        taken = 0
        for count, asker in enumerate(line.waiting):
            taken += asker.queries
            if count and taken > room:
                askers, line.waiting = line.waiting[:count], line.waiting[count:]
                return askers
        askers, line.waiting = line.waiting, []
        return askers

    def _linger(self, line: _Line, askers: int, seconds: float) -> None:
        """Who shared a scan is likely to ask again at once: those who come first wait a moment for the others.

        Without it the crowd falls apart into several that scan in turns, each nearly as long as all together.
        """
        with self._lock:
            line.expected = len(line.waiting) + askers
            self._joined.wait_for(lambda: len(line.waiting) >= line.expected, seconds)
            line.expected = 0

    def _answer(self, askers: list[_Asker], line: _Line) -> None:
        """Gives each asker its answer or its error.

        What is wrong with one asker's queries is nobody else's error. It shows before the scan, so halving finds it at
        little cost; an error of any other kind would meet every half again.
        """
        counts = [asker.queries for asker in askers]
        try:
            together = joined([asker.question for asker in askers])
            answer = self._engine.ask(together, lambda: all(asker.deadline.passed() for asker in askers))
            line.bytes_a_query = max(1.0, bytes_of(answer) / sum(counts))
            for asker, part in zip(askers, list(parts(answer, counts)), strict=True):
                asker.answer = part
                asker.answered.set()
        except (BadInput, NotFound) as error:
            if len(askers) == 1:
                _fail(askers, error)
                return
            middle = len(askers) // 2
            self._answer(askers[:middle], line)
            self._answer(askers[middle:], line)
        except Exception as error:
            _fail(askers, error)


def _fail(askers: list[_Asker], error: Exception) -> None:
    for asker in askers:
        asker.error = error
        asker.answered.set()
