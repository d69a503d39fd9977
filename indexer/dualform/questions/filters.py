"""Filters: which slots a question is about, as an SQL condition with bound values, or by ids of samples or slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from dualform.errors import BadMask
from dualform.questions.arguments import as_array, shown

ID_COLUMNS = ("sample", "slot")
_FORMS = (
    'Pass an SQL condition, "label <> 3"; one with values, ("label = ? AND sample IN ?", 3, ids); or '
    '{"sample": ids}, {"not sample": ids}, {"slot": ids} or {"not slot": ids}.'
)


@dataclass(frozen=True, eq=False)
class Ids:
    """Values of a column that a filter names together: int64[n], or texts."""

    values: NDArray[np.int64] | tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """Equal for equal values."""
        data = (
            self.values.tobytes()
            if isinstance(self.values, np.ndarray)
            else b"".join(len(text).to_bytes(8, "little") + text for text in (own.encode() for own in self.values))
        )
        return f"{type(self.values).__name__} {len(self.values)} {xxhash.xxh3_128(data).hexdigest()}"

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"({len(self):,} ids)"


@dataclass(frozen=True, eq=False)
class Filter:
    """An SQL condition over the columns of slots, with a value for each question mark.

    A value is a bool, int, float, text, None for NULL, or a list of ids after IN. Raises BadMask for others. The number
    of values is checked when the memory reads the condition.
    """

    sql: str
    values: tuple[bool | int | float | str | Ids | None, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.sql, str):
            raise BadMask(f"where must be an SQL condition, not {shown(self.sql)}.", hint=_FORMS, field="where")
        object.__setattr__(self, "values", tuple(map(_value, self.values)))

    @property
    def typed(self) -> tuple[tuple[str, Any], ...]:
        """Each value with what tells it from equal ones: 1, 1.0 and True are others in SQL, 0.0 and -0.0 as texts."""
        return tuple((repr(own) if isinstance(own, float) else type(own).__name__, own) for own in self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and (self.sql, self.typed) == (other.sql, other.typed)

    def __hash__(self) -> int:
        return hash((self.sql, self.typed))

    def __str__(self) -> str:
        return f"{self.sql} {list(self.values)}" if self.values else self.sql


FilterLike: TypeAlias = "str | Filter | tuple[Any, ...] | Mapping[str, ArrayLike]"
FilterOrFilters: TypeAlias = "str | Filter | Mapping[str, str | Filter]"
"""One for all slot spaces, or one for each space that is named."""


def ids_condition(column: str, negated: bool) -> str:
    """The condition that a column is, or is not, one of some ids. A slot without a sample matches no ids."""
    if not negated:
        return f"{column} IN ?"
    return f"{column} NOT IN ?{' OR sample IS NULL' if column == 'sample' else ''}"


def as_filter(where: Any, name: str = "where") -> str | Filter | None:
    """A filter as a question holds it: a condition without values stays a text.

    Takes an SQL text, a Filter, a tuple of an SQL text and its values, or the ids of samples or slots by column:
    {"sample": ids}, {"not sample": ids}, {"slot": ids}, {"not slot": ids}. Raises BadMask for anything else; a bare
    array of ids too, for it could mean either.
    """
    if where is None or isinstance(where, str | Filter):
        return where
    if isinstance(where, tuple) and where and isinstance(where[0], str):
        return Filter(where[0], where[1:]) if len(where) > 1 else where[0]
    if isinstance(where, Mapping) and len(where) == 1:
        ((name, ids),) = where.items()
        negated, column = (name.startswith("not "), name.removeprefix("not ")) if isinstance(name, str) else (False, "")
        if column in ID_COLUMNS and not isinstance(ids, str):
            return Filter(ids_condition(column, negated), (_ids(ids, f"where[{name!r}]"),))
    if isinstance(where, np.ndarray | list | range) or hasattr(where, "__array__"):
        raise BadMask(
            "where cannot be a bare array: its numbers could be samples or slots.",
            hint='Pass where={"sample": ids} or where={"slot": ids}.',
            field="where",
        )
    raise BadMask(f"where cannot be {shown(where)}.", hint=_FORMS, field="where")


def as_filters(where: Any, name: str = "where") -> FilterOrFilters | None:
    """As `as_filter`, or a mapping of filters by slot space."""
    if not isinstance(where, Mapping) or _names_ids(where):
        return as_filter(where)
    found = {space: as_filter(own) for space, own in where.items()}
    if not all(isinstance(space, str) and own is not None for space, own in found.items()):
        raise BadMask(
            f"where must be one condition, or conditions by slot space, not {shown(where)}.",
            hint='For example where={"token": "label <> 3"}.',
            field="where",
        )
    return {space: own for space, own in found.items() if own is not None}


def _names_ids(where: Mapping[Any, Any]) -> bool:
    """Whether it is {"sample": ids} and the like, and no filter of a space."""
    ((name, own),) = where.items() if len(where) == 1 else ((None, None),)
    condition = isinstance(own, tuple) and own and isinstance(own[0], str)
    ids = not condition and not isinstance(own, str | Filter | Mapping)
    return ids and isinstance(name, str) and name.removeprefix("not ") in ID_COLUMNS


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool | str | Ids):
        return value
    if isinstance(value, np.bool_ | np.number):
        value = value.item()
    if isinstance(value, bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return _ids(value, "a value of where")


def _ids(given: Any, what: str) -> Ids:
    """Raises BadMask for what is not a list of whole numbers or of texts."""
    try:
        if isinstance(given, np.ma.MaskedArray) and np.ma.getmaskarray(given).any():
            raise ValueError("it holds NULL")
        texts = not isinstance(given, str) and len(given) and all(isinstance(own, str) for own in given)
        if texts:
            found = tuple(map(str, given))
            "".join(found).encode()  # raises for invalid text
            return Ids(found)
        array = as_array(given)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError("it is not a list")
        if array.dtype.kind == "u" and (array > np.iinfo(np.int64).max).any():
            raise ValueError("it is beyond 64 bits")
    except (TypeError, ValueError, OverflowError):
        raise BadMask(
            f"{what} must be a whole number, a text, or a list of either, not {shown(given)}.",
            hint='For example where=("label = ?", 3) or where={"sample": [17, 18]}.',
            field="where",
        ) from None
    own = np.array(array, dtype=np.int64, copy=True)  # the caller may go on to change theirs
    own.flags.writeable = False
    return Ids(own)


Where: TypeAlias = Annotated[str | Filter | None, as_filter]
Wheres: TypeAlias = Annotated[str | Filter | Mapping[str, str | Filter] | None, as_filters]
