"""What the compiled loops take, checked: they believe every size, stride and index that they are given.

Whoever calls a loop hands over arrays. Their types, sizes and the numbers that are indexes are compared here with one
another, so that what does not fit is an error and not a read or a write beside an array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import c_double, c_int32, c_int64, c_void_p
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

ROWS = 16
"""Rows of a group, as in kernels.h."""
DIRECTIONS = 8
"""That matrices are projected along, as in kernels.h."""


def address(
    array: NDArray[Any], dtype: DTypeLike, shape: tuple[int, ...] | None = None, *, written: bool = False
) -> int:
    """Where an array's numbers begin. Raises TypeError for another type or layout, and for a read-only array that is to
    be `written`; ValueError for another shape.
    """
    flags = array.flags
    if array.dtype != dtype or not flags.c_contiguous:
        layout = "contiguous" if flags.c_contiguous else "scattered"
        raise TypeError(f"a compiled loop wants contiguous {np.dtype(dtype)}, and got {layout} {array.dtype}.")
    if shape is not None and array.shape != shape:
        raise ValueError(f"a compiled loop wants an array of shape {shape}, and got one of {array.shape}.")
    if written and not flags.writeable:
        raise TypeError("a compiled loop cannot write to a read-only array.")
    return array.ctypes.data


def rows_address(matrix: NDArray[Any], dtype: DTypeLike, *, written: bool = False) -> tuple[int, int]:
    """Where a matrix begins, and the numbers from one row to the next. Raises TypeError as `address`."""
    size = matrix.itemsize
    if (
        matrix.dtype != dtype
        or matrix.ndim != 2
        or (matrix.size and ((matrix.shape[1] > 1 and matrix.strides[1] != size) or matrix.strides[0] % size))
    ):
        raise TypeError(
            f"a compiled loop wants whole rows of {np.dtype(dtype)}, and got {matrix.dtype} {matrix.strides}."
        )
    if written and not matrix.flags.writeable:
        raise TypeError("a compiled loop cannot write to a read-only array.")
    return matrix.ctypes.data, matrix.strides[0] // size


def fits(right: bool, what: str) -> None:
    """Raises ValueError, saying what the loops want, where it is not so."""
    if not right:
        raise ValueError(f"a compiled loop wants {what}.")


def within(numbers: NDArray[Any], stop: int, what: str) -> None:
    """Raises ValueError where one of some integers is negative, or `stop` or more."""
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < stop):
        raise ValueError(f"a compiled loop wants {what} from 0 to {stop - 1}: {numbers.min()} to {numbers.max()}.")


class TensorLike(Protocol):
    """What the loops ask a torch tensor, which the recorder hands over as it is."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def is_cpu(self) -> bool: ...
    def is_floating_point(self) -> bool: ...
    def element_size(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def stride(self) -> Sequence[int]: ...
    def data_ptr(self) -> int: ...


def tensor_rows(tensor: TensorLike) -> tuple[int, int, int, int]:
    """Of a float32 matrix in the processor's memory: where it begins, its rows and columns, and the numbers from one
    row to the next. Raises TypeError for anything else.
    """
    _check_float32(tensor)
    shape, strides = tensor.shape, tensor.stride()
    if len(shape) != 2 or (shape[0] > 0 and shape[1] > 1 and strides[1] != 1):
        raise TypeError(f"a compiled loop wants whole rows, and got a tensor of shape {shape} and strides {strides}.")
    return tensor.data_ptr(), shape[0], shape[1], strides[0]


def _check_float32(tensor: TensorLike) -> None:
    if not (tensor.is_cpu and tensor.is_floating_point() and tensor.element_size() == 4):
        raise TypeError("a compiled loop wants a float32 tensor in the processor's memory.")


class RowAddresses:
    """Where rows float32[width] lie in memory, in any order, with the matrices that they lie in: these live as long."""

    def __init__(
        self, count: int, width: int, parts: Iterable[tuple[Any, NDArray[np.float32], NDArray[np.int64]]]
    ) -> None:
        """`parts` say of all `count` rows, some at a time: which of them they are (as an index takes it), the matrix
        float32[r, width] that has them, and which of its rows they are.
        """
        self.width, self.numbers, self._held = width, np.zeros(count, dtype=np.uint64), list[Any]()
        for own, matrix, places in parts:
            begin, apart = rows_address(matrix, np.float32)
            fits(matrix.shape[1] == width, f"rows of {width} numbers, and got {matrix.shape[1]}")
            within(places, len(matrix), "rows of a matrix")
            self.numbers[own] = begin + (4 * apart * places).astype(np.uint64)
            self._held.append(matrix)
        fits(bool(self.numbers.all()), "an address for each row")

    @classmethod
    def of(cls, matrix: NDArray[np.float32]) -> RowAddresses:
        """Every row of a matrix, in order."""
        count, width = matrix.shape
        return cls(count, width, [(slice(None), matrix, np.arange(count))])

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice) -> RowAddresses:
        found = RowAddresses.__new__(RowAddresses)
        found.width, found.numbers, found._held = self.width, self.numbers[part], self._held
        return found


class Cuts:
    """How vectors are cut into parts."""

    def __init__(self, lengths: Sequence[int], turned: Sequence[bool]) -> None:
        """`turned`: which parts are [rows, DIRECTIONS]."""
        self.starts = np.cumsum([0, *lengths], dtype=np.int64)
        """int64[parts + 1]: where each begins, and the end."""
        self.turned = np.array(turned, dtype=np.int64)
        fits(len(lengths) == len(turned) and min(lengths, default=0) >= 0, "a length for each part")
        fits(
            not any(length % DIRECTIONS for length, own in zip(lengths, turned, strict=True) if own),
            f"turned parts whose lengths are multiples of {DIRECTIONS}",
        )
        for array in (self.starts, self.turned):
            array.flags.writeable = False
        self.addresses = self.starts.ctypes.data, self.turned.ctypes.data

    def __len__(self) -> int:
        return len(self.turned)

    @property
    def stop(self) -> int:
        return int(self.starts[-1])


class Matrices:
    """Matrices that are projected at once, each float32[rows, columns], or vectors float32[rows] that are widened."""

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        directions: Sequence[NDArray[np.float64] | None],
        starts: Sequence[int],
        size: int,
    ) -> None:
        """Of each the directions float64[columns], None for a vector, and where it starts in float64[size]."""
        self.shapes, self.size, self._directions = [tuple(shape) for shape in shapes], size, list(directions)
        self.table = np.zeros((len(shapes), 5), dtype=np.int64)
        """int64[count, 5]: matrix_t of kernels.h."""
        for row, shape, own, start in zip(self.table, self.shapes, directions, starts, strict=True):
            fits(len(shape) == (1 if own is None else 2), "vectors, or matrices with directions")
            columns, along = (1, 0) if own is None else (shape[1], address(own, np.float64, shape[1:]))
            stop = start + shape[0] * (1 if own is None else DIRECTIONS)
            fits(0 <= start <= stop <= size, f"a place within {size} numbers, and got {start} to {stop}")
            row[:] = 0, shape[0], columns, along, start

    def place(self, tensors: Sequence[TensorLike | None]) -> None:
        """The matrices of the next call; None leaves one out. Raises TypeError for one of another shape."""
        addresses = []
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            if tensor is not None:
                _check_float32(tensor)
                if tuple(tensor.shape) != shape or not tensor.is_contiguous():
                    raise TypeError(f"a compiled loop wants a contiguous {shape}, and got a tensor of {tensor.shape}.")
            addresses.append(0 if tensor is None else tensor.data_ptr())
        self.table[:, 0] = addresses


class SlotPlaces:
    """Where in float64 vectors the slots of layers are added up: a weight float32[d_out, d_in], and its bias."""

    def __init__(self, size: int, entries: int) -> None:
        """`size`: of the sums along directions; `entries`: of those of single entries, 0 for none."""
        self.size, self.entries = size, entries
        self._layers: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        self._held = list[NDArray[Any]]()

    def add(
        self,
        layer: str,
        directions: NDArray[np.float64],
        d_out: int,
        weight: int,
        bias: int | None,
        chosen: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,
        of_weight: int = -1,
        of_bias: int = -1,
    ) -> None:
        """A layer with directions float64[d_in]: its places along directions, and those of its entries: `chosen` says
        their columns and rows, None that there are all.
        """
        d_in = len(directions)
        count = d_out * d_in if chosen is None else len(chosen[0])
        fits(0 <= weight <= self.size - d_out * DIRECTIONS, "a place for the sums of a weight")
        fits(bias is None or 0 <= bias <= self.size - d_out, "a place for the sums of a bias")
        if self.entries:
            fits(0 <= of_weight <= self.entries - count, "a place for the entries of a weight")
            fits(bias is None or 0 <= of_bias <= self.entries - d_out, "a place for the entries of a bias")
        single = (0, 0)
        if chosen is not None:
            single = address(chosen[0], np.int32), address(chosen[1], np.int32, (count,))
            within(chosen[0], d_in, "columns of the keys")
            within(chosen[1], d_out, "columns of the errors")
            self._held += chosen
        self._held.append(directions)
        own = (address(directions, np.float64), weight, -1 if bias is None else bias, *single, count, of_weight)
        self._layers[layer] = d_in, d_out, (*own, -1 if bias is None else of_bias)

    def call(self, layer: str, keys: TensorLike, errors: TensorLike) -> tuple[int, ...]:
        """slots_t of kernels.h. Raises TypeError and ValueError for tensors that are none of the layer's slots."""
        d_in, d_out, places = self._layers[layer]
        (key, n, columns, apart), (error, others, rows, errors_apart) = tensor_rows(keys), tensor_rows(errors)
        fits(n == others and (n < 2 or errors_apart == d_out), "as many errors as keys, one after another")
        fits((columns, rows) == (d_in, d_out), f"keys of {d_in} numbers and errors of {d_out}")
        return key, error, n, apart, d_in, d_out, *places


class _Arrays(ctypes.Structure):
    """Takes arrays (None for a null pointer) and numbers in the order of its fields, and keeps the arrays alive."""

    DTYPES: ClassVar[dict[str, Any]] = {}
    """Of the fields that are arrays."""

    def __init__(self, *values: NDArray[Any] | int | None) -> None:
        names = [name for name, *_ in self._fields_]
        super().__init__(*(self._plain(name, value) for name, value in zip(names, values, strict=True)))
        given = zip(names, values, strict=True)
        self.arrays: dict[str, NDArray[Any]] = {name: own for name, own in given if isinstance(own, np.ndarray)}
        """By the name of their field."""

    def _plain(self, name: str, value: NDArray[Any] | int | None) -> int | None:
        return address(value, self.DTYPES[name]) if isinstance(value, np.ndarray) else value


class KeyCodes(_Arrays):
    """keys_t of kernels.h."""

    _fields_ = (
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("low", c_void_p),
        ("residual", c_void_p),
        ("length", c_void_p),
        ("group", c_void_p),
        ("rows", c_int64),
        ("words", c_int64),
        ("first", c_int64),
    )
    DTYPES: ClassVar[dict[str, Any]] = {
        "codes": np.uint8,
        **dict.fromkeys(("scale", "low", "residual", "length"), np.float32),
        "group": np.int32,
    }
    NUMBERS = ("scale", "low", "residual", "length")

    def __init__(
        self,
        codes: NDArray[np.uint8],
        numbers: NDArray[np.float32],
        group: NDArray[np.int32] | None,
        rows: int,
        first: int,
    ) -> None:
        """`codes` uint8[G, W, ROWS, 4]; `numbers` float32[4, G * ROWS]; `group` int32[all rows of the layer], of which
        these `rows` begin at `first`.
        """
        self.groups, words = codes.shape[:2]
        self.stop = first + rows
        fits(codes.shape[2:] == (ROWS, 4), f"codes in groups of {ROWS} rows")
        fits(numbers.shape == (4, self.groups * ROWS), "four numbers of each row that has codes")
        fits(0 <= rows <= self.groups * ROWS and first >= 0, f"at most {self.groups * ROWS} rows, and got {rows}")
        fits(group is None or (group.ndim == 1 and len(group) >= self.stop), "a group for each row")
        super().__init__(codes, *numbers, group, rows, words, first)


class QueryCodes(_Arrays):
    """queries_t of kernels.h."""

    _fields_ = (
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("fine", c_void_p),
        ("sum", c_void_p),
        ("length", c_void_p),
        ("residual", c_void_p),
        ("slack", c_void_p),
        ("count", c_int64),
        ("columns", c_int64),
        ("most", c_void_p),
        ("least", c_void_p),
        ("spread", c_void_p),
        ("apart", c_int64),
        ("absolute", c_int32),
    )
    DTYPES: ClassVar[dict[str, Any]] = {
        "codes": np.int8,
        **dict.fromkeys(("scale", "fine", "sum", "length", "residual", "slack", "most", "least", "spread"), np.float32),
    }

    def __init__(
        self,
        codes: NDArray[np.int8],
        numbers: NDArray[np.float32],
        columns: int,
        factors: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None] | None,
        absolute: bool,
    ) -> None:
        """`codes` int8[tiles, W, TILE, 4]; `numbers` float32[6, n]; `factors` of rows, float32[n or 1, all rows of the
        layer] each: the greatest, the least, and how far off they may be.
        """
        tiles, self.words, self.tile, four = codes.shape
        count = numbers.shape[1]
        fits(four == 4 and len(numbers) == 6 and columns in (1, 2), "queries of one column or two")
        fits(count * columns <= tiles * self.tile, "codes of each query")
        most, least, spread = factors or (None, None, None)
        self.rows, apart = None, 0
        if most is not None:
            self.rows, apart = most.shape[1], most.shape[1] if len(most) > 1 else 0
            fits(len(most) in (1, count), "factors of all queries or of each")
            fits(all(own is None or own.shape == most.shape for own in (least, spread)), "factors of one shape")
        super().__init__(codes, *numbers, count, columns, most, least, spread, apart, absolute)


class CodeProducts(_Arrays):
    """products_t of kernels.h."""

    _fields_ = (
        ("of_row", c_void_p),
        ("of_query", c_void_p),
        ("products", c_void_p),
        ("errors", c_void_p),
        ("apart", c_int64),
    )
    DTYPES: ClassVar[dict[str, Any]] = dict.fromkeys(("of_row", "of_query", "products", "errors"), np.float32)

    def __init__(
        self,
        of_row: NDArray[np.float32],
        of_query: NDArray[np.float32],
        products: NDArray[np.float32],
        errors: NDArray[np.float32],
    ) -> None:
        """`of_row` float32[all rows of the layer], `of_query` float32[n]; the two that are filled float32[n, rows]."""
        shape = (*of_query.shape, *of_row.shape)
        fits(len(shape) == 2 and products.shape == errors.shape == shape, f"products of shape {shape}")
        fits(products.flags.writeable and errors.flags.writeable, "arrays to write to")
        super().__init__(of_row, of_query, products, errors, len(of_row))


class Candidates(_Arrays):
    """One worker's candidates in a screen: candidates_t of kernels.h."""

    _fields_ = (
        ("k", c_int64),
        ("groups", c_int64),
        ("capacity", c_int64),
        ("best", c_void_p),
        ("held", c_void_p),
        ("floors", c_void_p),
        ("rows", c_void_p),
        ("high", c_void_p),
        ("counts", c_void_p),
        ("crowded", c_void_p),
    )
    DTYPES: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("best", "floors", "high"), np.float32),
        **dict.fromkeys(("held", "rows", "counts"), np.int64),
        "crowded": np.uint8,
    }

    def __init__(self, k: int, groups: int, capacity: int, *arrays: NDArray[Any]) -> None:
        """Of n queries `best` [n, groups, 2 k], `held` and `floors` [n, groups], `rows` and `high` [n, capacity], and
        `counts` and `crowded` [n].
        """
        super().__init__(k, groups, capacity, *arrays)
        self.queries = len(arrays[-1])
        cells, of_query = (self.queries, groups), (self.queries, capacity)
        shapes = ((*cells, 2 * k), cells, cells, of_query, of_query, cells[:1], cells[:1])
        fits(min(k, groups, capacity) > 0, "places for candidates")
        fits(
            all(own.shape == shape and own.flags.writeable for own, shape in zip(arrays, shapes, strict=True)),
            f"candidates of shapes {shapes}",
        )


class Runs(_Arrays):
    """runs_t of kernels.h."""

    _fields_ = (("starts", c_void_p), ("groups", c_void_p), ("times", c_void_p), ("count", c_int64))
    DTYPES: ClassVar[dict[str, Any]] = {"starts": np.int64, "groups": np.int64, "times": np.float64}

    def __init__(self, starts: NDArray[np.int64], groups: NDArray[np.int64], times: NDArray[np.float64]) -> None:
        """`starts` int64[count + 1], of which the last is the end; the runs' `groups` and `times` [count]."""
        fits(len(starts) == len(groups) + 1 == len(times) + 1, "a group and a number of times for each run")
        fits(bool(starts[0] >= 0 and (np.diff(starts) > 0).all()), "runs one after another, none of them empty")
        self.rows, self.most_group = int(starts[-1]), int(groups.max(initial=-1))
        fits(bool((groups >= 0).all()), "groups from 0 on")
        super().__init__(starts, groups, times, len(groups))


class Scores(ctypes.Structure):
    """scores_t of kernels.h."""

    _fields_ = (
        ("wide", c_void_p),
        ("narrow", c_void_p),
        ("base", c_void_p),
        ("apart", c_int64),
        ("base_apart", c_int64),
        ("sums_apart", c_int64),
        ("columns", c_int64),
    )


class AdamUpdate(ctypes.Structure):
    """adam_t of kernels.h."""

    _fields_ = (
        ("sign", c_double),
        ("coupled", c_double),
        ("share", c_double),
        ("rest", c_double),
        ("share_of_squares", c_double),
        ("rest_of_squares", c_double),
        ("correction", c_double),
        ("rate", c_double),
        ("eps", c_double),
        ("left", c_double),
        ("rounds", c_int32),
    )
