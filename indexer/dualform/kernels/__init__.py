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
from dualform.kernels.arguments import Candidates, KeyCodes, QueryCodes, address

ROWS = 16
"""Rows of a group, as in kernels.h."""
DIRECTIONS = 8
"""That matrices are projected along in one pass, as in kernels.h."""
_ABI = 11
"""As dualform_abi() in codes.c: what was built from other sources is not called."""


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
    structures = (POINTER(KeyCodes), POINTER(QueryCodes), POINTER(Candidates))
    loops.dualform_screen.argtypes = [*structures, c_int64, c_int64, c_int32]
    loops.dualform_settle.argtypes = [POINTER(POINTER(Candidates)), c_int64, c_int64, c_void_p]
    loops.dualform_canonical.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    loops.dualform_canonical_rows.argtypes = [c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p]
    loops.dualform_project.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    loops.dualform_project_one.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    loops.dualform_fold.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    for name in ("quantise", "screen", "canonical", "canonical_rows", "project", "project_one", "fold"):
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


def project(matrix: NDArray[np.float32], directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[r, k]: contiguous float32[r, c] times contiguous float64[k, c], k being DIRECTIONS or 1."""
    rows, columns = matrix.shape
    count, width = directions.shape
    if count not in (1, DIRECTIONS) or width != columns:
        what = f"directions of {columns} numbers, 1 or {DIRECTIONS} of them"
        raise TypeError(f"a compiled loop wants {what}, and got {count} of {width}.")
    out = np.empty((rows, count))
    product = compiled().dualform_project if count == DIRECTIONS else compiled().dualform_project_one
    product(address(matrix, np.float32), rows, columns, address(directions, np.float64), out.ctypes.data)
    return out


def fold(
    matrix: NDArray[np.float32], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Of contiguous float32[r, c]: its rows times contiguous weights float64[r, DIRECTIONS], as float64[c, DIRECTIONS];
    its column sums, as float64[c]; and the sum of its squares.
    """
    rows, columns = matrix.shape
    if weights.shape != (rows, DIRECTIONS):
        what = f"{DIRECTIONS} weights for each of {rows} rows, and got {weights.shape[1]} for each of {len(weights)}"
        raise TypeError(f"a compiled loop wants {what}.")
    out = np.zeros((DIRECTIONS + 2, columns))
    own, weight = address(matrix, np.float32), address(weights, np.float64)
    compiled().dualform_fold(own, rows, columns, weight, out.ctypes.data)
    return out[:DIRECTIONS].T, out[DIRECTIONS], float(out[DIRECTIONS + 1].sum())
