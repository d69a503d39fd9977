"""Which rows can be among the k best, found by their codes alone.

Shapes: n queries, R stored rows, G groups, c candidates.

Every score lies within a known distance of what the codes say (codes.py). A row whose upper bound lies below the k-th
greatest lower bound of its group is beaten by k others, whatever the exact scores are; all the others are candidates.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import POINTER
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dualform import kernels
from dualform.kernels import arguments
from dualform.kernels.workers import cores, share
from dualform.query.search.codes import Codes, CodesCache, quantise_queries
from dualform.query.view import Check
from dualform.store.rows import Keys, Segment

_TASK_BYTES = 4 << 20
"""Codes that a worker takes at a time."""
_LEAST_CAPACITY = 4096
_FEW_QUERIES, _MANY_ROWS = 2, 256
_FOUND_BYTES = 64 << 20
"""Of candidates and floors that the workers hold together."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is asked of a screen."""

    k: int
    groups: int
    group: NDArray[np.int32] | None
    """int32[R]: the group of each row, -1 for a row that the mask leaves out; None where all rows are one group."""
    absolute: bool
    segments: Sequence[Segment] | None = None
    """Those of which the mask leaves a row; None for all."""

    @property
    def capacity(self) -> int:
        """Candidates that a worker holds for each query before it gives the query up."""
        return max(_LEAST_CAPACITY, 6 * self.k * self.groups)

    @property
    def batch(self) -> int:
        """Queries that share one pass."""
        each = cores() * (16 * self.capacity + 4 * self.groups * (2 * self.k + 3))
        return int(np.clip(_FOUND_BYTES // each, 1, 256))


@dataclass(frozen=True, eq=False)
class Candidates:
    query: NDArray[np.int64]
    """int64[c], ascending."""
    rows: NDArray[np.int64]
    """int64[c]: rows of the layer."""
    crowded: NDArray[np.bool_]
    """bool[n]: queries with more candidates than are worth it; theirs are not listed."""


class _Found:
    """One worker's candidates."""

    def __init__(self, count: int, wanted: Wanted) -> None:
        cells = (count, wanted.groups)
        self.best = np.empty((*cells, 2 * wanted.k), np.float32)
        self.held = np.zeros(cells, np.int64)
        self.floors = np.full(cells, -np.inf, np.float32)
        self.rows = np.empty((count, wanted.capacity), np.int64)
        self.high = np.empty((count, wanted.capacity), np.float32)
        self.counts = np.zeros(count, np.int64)
        self.crowded = np.zeros(count, np.uint8)
        arrays = (self.best, self.held, self.floors, self.rows, self.high, self.counts, self.crowded)
        self.argument = arguments.Found(wanted.k, wanted.groups, wanted.capacity, *arrays)


def screen(
    keys: Keys, codes: CodesCache, queries: NDArray[np.float32], wanted: Wanted, check: Check, *, plain: bool = False
) -> Candidates:
    """The candidates of float32[n, d], n at most `wanted.batch`. `plain` leaves the fast instructions aside."""
    # Of a few queries asked for many rows, second codes cost less than the candidates that they spare.
    columns = 2 if len(queries) <= _FEW_QUERIES and wanted.k * wanted.groups >= _MANY_ROWS else 1
    coded = quantise_queries(queries, columns)
    found = [_Found(len(queries), wanted) for _ in range(cores())]
    query = coded.as_argument(wanted.absolute)

    def work(worker: int, task: _Task) -> None:
        check()
        kernels.compiled().dualform_screen(
            ctypes.byref(task.argument),
            ctypes.byref(query),
            ctypes.byref(found[worker].argument),
            task.begin,
            task.end,
            plain,
        )

    segments = keys.segments if wanted.segments is None else wanted.segments
    if sum(Codes.bytes_of(segment.rows, keys.width) for segment in segments) <= codes.most_bytes:
        # They will all be held: made here, each takes all cores. Below, one worker makes them and the others wait.
        for segment in segments:
            check()
            codes.get(segment.path, partial(keys.matrix, segment))
    share(_tasks(keys, codes, segments, wanted.group), work, len(found))
    return _together(found, wanted)


@dataclass(frozen=True, eq=False)
class _Task:
    """Some groups of rows of a segment."""

    argument: arguments.KeyCodes
    begin: int
    end: int


def _tasks(
    keys: Keys, cache: CodesCache, segments: Sequence[Segment], group: NDArray[np.int32] | None
) -> Iterator[_Task]:
    for segment in segments:
        codes = cache.get(segment.path, partial(keys.matrix, segment))
        argument = codes.as_argument(segment.first_row, group)
        groups = len(codes.codes)
        size = max(2, _TASK_BYTES // max(1, codes.codes[0].nbytes) // 2 * 2)
        for begin in range(0, groups, size):
            yield _Task(argument, begin, min(begin + size, groups))


def _together(found: list[_Found], wanted: Wanted) -> Candidates:
    """Every worker's candidates that the floors over all of them leave."""
    workers = (POINTER(arguments.Found) * len(found))(*(ctypes.pointer(one.argument) for one in found))
    queries = len(found[0].counts)
    group = None if wanted.group is None else arguments.address(wanted.group, np.int32)
    if kernels.compiled().dualform_settle(workers, len(found), queries, group):
        raise MemoryError("no memory to compare what the workers found")
    crowded = np.any([one.crowded for one in found], axis=0)
    counts = np.where(crowded, 0, [one.counts for one in found])
    rows = [one.rows[q, :n] for q, own in enumerate(counts.T.tolist()) for one, n in zip(found, own, strict=True) if n]
    return Candidates(
        np.repeat(np.arange(queries), counts.sum(axis=0)),
        np.concatenate(rows) if rows else np.empty(0, np.int64),
        crowded,
    )
