"""Finds the best entries of each query by eight-bit codes, and chooses between this and the scan.

The searchers of stored rows.

The screen, for scores that follow from the inner product, leaves out what k others beat by their codes alone; the scan
goes over the float32 scores of every row. Both score what is left canonically, so their answers have the same bits.

The searcher that screens rows by their codes before it scores any.

Shapes: n queries, R stored rows.

A row that the screen leaves out is beaten by k others (screen.py). The rows that it keeps are scored canonically.

What codes say of the products of rows and queries, each times a number of its row, and how far off that may be.

Shapes: n queries, R stored rows, d of a row. See codes.py; kernels/screen.c does the arithmetic.

Which rows can be among the k best, judged by their codes alone.

Shapes: n queries, R stored rows, G groups, c candidates.

Every score lies within a known distance of what the codes say (codes.py). A row whose upper bound lies below the k-th
greatest lower bound of its group is beaten by k others, whatever the exact scores are; all the others are candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels import arguments
from dualform.kernels.workers import cores, divide
from dualform.query.groups import Groups
from dualform.query.score.backends import Backend
from dualform.query.score.canonical import ProductScore, score_pairs
from dualform.query.score.key_rows import KeyRows
from dualform.query.search.codes import (
    WIDEST,
    Codes,
    CodesCache,
    RowFactors,
    StoredCodes,
    can_quantise,
    quantise_queries,
)
from dualform.query.search.scan import (
    ProductScorer,
    Ranked,
    ScorerOf,
    Search,
    Searcher,
    best_entries,
    best_of_cells,
    best_of_groups,
)
from dualform.query.view import Check
from dualform.store.files.durable_files import aligned
from dualform.store.rows import Keys, Rows
from dualform.store.sources.key_format import KeySource

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


def code_products(
    rows: Rows,
    codes: CodesCache,
    queries: NDArray[np.float32],
    of_row: NDArray[np.float32],
    of_query: NDArray[np.float32],
    check: Check,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """float32[n, R], twice: products of stored rows and of queries that can be coded, times float32[R] and float32[n];
    and bounds on how far they are off, which are infinite or NaN where a row's codes say nothing. R counts all rows of
    the sources (`rows.stored_rows`), whatever entries there are.
    """
    coded = quantise_queries(queries, 2 if len(queries) <= FEW_QUERIES else 1).as_argument(False)
    products, errors = np.empty((2, len(queries), len(of_row)), dtype=np.float32)
    made = arguments.CodeProducts(of_row, of_query, products, errors)

    def work(_: int, argument: arguments.KeyCodes, begin: int, end: int) -> None:
        kernels.products(argument, coded, made, begin, end)

    for_each(work, rows.sources, codes, check)
    return products, errors


_ONE_IN = 4
"""If more than one row in so many were to be found, the screen would keep nearly all of them."""


@dataclass(frozen=True, eq=False)
class ScreenSearcher:
    screen: Screen
    score: ProductScore

    def find(self, search: Search, queries: NDArray[np.float32]) -> list[Ranked | None]:
        found: list[Ranked | None] = [None] * len(queries)
        request = request_of(search, self.screen, self.score.screens_absolute)
        if request is None:
            return found
        able = np.flatnonzero(can_quantise(queries))
        for start in range(0, len(able), request.batch):
            batch = able[start : start + request.batch]
            for i, ranked in zip(batch.tolist(), self._screened(search, queries[batch], request), strict=True):
                found[i] = ranked
        return found

    def _screened(self, search: Search, queries: NDArray[np.float32], request: Request) -> list[Ranked | None]:
        """None for a query that has more candidates than are worth scoring."""
        rows, k = search.rows, search.k
        near = self.screen.candidates(rows.keys, queries, request, search.check, rows.norms)
        search.check()
        began = time.perf_counter()
        scores = self.score.of(score_pairs(rows.keys, near.rows, near.query, queries, search.check))
        took = time.perf_counter() - began
        search.view.tally.add(candidates=len(scores), rescoring_seconds=took)
        cells = near.query * request.groups + (0 if request.group is None else request.group[near.rows])
        # Rows first: a row that k others of its group beat brings none of its entries, however many those are.
        kept = best_of_cells(cells, scores, rows.first_entries(near.rows), k)
        entries, index = rows.entries_of(near.rows[kept])
        cells, scores = cells[kept][index], scores[kept][index]
        if rows.keys.row_of_entry is not None:
            kept = best_of_cells(cells, scores, entries, k)
            entries, cells, scores = entries[kept], cells[kept], scores[kept]
        cuts = np.searchsorted(cells, np.arange(len(queries) + 1) * request.groups)
        return [
            None if near.crowded[i] else (entries[cuts[i] : cuts[i + 1]], scores[cuts[i] : cuts[i + 1]])
            for i in range(len(queries))
        ]


def request_of(search: Search, screen: Screen, absolute: bool) -> Request | None:
    """What the screen should look for; None if it could not help. `absolute` as Request has it."""
    rows, groups = search.rows, search.groups
    count = 1 if groups is None else len(groups.counts)
    if not 0 < rows.keys.width <= WIDEST or search.k * count * _ONE_IN > rows.keys.rows:
        return None
    key = ("row groups", search.layer, rows.identity, () if groups is None else groups.by)
    made = search.view.cache.get(key, lambda: _row_groups(rows, groups))
    # Keys that are made anew for every question should at least not be coded anew as well.
    coded = sum(Codes.bytes_of(source.rows, source.width) for source in made.sources if source.made)
    if not made.alone or coded > screen.codes.most_bytes:
        return None
    return Request(search.k, count, made.of_row, absolute, made.sources)


@dataclass(frozen=True, eq=False)
class _RowGroups:
    """The group of each stored row, in the form that the screen takes."""

    of_row: NDArray[np.int32] | None
    """int32[R]: the group of each stored row, -1 for one that the mask leaves out; None if all are in group 0."""
    alone: bool
    """Whether each row belongs to one group only; a repeated key may belong to several."""
    sources: Sequence[KeySource]
    """The key sources of which the mask leaves a row."""

    @property
    def nbytes(self) -> int:
        return 0 if self.of_row is None else self.of_row.nbytes


def _row_groups(rows: KeyRows, groups: Groups | None) -> _RowGroups:
    sources = tuple(s for s in rows.keys.sources if rows.stays[s.first_row : s.first_row + s.rows].any())
    if groups is None:
        of_row = None if rows.stays.all() else np.where(rows.stays, 0, -1).astype(np.int32)
        return _RowGroups(of_row, True, sources)
    of_row, own = np.full(rows.keys.rows, -1, dtype=np.int32), rows.rows_of(groups.entries)
    of_row[own] = groups.numbers
    alone = rows.keys.row_of_entry is None or bool(np.array_equal(of_row[own], groups.numbers))
    return _RowGroups(of_row if alone else None, alone, sources)


@dataclass(frozen=True)
class ScanSearcher:
    """Decides every query."""

    scorer: ScorerOf

    def find(self, search: Search, queries: NDArray[np.float32]) -> list[Ranked]:
        return (best_entries if search.groups is None else best_of_groups)(search, queries, self.scorer)


def scan_of(score: ProductScore) -> ScanSearcher:
    return ScanSearcher(lambda search, queries: ProductScorer.of(search, queries, score))


def row_searchers(backend: Backend, score: ProductScore) -> list[Searcher]:
    """The screen where the backend has one, then the scan, which decides whatever the screen leaves."""
    scan: Searcher = scan_of(score)
    # Asking whether it is a ScreenBackend takes Python nearly a tenth of a millisecond, at every question.
    own: Screen | None = getattr(backend, "screen", None)
    return [scan] if own is None else [ScreenSearcher(own, score), scan]
