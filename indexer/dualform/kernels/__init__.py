"""The compiled loops of this folder, called with arrays. They run without Python's lock.

A wheel of dualform brings them; from its sources they are built where there is a C compiler. Without them everything is
answered all the same, from float32 products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput, MissingPackage
from dualform.kernels.arguments import AdamUpdate, Candidates, CodeProducts, KeyCodes, QueryCodes, address
from dualform.kernels.loader import FORMS, VARIABLE, load, wanted_form

ROWS = 16
"""Rows of a group, as in kernels.h."""
DIRECTIONS = 8
"""That matrices are projected along, as in kernels.h."""

_INSTALL = "Install a wheel of dualform, or install it again where there is gcc or clang"


@cache
def library() -> ctypes.CDLL | None:
    """None if the loops were not compiled, if they were compiled from other sources than these, or if the environment
    variable DUALFORM_LOOPS says "none". Raises BadInput if it names a form that this processor does not run.
    """
    wanted = wanted_form()
    loops = None if wanted == "none" else load()
    if not isinstance(loops, ctypes.CDLL):
        return None
    _use(loops, wanted)
    return loops


def described() -> str:
    """Which form of the loops is used; or why there are none, what that costs, and what to do about it."""
    if library() is not None:
        return f"loops {form()}"
    return missed() or f"no compiled loops, as {VARIABLE} says"


def missed() -> str:
    """Why there are no loops though nobody asked to do without, what that costs, and what to do; else empty."""
    if library() is not None or wanted_form() == "none":
        return ""
    return (
        f"no compiled loops: {load()}. The best slots of many are found several times as slowly, sums and recording "
        f"take longer. {_INSTALL}"
    )


def forms() -> tuple[str, ...]:
    """Forms of the loops that this processor runs, from the slowest to the fastest; none if they were not compiled.

    All of them give the same bits. The fastest is used, or the one that the environment variable DUALFORM_LOOPS names.
    """
    loops = library()
    return () if loops is None else FORMS[: loops.dualform_best_form() + 1]


def form() -> str | None:
    """The form that is used; None if the loops were not compiled."""
    loops = library()
    return None if loops is None else FORMS[loops.dualform_form()]


def use(name: str | None) -> None:
    """Use a form of the loops, for all of the process; None is the fastest. Nothing may be asked or recorded meanwhile.

    Raises BadInput for a form that this processor does not run, MissingPackage if the loops were not compiled.
    """
    _use(compiled(), name)


def _use(loops: ctypes.CDLL, name: str | None) -> None:
    there = FORMS[: loops.dualform_best_form() + 1]
    if name is None:
        name = there[-1]
    if name not in there:
        raise BadInput(
            f"this processor runs no loops of the form {name!r}.",
            hint=f"Forms here: {', '.join(there)}; name one as {VARIABLE}, or none for the fastest.",
            field=VARIABLE,
        )
    loops.dualform_use(FORMS.index(name))


def compiled() -> ctypes.CDLL:
    """Raises MissingPackage where the loops were not compiled."""
    loops = library()
    if loops is None:
        raise MissingPackage(
            "the compiled loops of dualform are not there.",
            hint=f"{_INSTALL}, or use another backend.",
            field="backend",
        )
    return loops


def fast() -> bool:
    """Whether this processor has instructions that make eight bits faster than float32 products."""
    return form() not in (None, "portable")


def tile() -> int:
    """Queries that lie together."""
    return int(compiled().dualform_tile())


def greatest() -> int:
    """The greatest code of a query that the screen takes."""
    return int(compiled().dualform_greatest())


def quantise(codes: KeyCodes, keys: NDArray[np.float32], start: int, stop: int) -> None:
    """Fill in the codes of some rows of contiguous float32[R, d]."""
    compiled().dualform_quantise(ctypes.byref(codes), address(keys, np.float32), keys.shape[1], start, stop)


def screen(codes: KeyCodes, queries: QueryCodes, candidates: Candidates, begin: int, end: int) -> None:
    """Add the candidates among the groups `begin` to `end` of the codes."""
    compiled().dualform_screen(ctypes.byref(codes), ctypes.byref(queries), ctypes.byref(candidates), begin, end)


def products(codes: KeyCodes, queries: QueryCodes, made: CodeProducts, begin: int, end: int) -> None:
    """Write what codes say of products of the rows in the groups `begin` to `end`, and how far off it may be."""
    compiled().dualform_products(ctypes.byref(codes), ctypes.byref(queries), ctypes.byref(made), begin, end)


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


def sizes(keys: NDArray[np.uint64], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[m]: of the key float32[d] at each address, the sum over i of |key[i] query[i]|, in some order."""
    found = np.zeros(len(keys), np.float32)
    if len(query):
        compiled().dualform_sizes(
            address(keys, np.uint64), address(query, np.float32), len(keys), len(query), found.ctypes.data
        )
    return found


def weigh(
    rows: NDArray[np.uint64],
    weights: NDArray[np.float64],
    sizes: NDArray[np.float64],
    found: NDArray[np.float64],
    lost: NDArray[np.float64],
    terms: NDArray[np.float64],
) -> None:
    """Add to three float64[d] of the rows float32[d] at m addresses: the sum of each times its weight; what rounding
    lost of that where 64 rows joined the sum; and the sum of their absolute values, each times its size.
    """
    room = np.zeros(len(found))
    sums = (address(array, np.float64) for array in (found, lost, terms))
    weight, size = address(weights, np.float64), address(sizes, np.float64)
    compiled().dualform_weigh(address(rows, np.uint64), weight, size, len(rows), len(room), room.ctypes.data, *sums)


def add_pairs(
    left: NDArray[np.float32],
    left_errors: NDArray[np.float32],
    right: NDArray[np.float32],
    right_errors: NDArray[np.float32],
    shift: float,
    middle: NDArray[np.float32],
    off: NDArray[np.float32],
) -> None:
    """Add to float32[m] `middle` the products of left + shift and right, and to `off` how far off they may be where
    the factors are by their errors: |l| e_r + (|r| + e_r) e_l, but for what float32 rounds. All of float32[m].
    """
    arrays = (left, left_errors, right, right_errors)
    given = (address(array, np.float32) for array in arrays)
    sums = address(middle, np.float32), address(off, np.float32)
    assert {len(array) for array in arrays} == {len(middle)} == {len(off)}
    compiled().dualform_add_pairs(*given, shift, len(middle), *sums)


def add_runs(
    rows: NDArray[np.uint64], starts: NDArray[np.int64], width: int
) -> tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.float32]]:
    """float64[g, width]: the sum of each run of the rows float32[width] at some addresses, added one after the other;
    float32[g] twice: the least and the greatest of its numbers and 0, NaN left out. Runs begin at int64[g] `starts`.
    """
    sums, ends = np.empty((len(starts), width)), np.append(starts, len(rows))
    least, most = np.zeros((2, len(starts)), np.float32)
    compiled().dualform_add_runs(
        address(rows, np.uint64),
        address(ends, np.int64),
        len(starts),
        width,
        sums.ctypes.data,
        least.ctypes.data,
        most.ctypes.data,
    )
    return sums, least, most


def adam(how: AdamUpdate, start: int, stop: int, *arrays: NDArray[np.float64] | None) -> None:
    """One update of the numbers from `start` to `stop` of contiguous float64 arrays, in place: weight, average, squares
    and gradient of the whole, and weight, average and gradient of the slots that stay; None where all do.
    """
    places = [None if array is None else address(array, np.float64) + 8 * start for array in arrays]
    compiled().dualform_adam(ctypes.byref(how), stop - start, *places)


# What the recorder calls at every step of a training. These take bare addresses, as the C files say, and check nothing.


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
