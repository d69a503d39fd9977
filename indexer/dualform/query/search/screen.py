"""The prefilter: which rows can be among the k best, judged by their eight-bit codes alone.

Shapes: n queries, R stored rows, G groups, c candidates, d of a row.

Every score lies within a known distance of what the codes say (codes.py). A row whose upper bound lies below the k-th
greatest lower bound of its group is beaten by k others, whatever the exact scores are; all the others are candidates.
Factors of rows multiply both, so that cosines and contributions are judged as products are. Codes also say what
products of rows and queries come to, with a bound. kernels/screen.c does the arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels import arguments
from dualform.kernels.workers import cores, divide
from dualform.query.search.codes import (
    WIDEST,
    Codes,
    CodesCache,
    RowFactors,
    StoredCodes,
    can_quantise,
    quantise_queries,
)
from dualform.query.search.scan import CellHits, Search, rerank
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
_ONE_IN = 4
"""If more than one row in so many were to be found, the prefilter would keep nearly all of them."""


@dataclass(frozen=True, eq=False)
class Request:
    """What the prefilter looks for."""

    k: int
    groups: int
    """G."""
    group: NDArray[np.int32] | None
    """int32[R]: the group of each row, -1 for one that the mask leaves out; None if all are one group."""
    absolute: bool
    """Whether rows rank by the absolute value of the inner product."""
    sources: Sequence[KeySource] | None = None
    """The key sources of which the mask leaves a row; None for all."""
    factors: RowFactors | None = None
    """What rows' inner products are multiplied by before they rank."""

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
    """A prefilter with the codes that it holds."""

    codes: CodesCache

    def candidates(
        self,
        keys: Keys,
        queries: NDArray[np.float32],
        request: Request,
        check: Check,
        norms: NDArray[np.float64] | None = None,
    ) -> Candidates:
        """The candidates of float32[n, d], n at most `request.batch`.

        `norms`: float64[R], the canonical norms of the keys, to be stored with codes that are made.
        """
        ...

    def clear(self) -> None:
        """Let go of everything that is kept; whoever is screening keeps what it has."""
        ...


class CompiledScreen:
    """By the compiled loops, on the processor."""

    def __init__(self, codes: CodesCache) -> None:
        self.codes = codes

    def candidates(
        self,
        keys: Keys,
        queries: NDArray[np.float32],
        request: Request,
        check: Check,
        norms: NDArray[np.float64] | None = None,
    ) -> Candidates:
        # With few queries and many rows to find, second codes cost less than the candidates that they rule out.
        columns = 2 if len(queries) <= FEW_QUERIES and request.k * request.groups >= _MANY_ROWS else 1
        query = quantise_queries(queries, columns).as_argument(request.absolute, request.factors)
        workers = [_worker_candidates(len(queries), request) for _ in range(cores())]

        def work(worker: int, argument: arguments.KeyCodes, begin: int, end: int) -> None:
            kernels.screen(argument, query, workers[worker], begin, end)

        sources = keys.sources if request.sources is None else request.sources
        for_each(work, sources, self.codes, check, request.group, norms)
        kernels.settle(workers, request.group)
        own = [worker.arrays for worker in workers]
        crowded = np.any([arrays["crowded"] for arrays in own], axis=0)
        counts = np.where(crowded, 0, [arrays["counts"] for arrays in own])
        rows = [
            arrays["rows"][q, :n]
            for q, each in enumerate(counts.T.tolist())
            for arrays, n in zip(own, each, strict=True)
        ]
        return Candidates(np.repeat(np.arange(len(queries)), counts.sum(axis=0)), np.concatenate(rows), crowded)

    def clear(self) -> None:
        self.codes.clear()


def _worker_candidates(count: int, request: Request) -> arguments.Candidates:
    """Room for the candidates of one worker, with the floors that they have to reach."""
    cells, of_query = (count, request.groups), (count, request.capacity)
    best, held = np.empty((*cells, 2 * request.k), np.float32), np.zeros(cells, np.int64)
    floors = np.full(cells, -np.inf, np.float32)
    rows, high = np.empty(of_query, np.int64), np.empty(of_query, np.float32)
    counts, crowded = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    return arguments.Candidates(
        request.k, request.groups, request.capacity, best, held, floors, rows, high, counts, crowded
    )


Task: TypeAlias = Callable[[int], tuple[arguments.KeyCodes, int, int]]
"""Gives a worker codes, and of their groups of rows the first that it is to take and the one past the last."""


def _given(part: tuple[arguments.KeyCodes, int, int], _worker: int) -> tuple[arguments.KeyCodes, int, int]:
    return part


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
    rooms = [aligned(0) for _ in range(cores())]
    fits = sum(Codes.bytes_of(source.rows, source.width) for source in sources) <= codes.most_bytes
    passing = {source.identity: codes.passing(source, fits) for source in sources}

    def codes_of(source: KeySource) -> Codes:
        check()
        rows = slice(source.first_row, source.first_row + source.rows)
        return codes.get(source, None if norms is None else norms[rows])

    def block(source: KeySource, stored: StoredCodes, number: int) -> Task:
        """A block of stored codes, read to the worker's room; where it was altered, the same rows of codes made."""

        def task(worker: int) -> tuple[arguments.KeyCodes, int, int]:
            first, last = stored.groups(number)
            if len(rooms[worker]) < stored.block_bytes:
                rooms[worker] = aligned(stored.block_bytes)
            read = stored.block(number, rooms[worker])
            if read is None:
                return codes_of(source).as_argument(source.first_row, group), first, last
            return read.as_argument(source.first_row + first * kernels.ROWS, group), 0, last - first

        return task

    def tasks() -> Iterator[Task]:
        for source in sources:
            if (stored := passing[source.identity]) is not None:
                yield from (block(source, stored, number) for number in range(stored.blocks))
                continue
            own = codes_of(source)
            argument, groups = own.as_argument(source.first_row, group), len(own.codes)
            size = max(2, _TASK_BYTES // max(1, own.codes[0].nbytes) // 2 * 2)
            for begin in range(0, groups, size):
                part = argument, begin, min(begin + size, groups)
                yield partial(_given, part)

    def one(worker: int, task: Task) -> None:
        check()
        work(worker, *task(worker))

    if fits:
        # All codes fit the cache. Made here, each takes all cores; below, one worker makes it and the others wait.
        for source in sources:
            if passing[source.identity] is None:
                codes_of(source)
    divide(tasks(), one, len(rooms))


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


def prefiltered(search: Search, screen: Screen) -> tuple[CellHits, NDArray[np.int64]]:
    """The best of the queries that the prefilter decides, and the numbers of the others, ascending."""
    numbers, units = np.arange(len(search.queries)), search.units
    keys, count = search.rows.keys, search.cells_each
    # Keys that are made anew for every question should at least not be coded anew as well.
    coded = sum(Codes.bytes_of(source.rows, source.width) for source in units.sources if source.made)
    if (
        units.entries
        or not 0 < keys.width <= WIDEST
        or search.k * count * _ONE_IN > keys.rows
        or coded > screen.codes.most_bytes
    ):
        return CellHits.joined([]), numbers
    request = Request(search.k, count, units.group, search.absolute, units.sources)
    able, found, decided = np.flatnonzero(can_quantise(search.queries)), list[CellHits](), np.zeros(len(numbers), bool)
    size = min(request.batch, len(numbers) if search.weights is None else search.weights.most_queries)
    for start in range(0, len(able), size):
        batch = able[start : start + size]
        if search.weights is not None:
            factors = search.weights.row_factors(search.rows, batch, screen.codes, search.check)
            if factors is None:
                continue
            request = replace(request, factors=factors)
        near = screen.candidates(keys, search.queries[batch], request, search.check, search.rows.norms)
        search.check()
        began = time.perf_counter()
        found.append(rerank(search, batch[near.query], near.rows, units))
        search.view.tally.add(candidates=len(near.rows), rescoring_seconds=time.perf_counter() - began)
        decided[batch] = ~near.crowded
    return CellHits.joined(found), numbers[~decided]
