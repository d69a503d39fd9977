"""A condition of a mask that is picked with a click: some slots are left out, or alone stay."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from dualform.errors import BadInput
from dualform_explorer.standard_columns import STANDARD

Number: TypeAlias = int | float
_RANGE = re.compile(r"(-?[0-9][0-9.e+-]*?)\.\.(-?[0-9][0-9.e+-]*)")
WHOLE = frozenset(
    ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
)
_FRACTIONS = frozenset(("FLOAT", "DOUBLE"))
_SPECIAL = frozenset(("nan", "inf", "-inf"))
"""Fractions that are no numbers, as they are written."""


@dataclass(frozen=True)
class Range:
    """Both ends are included."""

    first: Number
    last: Number


@dataclass(frozen=True)
class Condition:
    """Of one column. Written `column:value`, `column:first..last`, and `column` for the slots in which it is NULL."""

    column: str
    value: str | Number | bool | Range | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", alike(self.value))

    @property
    def written(self) -> str:
        name = quote(self.column, safe=" ")
        match self.value:
            case None:
                return name
            case Range(first, last):
                return f"{name}:{first}..{last}"
            case bool():
                return f"{name}:{str(self.value).lower()}"
        return f"{name}:{quote(str(self.value), safe=' /:,+()')}"

    @property
    def words(self) -> str:
        match self.value:
            case None:
                return f"no {self.column}"
            case Range(first, last) if first == last:
                return f"{self.column} {first}"
            case Range(first, last):
                return f"{self.column} {first} to {last}"
        return f"{self.column} {self.value}"

    @property
    def holds(self) -> str:
        """As SQL; false where the column is NULL, unless that is the condition."""
        name = column_name(self.column)
        match self.value:
            case None:
                return f"{name} IS NULL"
            case Range(first, last):
                return f"{name} BETWEEN {literal(first)} AND {literal(last)}"
        return f"{name} = {literal(self.value)}"

    def fails(self, complete: Collection[str]) -> str:
        """As SQL; true where the column is NULL, unless that is the condition. `complete`: columns NULL nowhere."""
        name, known = column_name(self.column), self.column in complete
        match self.value:
            case None:
                return f"{name} IS NOT NULL"
            case Range(first, last):
                outside = f"{name} < {literal(first)} OR {name} > {literal(last)}"
                return f"({outside})" if known else f"({outside} OR {name} IS NULL)"
        return f"{name} {'<>' if known else 'IS DISTINCT FROM'} {literal(self.value)}"


@dataclass(frozen=True)
class Chip:
    """Written as its conditions with `;` between, all of which hold of the slots that it means."""

    only: bool
    """Whether those slots alone stay; else they are left out."""
    conditions: tuple[Condition, ...]

    @classmethod
    def of(cls, only: bool, columns: Sequence[str], values: Sequence[Any]) -> Chip:
        return cls(only, tuple(Condition(*both) for both in zip(columns, values, strict=True)))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(own.column for own in self.conditions)

    @property
    def written(self) -> str:
        return ";".join(own.written for own in self.conditions)

    @property
    def words(self) -> str:
        """As a reader has it, without what becomes of these slots."""
        return ", ".join(own.words for own in self.conditions)

    def sql(self, complete: Collection[str]) -> str:
        """The slots that stay. `complete`: columns that are known to be NULL nowhere."""
        parts = [own.holds if self.only else own.fails(complete) for own in self.conditions]
        return parts[0] if len(parts) == 1 else f"({(' AND ' if self.only else ' OR ').join(parts)})"


def read_chip(text: str, only: bool, columns: Mapping[str, str]) -> Chip:
    """Of what stands in a URL. `columns`: their DuckDB types by name. Raises BadInput for what is none."""
    return Chip(only, tuple(_read(part, columns) for part in text.split(";")))


def _read(text: str, columns: Mapping[str, str]) -> Condition:
    written, colon, rest = text.partition(":")
    name, said = unquote(written), unquote(rest)
    if name not in columns:
        raise BadInput(f"There is no column {name!r}.", field="without")
    if not colon:
        return Condition(name, None)
    kind = columns[name]
    if kind in WHOLE or kind in _FRACTIONS:
        return Condition(name, _number_or_range(name, said, int if kind in WHOLE else _fraction))
    if kind == "BOOLEAN":
        if said not in ("true", "false"):
            raise BadInput(f"{said!r} is no value of the column {name}, which has true and false.", field="without")
        return Condition(name, said == "true")
    return Condition(name, said)


def column_name(name: str) -> str:
    """As SQL takes it: those that every space has are plain words."""
    return name if name in STANDARD else '"' + name.replace('"', '""') + '"'


def alike(value: Any) -> Any:
    """The value, so that it is equal to itself: NaN is one object."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def literal(value: Any) -> str:
    """A plain value as SQL has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, int | float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def _number_or_range(name: str, said: str, number: Callable[[str], Number]) -> Number | Range:
    try:
        found = _RANGE.fullmatch(said)
        if found is None:
            return number(said)
        first, last = (number(end) for end in found.groups())
    except ValueError:
        hint = f"Write a number, or a range as {name}:1..9."
        raise BadInput(f"{said!r} is no number, and the column {name} has numbers.", hint=hint) from None
    if last < first:
        raise BadInput(f"{said} of the column {name} ends before it begins.", field="without")
    return Range(first, last)


def _fraction(said: str) -> float:
    value = float(said)
    if said not in _SPECIAL and not math.isfinite(value):
        raise ValueError(said)
    return value
