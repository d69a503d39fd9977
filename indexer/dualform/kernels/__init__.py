"""The compiled loops of this folder, called with arrays. They run without Python's lock.

Built when dualform is installed, where there is a C compiler; without them everything is answered all the same, from
float32 products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.errors import MissingPackage
from dualform.kernels.arguments import AdamUpdate, Candidates, KeyCodes, QueryCodes, address

ROWS = 16
"""Rows of a group, as in kernels.h."""
DIRECTIONS = 8
"""That matrices are projected along, as in kernels.h."""
_ABI = 14
"""As dualform_abi() in codes.c: what was built from other sources is not called."""

_QUESTIONS = ("quantise", "screen", "canonical", "canonical_rows")


@cache
def library() -> ctypes.CDLL | None:
    """None if the loops were not compiled, or if they were compiled from other sources than these."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            try:
                loops = ctypes.CDLL(str(path))
            except OSError:
                return None
            return _typed(loops) if loops.dualform_abi() == _ABI else None
    return None


def _typed(loops: ctypes.CDLL) -> ctypes.CDLL:
    loops.dualform_quantise.argtypes = [POINTER(KeyCodes), c_void_p, c_int64, c_int64, c_int64, c_int32]
    loops.dualform_screen.argtypes = [
        POINTER(KeyCodes),
        POINTER(QueryCodes),
        POINTER(Candidates),
        c_int64,
        c_int64,
        c_int32,
    ]
    loops.dualform_settle.argtypes = [POINTER(POINTER(Candidates)), c_int64, c_int64, c_void_p]
    loops.dualform_canonical.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    loops.dualform_canonical_rows.argtypes = [c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p]
    loops.dualform_project.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]
    loops.dualform_project_all.argtypes = [c_void_p, c_int64, c_void_p]
    loops.dualform_outer.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64, *[c_void_p] * 3]
    loops.dualform_entries.argtypes = [
        *(c_void_p, c_int64, c_int64, c_void_p),
        *(c_void_p, c_int64, c_void_p),
        *(c_int64, c_void_p, c_void_p),
    ]
    loops.dualform_distances.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_void_p]
    loops.dualform_compare.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p]
    loops.dualform_adam.argtypes = [POINTER(AdamUpdate), c_int64, *[c_void_p] * 7]
    loops.dualform_outer.restype = c_int32
    for name in (*_QUESTIONS, "project", "project_all", "entries", "distances", "compare", "adam"):
        getattr(loops, f"dualform_{name}").restype = None
    return loops


def compiled() -> ctypes.CDLL:
    """Raises MissingPackage where the loops were not compiled."""
    loops = library()
    if loops is None:
        raise MissingPackage(
            "the compiled loops of dualform are not there.",
            hint="Install dualform again where there is a C compiler, or use another backend.",
            field="backend",
        )
    return loops


def fast() -> bool:
    """Whether this processor has the instructions that make eight bits faster than float32 products."""
    loops = library()
    return loops is not None and bool(loops.dualform_fast())


def tile() -> int:
    """Queries that lie together."""
    return int(compiled().dualform_tile())


def quantise(codes: KeyCodes, keys: NDArray[np.float32], start: int, stop: int, plain: bool) -> None:
    """Fill in the codes of some rows of contiguous float32[R, d]. `plain` leaves the fast instructions aside."""
    compiled().dualform_quantise(ctypes.byref(codes), address(keys, np.float32), keys.shape[1], start, stop, plain)


def screen(codes: KeyCodes, queries: QueryCodes, candidates: Candidates, begin: int, end: int, plain: bool) -> None:
    """Add the candidates among the groups `begin` to `end` of the codes. `plain` as for `quantise`."""
    compiled().dualform_screen(ctypes.byref(codes), ctypes.byref(queries), ctypes.byref(candidates), begin, end, plain)


def settle(workers: Sequence[Candidates], queries: int, group: NDArray[np.int32] | None) -> None:
    """Leave each worker only those candidates that reach the floors over all workers.

    `group` is int32[all rows of the layer]. Raises MemoryError.
    """
    pointers = (POINTER(Candidates) * len(workers))(*(ctypes.pointer(own) for own in workers))
    if compiled().dualform_settle(pointers, len(workers), queries, None if group is None else address(group, np.int32)):
        raise MemoryError("no memory to compare the workers' candidates")


def canonical(keys: NDArray[np.uint64], query: NDArray[np.int64], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[m]: canonical scores of m pairs: the key float32[d] at each address with queries[query], of [n, d]."""
    width = queries.shape[1]
    scores = np.empty(len(keys))
    if width == 0:
        return np.zeros(len(keys))
    terms = np.empty(1 << (width - 1).bit_length())
    compiled().dualform_canonical(
        address(keys, np.uint64),
        address(query, np.int64),
        address(queries, np.float32),
        len(keys),
        width,
        terms.ctypes.data,
        scores.ctypes.data,
    )
    return scores


def canonical_rows(keys: NDArray[np.float64], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[n, m]: canonical scores of contiguous float64[m, d] with contiguous float32[n, d]."""
    rows, width = keys.shape
    scores = np.zeros((len(queries), rows))
    if width == 0:
        return scores
    terms, score = np.empty(1 << (width - 1).bit_length()), compiled().dualform_canonical_rows
    key, query = address(keys, np.float64), address(queries, np.float32)
    out, scratch = scores.ctypes.data, terms.ctypes.data
    for i in range(len(queries)):
        score(key, rows, query + 4 * width * i, width, scratch, out + 8 * rows * i)
    return scores


def adam(how: AdamUpdate, start: int, stop: int, *arrays: NDArray[np.float64] | None) -> None:
    """One update of the numbers from `start` to `stop` of contiguous float64 arrays, in place: weight, average, squares
    and gradient of the whole, and weight, average and gradient of the slots that stay; None where all do.
    """
    places = [None if array is None else address(array, np.float64) + 8 * start for array in arrays]
    compiled().dualform_adam(ctypes.byref(how), stop - start, *places)


# What the recorder calls at every step of a training. These take bare addresses, as measures.c says, and check nothing.


def project(matrix: int, rows: int, columns: int, apart: int, directions: int, out: int) -> None:
    """Fill float64[rows, DIRECTIONS] at `out`: of float32[rows, columns], whose rows lie `apart` numbers from one to
    the next, column c times float64[columns] `directions`, added up along direction c % DIRECTIONS.
    """
    compiled().dualform_project(matrix, rows, columns, apart, directions, out)


def project_all(matrices: int, count: int, out: int) -> None:
    """The same for several contiguous matrices: int64[count, 5] of address, rows, columns, directions, start in `out`.

    Vectors of `rows` numbers, whose directions are 0, are widened; what has the address 0 is left out.
    """
    compiled().dualform_project_all(matrices, count, out)


def outer(
    keys: int,
    n: int,
    d_in: int,
    apart: int,
    directions: int,
    errors: int,
    d_out: int,
    weighted: int,
    summed: int,
    squares: int,
) -> None:
    """Of n slots with keys float32[n, d_in], `apart` numbers from one to the next, and errors float32[n, d_out]: add
    the sum of error (key R) to float64[d_out, DIRECTIONS] `weighted`; fill the sum of the errors, float64[d_out], and
    the sums of the squares of errors and projected keys, float64[2]. Raises MemoryError.
    """
    if compiled().dualform_outer(keys, n, d_in, apart, directions, errors, d_out, weighted, summed, squares):
        raise MemoryError("no memory to project the slots of a step")


def entries(
    keys: int,
    n: int,
    keys_apart: int,
    columns: int,
    errors: int,
    errors_apart: int,
    rows: int,
    count: int,
    sums: int,
    magnitudes: int,
) -> None:
    """Of n slots with rows of float32 keys and errors, which lie so many numbers from one to the next: add to float64
    `sums` of `count` entries the sum over slots of error[rows[e]] key[columns[e]], and to `magnitudes` that of its
    magnitude; `rows` and `columns` int32.
    """
    compiled().dualform_entries(keys, n, keys_apart, columns, errors, errors_apart, rows, count, sums, magnitudes)


def distances(of: int, expected: int, rebuilt: int, start: int, starts: int, parts: int, out: int) -> None:
    """Fill float64[parts, 5]: of each part of float64 vectors, from starts[p] to starts[p + 1], the squared distances
    of the first from the three others, its own square and that of `expected`, which then becomes the first.
    """
    compiled().dualform_distances(of, expected, rebuilt, start, starts, parts, out)


def compare(applied: int, recorded: int, starts: int, turn: int, parts: int, along: int, out: int) -> None:
    """Fill float64[parts, 3]: of each part of float64 vectors, from starts[p] to starts[p + 1], the factor that makes
    `recorded` most like `applied`, 1 where there is none; the squares of `applied` and of what is left. Parts for which
    int64 `turn` is 1 are [rows, DIRECTIONS], and what is compared is their products with `along` [DIRECTIONS].
    """
    compiled().dualform_compare(applied, recorded, starts, turn, parts, along, out)
