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
from dualform.kernels.arguments import (
    DIRECTIONS,
    ROWS,
    AdamUpdate,
    Candidates,
    CodeProducts,
    Cuts,
    KeyCodes,
    Matrices,
    QueryCodes,
    RowAddresses,
    SlotPlaces,
    TensorLike,
    address,
    fits,
    tensor_rows,
    within,
)
from dualform.kernels.loader import FORMS, VARIABLE, load, wanted_form

__all__ = [
    "DIRECTIONS", "ROWS", "adam", "add_pairs", "add_runs", "canonical", "canonical_rows", "compare", "compiled",
    "described", "distances", "entries", "fast", "form", "forms", "greatest", "library", "missed", "outer", "products",
    "project", "project_all", "quantise", "screen", "settle", "sizes", "tile", "use", "weigh",
]  # fmt: skip

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
    rows, width = keys.shape
    fits(0 <= start <= stop <= min(rows, codes.groups * ROWS), "rows that have a place among the codes")
    fits(0 < width <= 4 * codes.words, "keys of the codes' width")
    fits(all(codes.arrays[name].flags.writeable for name in ("codes", *KeyCodes.NUMBERS)), "codes to write to")
    compiled().dualform_quantise(ctypes.byref(codes), address(keys, np.float32), width, start, stop)


def screen(codes: KeyCodes, queries: QueryCodes, candidates: Candidates, begin: int, end: int) -> None:
    """Add the candidates among the groups `begin` to `end` of the codes."""
    _check_screen(codes, queries, begin, end)
    fits(queries.count <= candidates.queries, "candidates of each query")
    fits(queries.rows is None or codes.stop <= queries.rows, "factors of each row")
    group = codes.arrays.get("group")
    if group is None:
        fits(candidates.groups == 1, "the group of each row")
    elif begin < end:
        own = group[codes.first + begin * ROWS : min(codes.first + end * ROWS, codes.stop)]
        fits(own.max(initial=-1) < candidates.groups, "groups that have candidates")
    compiled().dualform_screen(ctypes.byref(codes), ctypes.byref(queries), ctypes.byref(candidates), begin, end)


def products(codes: KeyCodes, queries: QueryCodes, made: CodeProducts, begin: int, end: int) -> None:
    """Write what codes say of products of the rows in the groups `begin` to `end`, and how far off it may be."""
    _check_screen(codes, queries, begin, end)
    queries_there, rows = made.arrays["products"].shape
    fits(queries.count <= queries_there, "products of each query")
    fits(codes.stop <= rows, "products of each row")
    compiled().dualform_products(ctypes.byref(codes), ctypes.byref(queries), ctypes.byref(made), begin, end)


def _check_screen(codes: KeyCodes, queries: QueryCodes, begin: int, end: int) -> None:
    fits(0 <= begin <= end <= codes.groups, "groups that have codes")
    fits(codes.words == queries.words and queries.tile == tile(), "keys and queries of one width")


def settle(workers: Sequence[Candidates], group: NDArray[np.int32] | None) -> None:
    """Leave each worker only those candidates that reach the floors over all workers.

    `group` is int32[all rows of the layer]. Raises MemoryError.
    """
    first = workers[0]
    for own in workers:
        fits(
            (own.k, own.groups, own.queries) == (first.k, first.groups, first.queries), "workers with the same queries"
        )
        _check_candidates(own, group)
    pointers = (POINTER(Candidates) * len(workers))(*(ctypes.pointer(own) for own in workers))
    place = None if group is None else address(group, np.int32)
    if compiled().dualform_settle(pointers, len(workers), first.queries, place):
        raise MemoryError("no memory to compare the workers' candidates")


def _check_candidates(own: Candidates, group: NDArray[np.int32] | None) -> None:
    counts = own.arrays["counts"]
    within(counts, own.capacity + 1, "numbers of candidates")
    within(own.arrays["held"], 2 * own.k + 1, "numbers of lower bounds")
    if group is None:
        fits(own.groups == 1, "the group of each row")
        return
    most = int(counts.max(initial=0))
    rows = own.arrays["rows"][:, :most][np.arange(most) < counts[:, None]]
    within(rows, len(group), "candidates that are rows")
    within(group[rows], own.groups, "groups that have candidates")


def canonical(keys: RowAddresses, query: NDArray[np.int64], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[m]: canonical scores of m pairs: a key float32[d] each with queries[query], of [n, d]."""
    (count, width), pairs = queries.shape, (len(keys),)
    scores = np.empty(pairs)
    fits(keys.width == width, "keys and queries of one width")
    if width == 0:
        return np.zeros(pairs)
    terms, place = np.empty(1 << (width - 1).bit_length()), address(query, np.int64, pairs)
    fits(query.view(np.uint64).max(initial=0) < max(count, 1), "numbers of queries that there are")
    compiled().dualform_canonical(
        address(keys.numbers, np.uint64),
        place,
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
    key, query = address(keys, np.float64), address(queries, np.float32, (len(queries), width))
    out, scratch = scores.ctypes.data, terms.ctypes.data
    for i in range(len(queries)):
        score(key, rows, query + 4 * width * i, width, scratch, out + 8 * rows * i)
    return scores


def sizes(keys: RowAddresses, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[m]: of each key float32[d], the sum over i of |key[i] query[i]|, in some order."""
    found = np.zeros(len(keys), np.float32)
    if keys.width:
        own, other = address(keys.numbers, np.uint64), address(query, np.float32, (keys.width,))
        compiled().dualform_sizes(own, other, len(keys), keys.width, found.ctypes.data)
    return found


def weigh(
    rows: RowAddresses,
    weights: NDArray[np.float64],
    sizes: NDArray[np.float64],
    found: NDArray[np.float64],
    lost: NDArray[np.float64],
    terms: NDArray[np.float64],
) -> None:
    """Add to three float64[d] of m rows float32[d]: the sum of each times its weight; what rounding lost of that where
    64 rows joined the sum; and the sum of their absolute values, each times its size.
    """
    room, count = np.zeros(rows.width), (len(rows),)
    sums = [address(array, np.float64, room.shape, written=True) for array in (found, lost, terms)]
    weight, size = address(weights, np.float64, count), address(sizes, np.float64, count)
    place = address(rows.numbers, np.uint64)
    compiled().dualform_weigh(place, weight, size, len(rows), len(room), room.ctypes.data, *sums)


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
    shape = (len(middle),)
    given = [address(array, np.float32, shape) for array in (left, left_errors, right, right_errors)]
    sums = [address(array, np.float32, shape, written=True) for array in (middle, off)]
    compiled().dualform_add_pairs(*given, shift, len(middle), *sums)


def add_runs(
    rows: RowAddresses, starts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.float32]]:
    """float64[g, width]: the sum of each run of some rows float32[width], added one after the other; float32[g] twice:
    the least and the greatest of its numbers and 0, NaN left out. Runs begin at int64[g] `starts`.
    """
    sums, ends = np.empty((len(starts), rows.width)), np.append(starts, len(rows))
    least, most = np.zeros((2, len(starts)), np.float32)
    fits(bool(ends[0] >= 0 and (np.diff(ends) > 0).all()), "runs one after another, none of them empty")
    compiled().dualform_add_runs(
        address(rows.numbers, np.uint64),
        address(ends, np.int64),
        len(starts),
        rows.width,
        sums.ctypes.data,
        least.ctypes.data,
        most.ctypes.data,
    )
    return sums, least, most


def adam(how: AdamUpdate, start: int, stop: int, *arrays: NDArray[np.float64] | None) -> None:
    """One update of the numbers from `start` to `stop` of contiguous float64 arrays, in place: weight, average, squares
    and gradient of the whole, and weight, average and gradient of the slots that stay; None where all do.
    """
    there = [array for array in arrays if array is not None]
    fits(
        len(arrays) == 7
        and all(array is not None for array in arrays[:4])
        and [array is None for array in arrays[4:]].count(len(there) == 4) == 3,
        "four arrays and three, or None",
    )
    fits(all(array.size == there[0].size for array in there), "arrays of one size")
    fits(0 <= start <= stop <= there[0].size, "numbers that there are")
    places = [
        None if array is None else address(array, np.float64, written=i not in (3, 6)) + 8 * start
        for i, array in enumerate(arrays)
    ]
    compiled().dualform_adam(ctypes.byref(how), stop - start, *places)


# What the recorder calls at every step of a training.


def project(matrix: TensorLike, directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[rows, DIRECTIONS]: column c of float32[rows, columns] times float64[columns] `directions`, added up along
    direction c % DIRECTIONS.
    """
    place, rows, columns, apart = tensor_rows(matrix)
    out = np.empty((rows, DIRECTIONS))
    along = address(directions, np.float64, (columns,))
    compiled().dualform_project(place, rows, columns, apart, along, out.ctypes.data)
    return out


def project_all(matrices: Matrices, tensors: Sequence[TensorLike | None], out: NDArray[np.float64]) -> None:
    """The same for several contiguous matrices, each to its place in `out`; what is None is left out."""
    matrices.place(tensors)
    place = address(out, np.float64, (matrices.size,), written=True)
    compiled().dualform_project_all(matrices.table.ctypes.data, len(matrices.table), place)


def outer(
    keys: TensorLike, directions: NDArray[np.float64], errors: TensorLike, weighted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of n slots with keys float32[n, d_in] and contiguous errors float32[n, d_out]: add the sum of error (key R) to
    float64[d_out * DIRECTIONS] `weighted`. Returns float64[d_out + 2]: the sum of the errors, and the sums of the
    squares of errors and projected keys. Raises MemoryError.
    """
    (key, n, d_in, apart), (error, others, d_out, errors_apart) = tensor_rows(keys), tensor_rows(errors)
    fits(n == others and (n < 2 or errors_apart == d_out), "as many errors as keys, one after another")
    found = np.empty(d_out + 2)
    summed, along = found.ctypes.data, address(directions, np.float64, (d_in,))
    sums = address(weighted, np.float64, (d_out * DIRECTIONS,), written=True)
    if compiled().dualform_outer(key, n, d_in, apart, along, error, d_out, sums, summed, summed + 8 * d_out):
        raise MemoryError("no memory to project the slots of a step")
    return found


def add_slots(
    places: SlotPlaces,
    calls: Sequence[tuple[int, ...]],
    sums: NDArray[np.float64],
    entries: NDArray[np.float64],
    magnitudes: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Of calls as `places` says them, whose tensors are alive: what `outer` adds, to `sums`, and what `entries` adds.
    Returns float64[calls, 2]: the sums of the squares of errors and of projected keys. Raises MemoryError.
    """
    to = address(sums, np.float64, (places.size,), written=True)
    own, size = (address(vector, np.float64, (places.entries,), written=True) for vector in (entries, magnitudes))
    taken = own if places.entries else None
    table, squares = np.array(calls, dtype=np.int64), np.empty((len(calls), 2))
    if compiled().dualform_add_slots(table.ctypes.data, len(calls), to, taken, size, squares.ctypes.data):
        raise MemoryError("no memory to project the slots of a step")
    return squares


def entries(
    keys: TensorLike,
    columns: NDArray[np.int32],
    errors: TensorLike,
    rows: NDArray[np.int32],
    sums: NDArray[np.float64],
    magnitudes: NDArray[np.float64],
) -> None:
    """Of n slots with rows of float32 keys and errors: add to float64 `sums` the sum over slots of
    error[rows[e]] key[columns[e]], and to `magnitudes` that of its magnitude.
    """
    (key, n, d_in, keys_apart), (error, others, d_out, errors_apart) = tensor_rows(keys), tensor_rows(errors)
    shape = (len(rows),)
    own, other = address(columns, np.int32, shape), address(rows, np.int32)
    fits(n == others, "as many errors as keys")
    if not n:
        return
    within(columns, d_in, "columns of the keys")
    within(rows, d_out, "columns of the errors")
    out, size = (address(array, np.float64, shape, written=True) for array in (sums, magnitudes))
    compiled().dualform_entries(key, n, keys_apart, own, error, errors_apart, other, len(rows), out, size)


def distances(
    of: NDArray[np.float64],
    expected: NDArray[np.float64],
    rebuilt: NDArray[np.float64],
    start: NDArray[np.float64],
    cuts: Cuts,
) -> NDArray[np.float64]:
    """float64[parts, 5]: of each part of float64 vectors, the squared distances of the first from the three others, its
    own square and that of `expected`, which then becomes the first.
    """
    own, rebuilt_at, start_at = (address(vector, np.float64, (cuts.stop,)) for vector in (of, rebuilt, start))
    expected_at, out = address(expected, np.float64, (cuts.stop,), written=True), np.empty((len(cuts), 5))
    starts, _ = cuts.addresses
    compiled().dualform_distances(own, expected_at, rebuilt_at, start_at, starts, len(cuts), out.ctypes.data)
    return out


def compare(
    applied: NDArray[np.float64], recorded: NDArray[np.float64], cuts: Cuts, along: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[parts, 3]: of each part of float64 vectors the factor that makes `recorded` most like `applied`, 1 where
    there is none; the squares of `applied` and of what is left. Turned parts are [rows, DIRECTIONS], and what is
    compared is their products with `along` [DIRECTIONS].
    """
    own, other = (address(vector, np.float64, (cuts.stop,)) for vector in (applied, recorded))
    out, direction = np.empty((len(cuts), 3)), address(along, np.float64, (DIRECTIONS,))
    compiled().dualform_compare(own, other, *cuts.addresses, len(cuts), direction, out.ctypes.data)
    return out
