"""Which rows can be among the k best, judged by their codes alone.

Shapes: n queries, R stored rows, G groups, c candidates.

Every score lies within a known distance of what the codes say (codes.py). A row whose upper bound lies below the k-th
greatest lower bound of its group is beaten by k others, whatever the exact scores are; all the others are candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels import arguments
from dualform.kernels.workers import cores, divide
from dualform.query.search.codes import Codes, RowFactors, quantise_queries
from dualform.query.search.codes_cache import CodesCache
from dualform.query.search.stored_codes import StoredCodes
from dualform.query.view import Check
from dualform.store.derived_file import aligned
from dualform.store.rows import Keys
from dualform.store.sources.key_source import KeySource

_TASK_BYTES = 4 << 20
"""Codes that a worker takes at a time."""
_LEAST_CAPACITY = 4096
FEW_QUERIES, _MANY_ROWS = 2, 256
_CANDIDATE_BYTES = 64 << 20
"""Of candidates and floors that the workers hold together."""


@dataclass(frozen=True, eq=False)
class Request:
    """The rows that a screen looks for."""

    k: int
    groups: int
    group: NDArray[np.int32] | None
    """int32[R]: the group of each row, -1 for a row that the mask leaves out; None if all rows are one group."""
    absolute: bool
    """Whether rows rank by the absolute value of the inner product."""
    sources: Sequence[KeySource] | None = None
    """The key sources of which the mask leaves a row; None for all."""
    factors: RowFactors | None = None
    """What rows' inner products are multiplied by before they rank. Only a screen that `weighs` heeds it."""

    @property
    def capacity(self) -> int:
        """Candidates that a worker holds for each query before it gives the query up."""
        return max(_LEAST_CAPACITY, 6 * self.k * self.groups)

    @property
    def batch(self) -> int:
        """Queries that share one pass."""
        each = cores() * (16 * self.capacity + 4 * self.groups * (2 * self.k + 3))
        return int(np.clip(_CANDIDATE_BYTES // each, 1, 256))


@dataclass(frozen=True, eq=False)
class Candidates:
    query: NDArray[np.int64]
    """int64[c], ascending."""
    rows: NDArray[np.int64]
    """int64[c]: rows of the layer."""
    crowded: NDArray[np.bool_]
    """bool[n]: queries with too many candidates to be worth scoring; their candidates are not listed."""


class Screen(Protocol):
    """Who leaves out the rows that k others beat, by what it keeps of them."""

    codes: CodesCache
    weighs: bool
    """Whether it takes factors of rows."""

    def candidates(
        self,
        keys: Keys,
        queries: NDArray[np.float32],
        request: Request,
        check: Check,
        norms: NDArray[np.float64] | None = None,
    ) -> Candidates:
        """As `screen`."""
        ...

    def clear(self) -> None:
        """Let go of everything that is kept; whoever is screening keeps what it has."""
        ...


@dataclass(eq=False)
class CompiledScreen:
    """By the compiled loops, on the processor."""

    codes: CodesCache
    weighs: bool = True

    def candidates(
        self,
        keys: Keys,
        queries: NDArray[np.float32],
        request: Request,
        check: Check,
        norms: NDArray[np.float64] | None = None,
    ) -> Candidates:
        return screen(keys, self.codes, queries, request, check, norms=norms)

    def clear(self) -> None:
        self.codes.clear()


class Room:
    """Memory of one worker, for one block of stored codes after the other."""

    def __init__(self) -> None:
        self._bytes = aligned(0)

    def of(self, size: int) -> NDArray[np.uint8]:
        if len(self._bytes) < size:
            self._bytes = aligned(size)
        return self._bytes


class _WorkerCandidates:
    """The candidates of one worker, with the floors that they have to reach."""

    def __init__(self, count: int, request: Request) -> None:
        cells = (count, request.groups)
        self.best = np.empty((*cells, 2 * request.k), np.float32)
        self.held = np.zeros(cells, np.int64)
        self.floors = np.full(cells, -np.inf, np.float32)
        self.rows = np.empty((count, request.capacity), np.int64)
        self.high = np.empty((count, request.capacity), np.float32)
        self.counts = np.zeros(count, np.int64)
        self.crowded = np.zeros(count, np.uint8)
        arrays = (self.best, self.held, self.floors, self.rows, self.high, self.counts, self.crowded)
        self.argument = arguments.Candidates(request.k, request.groups, request.capacity, *arrays)


def screen(
    keys: Keys,
    codes: CodesCache,
    queries: NDArray[np.float32],
    request: Request,
    check: Check,
    *,
    norms: NDArray[np.float64] | None = None,
) -> Candidates:
    """The candidates of float32[n, d], n at most `request.batch`.

    `norms`: float64[R], the canonical norms of the keys, to be stored with codes that are made.
    """
    # With few queries and many rows to find, second codes cost less than the candidates that they rule out.
    columns = 2 if len(queries) <= FEW_QUERIES and request.k * request.groups >= _MANY_ROWS else 1
    coded = quantise_queries(queries, columns)
    workers = [_WorkerCandidates(len(queries), request) for _ in range(cores())]
    query = coded.as_argument(request.absolute, request.factors)

    def work(worker: int, argument: arguments.KeyCodes, begin: int, end: int) -> None:
        kernels.screen(argument, query, workers[worker].argument, begin, end)

    sources = keys.sources if request.sources is None else request.sources
    for_each(work, sources, codes, check, request.group, norms)
    return _together(workers, request)


def for_each(
    work: Callable[[int, arguments.KeyCodes, int, int], None],
    sources: Sequence[KeySource],
    codes: CodesCache,
    check: Check,
    group: NDArray[np.int32] | None = None,
    norms: NDArray[np.float64] | None = None,
) -> None:
    """Call `work` with a worker's number, codes of some rows, and of their groups of rows the first and one past the
    last, until all rows of the sources have had their turn.

    `group`, int32[R], goes along with the codes; `norms`, float64[R], is stored with those that are made.
    """
    rooms = [Room() for _ in range(cores())]

    def one(worker: int, task: _Task) -> None:
        check()
        work(worker, *task.argument(rooms[worker]))

    fits = sum(Codes.bytes_of(source.rows, source.width) for source in sources) <= codes.most_bytes
    tasks = _Tasks(codes, group, norms)
    passing = {source.identity: codes.passing(source, fits) for source in sources}
    if fits:
        # All codes fit the cache. Made here, each takes all cores; below, one worker makes it and the others wait.
        for source in sources:
            check()
            if passing[source.identity] is None:
                tasks.codes_of(source)
    divide((task for source in sources for task in tasks.of(source, passing[source.identity])), one, len(rooms))


class _Task(Protocol):
    """Some groups of rows of a key source."""

    def argument(self, room: Room) -> tuple[arguments.KeyCodes, int, int]:
        """Codes that hold them, with the first of these groups there and the one past the last."""
        ...


@dataclass(frozen=True, eq=False)
class _HeldTask:
    codes: arguments.KeyCodes
    begin: int
    end: int

    def argument(self, room: Room) -> tuple[arguments.KeyCodes, int, int]:
        return self.codes, self.begin, self.end


@dataclass(frozen=True, eq=False)
class _StoredTask:
    """A block of codes that were stored; where it was altered, the same rows of codes that are made."""

    tasks: _Tasks
    source: KeySource
    stored: StoredCodes
    number: int

    def argument(self, room: Room) -> tuple[arguments.KeyCodes, int, int]:
        first, last = self.stored.groups(self.number)
        block = self.stored.block(self.number, room.of(self.stored.block_bytes))
        if block is None:
            codes = self.tasks.codes_of(self.source)
            return codes.as_argument(self.source.first_row, self.tasks.group), first, last
        row = self.source.first_row + first * kernels.ROWS
        return block.as_argument(row, self.tasks.group), 0, last - first


@dataclass(frozen=True, eq=False)
class _Tasks:
    cache: CodesCache
    group: NDArray[np.int32] | None
    norms: NDArray[np.float64] | None

    def codes_of(self, source: KeySource) -> Codes:
        rows = slice(source.first_row, source.first_row + source.rows)
        return self.cache.get(source, None if self.norms is None else self.norms[rows])

    def of(self, source: KeySource, passing: StoredCodes | None) -> Iterator[_Task]:
        if passing is not None:
            yield from (_StoredTask(self, source, passing, number) for number in range(passing.blocks))
            return
        codes = self.codes_of(source)
        argument = codes.as_argument(source.first_row, self.group)
        groups = len(codes.codes)
        size = max(2, _TASK_BYTES // max(1, codes.codes[0].nbytes) // 2 * 2)
        for begin in range(0, groups, size):
            yield _HeldTask(argument, begin, min(begin + size, groups))


def _together(workers: list[_WorkerCandidates], request: Request) -> Candidates:
    """The candidates of all workers that reach the floors over all of them."""
    queries = len(workers[0].counts)
    kernels.settle([own.argument for own in workers], request.group)
    crowded = np.any([own.crowded for own in workers], axis=0)
    counts = np.where(crowded, 0, [own.counts for own in workers])
    rows = [
        held.rows[q, :n] for q, own in enumerate(counts.T.tolist()) for held, n in zip(workers, own, strict=True) if n
    ]
    return Candidates(
        np.repeat(np.arange(queries), counts.sum(axis=0)),
        np.concatenate(rows) if rows else np.empty(0, np.int64),
        crowded,
    )
