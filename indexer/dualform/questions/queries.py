"""Queries: inputs of a layer. Shapes: n queries, d dimensions of a layer's input.

They check themselves when they are made, as far as that needs no memory: widths and query sets are checked by whoever
answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dualform.errors import BadInput
from dualform.questions.arguments import shown
from dualform.questions.numbers_given import as_array

MOST_ROWS = 1_000_000
"""Rows that a text may name."""


def finite_rows(given: Any, many: str = "queries", one: str = "query", width: str = "d") -> NDArray[np.float32]:
    """float32[n, width] of a tensor or what NumPy makes an array of; of a single row [width] too.

    Raises BadInput, whose field is `many`, for other shapes, no row at all, and numbers that are masked or not finite.
    """
    if np.ma.is_masked(given):
        raise BadInput(f"{many} hold masked numbers.", hint="Give each a value, with filled().", field=many)
    try:
        array = as_array(given)
        if np.iscomplexobj(array):
            raise TypeError("they are complex")
        with np.errstate(over="ignore"):  # what overflows float32 is infinite there, and refused below
            rows = array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{many} must be numbers: {error}.", field=many) from None
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2:
        raise BadInput(
            f"{many} must be float32[n, {width}] or float32[{width}], got an array of {rows.ndim} dimensions.",
            field=many,
        )
    if not len(rows):
        raise BadInput(f"{many} hold no row.", hint=f"Ask with at least one {one}.", field=many)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise BadInput(
            f"{one} {int(np.argmin(finite))} holds NaN or infinity.",
            hint="Scores are inner products: every number must be finite in float32.",
            field=many,
        )
    return np.ascontiguousarray(rows)


@dataclass(frozen=True)
class Vectors:
    """Queries given as numbers: n of them, each as wide as the layer's input, d.

    Takes a tensor and what NumPy makes an array of, a single query [d] too, and keeps float32. Raises BadInput for
    other shapes, no query at all, and numbers that are masked or not finite.
    """

    rows: NDArray[np.float32]
    """float32[n, d], finite."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", finite_rows(self.rows))

    @property
    def count(self) -> int:
        """n."""
        return len(self.rows)

    @property
    def kind(self) -> Hashable:
        """Equal for queries that can be joined. Another width is another kind: a wrong one is wrong for all."""
        return Vectors, self.rows.shape[1]


@dataclass(frozen=True)
class QuerySetRows:
    """Queries stored in the memory under a query set's name: the layer's own inputs when the query set was taken.

    Asking raises NotFound for a query set that is not there, or does not have the row.
    """

    query_set: str
    rows: tuple[int, ...] | None = None
    """Row numbers from 0; None asks with every row, as one must of a layer whose rows the network chooses."""

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "rows", _row_numbers(self.rows, "rows"))

    @property
    def count(self) -> int | None:
        """n; None for every row, which only the memory can count."""
        return None if self.rows is None else len(self.rows)

    @property
    def kind(self) -> Hashable | None:
        """As Vectors.kind; None for what cannot be joined: every row, or none."""
        return (QuerySetRows, self.query_set) if self.rows else None


@dataclass(frozen=True)
class SlotKeys:
    """The keys of training datapoints themselves, as queries.

    Asking raises NotFound for a slot that the layer does not have.
    """

    slots: tuple[int, ...]
    """Numbers in the layer's slot space."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", _row_numbers(self.slots, "slots"))

    @property
    def count(self) -> int:
        """n."""
        return len(self.slots)

    @property
    def kind(self) -> Hashable | None:
        """As Vectors.kind; None for no slot at all."""
        return SlotKeys if self.slots else None


Queries: TypeAlias = Vectors | QuerySetRows | SlotKeys
QueriesLike: TypeAlias = Queries | ArrayLike | str


def joined_queries(queries: Sequence[Queries]) -> Queries:
    """The queries of all, in order. They are of one kind."""
    match queries[0]:
        case Vectors():
            return Vectors(np.concatenate([one.rows for one in queries if isinstance(one, Vectors)]))
        case QuerySetRows(query_set):
            rows = (one.rows or () for one in queries if isinstance(one, QuerySetRows))
            return QuerySetRows(query_set, tuple(chain.from_iterable(rows)))
        case SlotKeys():
            slots = (one.slots for one in queries if isinstance(one, SlotKeys))
            return SlotKeys(tuple(chain.from_iterable(slots)))


def as_queries(queries: QueriesLike) -> Queries:
    """Vectors, QuerySetRows or SlotKeys as they are; numbers as Vectors; "query set", "query_set/3,17" and
    "query_set/10:20", which is rows 10 to 19, as QuerySetRows.

    Raises BadInput where a text names no row numbers after its last slash, or a range of none or of too many.
    """
    if isinstance(queries, Vectors | QuerySetRows | SlotKeys):
        return queries
    if not isinstance(queries, str):
        return Vectors(queries)  # type: ignore[arg-type]  # it makes an array of them
    name, slash, rows = queries.rpartition("/")
    if not slash:
        return QuerySetRows(queries)
    try:
        ranges = [_range_of(part) for part in rows.split(",")]
    except ValueError:
        raise BadInput(
            f"{shown(queries)} names no query set row: {shown(rows)} is no row number.",
            hint="Write QUERY_SET/ROW, for example test-mnist/17, QUERY_SET/3,17 for several, or QUERY_SET/10:20 for "
            "10 to 19.",
            field="queries",
        ) from None
    if not all(ranges):
        raise BadInput(f"{shown(queries)} has a range of no row.", hint="10:20 is rows 10 to 19.", field="queries")
    if sum(part.stop - part.start for part in ranges) > MOST_ROWS:
        raise BadInput(f"{shown(queries)} names more than {MOST_ROWS:,} rows.", hint="Ask in parts.", field="queries")
    return QuerySetRows(name, tuple(chain.from_iterable(ranges)))


def _row_numbers(given: Any, what: str) -> tuple[int, ...]:
    """A tuple of what is given in a sequence; whether these are numbers of something there is, is known when asked."""
    if isinstance(given, tuple) and all(type(number) is int for number in given):
        return given
    try:
        numbers = as_array(given)
        if numbers.ndim == 0:
            raise ValueError("it is one value")
        return tuple(numbers.tolist())
    except (TypeError, ValueError):
        raise BadInput(
            f"{what} are {shown(given)}.", hint="Give whole numbers in a list, for example [17].", field="queries"
        ) from None


def _range_of(said: str) -> range:
    """The rows of "17" or "10:20". Raises ValueError for anything else."""
    first, colon, end = said.partition(":")
    return range(int(first), int(end) if colon else int(first) + 1)
