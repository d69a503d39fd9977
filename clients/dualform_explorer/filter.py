"""The filter of a page: chips and an SQL condition, combined into one SQL `where`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from dualform.answers import MemoryInfo
from dualform.errors import BadInput, BadMask

OF_PLACE = frozenset(("slot", "step", "row", "position", "call"))
"""Columns that locate a slot in training."""
OF_SAMPLE = frozenset(("dataset", "label", "sample"))
"""Columns that describe its sample."""
STANDARD = OF_PLACE | OF_SAMPLE


Number: TypeAlias = int | float
_RANGE = re.compile(r"(-?[0-9][0-9.e+-]*?)\.\.(-?[0-9][0-9.e+-]*)")
WHOLE = frozenset(
    ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
)
_FRACTIONS = frozenset(("FLOAT", "DOUBLE"))
_SPECIAL = frozenset(("nan", "inf", "-inf"))
"""Special values of fractions, as text."""


@dataclass(frozen=True)
class Range:
    """Includes both ends."""

    first: Number
    last: Number


@dataclass(frozen=True)
class Condition:
    """A condition on one column. Written as `column:value`, `column:first..last`, or `column` for NULL."""

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
        """The condition as SQL. False for NULL, unless the condition is NULL."""
        name = column_name(self.column)
        match self.value:
            case None:
                return f"{name} IS NULL"
            case Range(first, last):
                return f"{name} BETWEEN {literal(first)} AND {literal(last)}"
        return f"{name} = {literal(self.value)}"

    def fails(self, complete: Collection[str]) -> str:
        """The opposite as SQL. True for NULL, unless the condition is NULL. `complete`: columns that are never NULL."""
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
    """Conditions that must all hold for a slot. Written with `;` between them."""

    only: bool
    """True keeps only the matching slots; False removes them."""
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
        """The conditions in words."""
        return ", ".join(own.words for own in self.conditions)

    def sql(self, complete: Collection[str]) -> str:
        """An SQL condition for the slots to keep. `complete`: columns that are never NULL."""
        parts = [own.holds if self.only else own.fails(complete) for own in self.conditions]
        return parts[0] if len(parts) == 1 else f"({(' AND ' if self.only else ' OR ').join(parts)})"


def read_chip(text: str, only: bool, columns: Mapping[str, str]) -> Chip:
    """Read a chip from an address. `columns`: DuckDB types by name. Raises BadInput for anything else."""
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
    """The column in SQL, quoted unless it is a standard name."""
    return name if name in STANDARD else '"' + name.replace('"', '""') + '"'


def alike(value: Any) -> Any:
    """The value itself. All NaN become one object, so that equal conditions compare equal."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def literal(value: Any) -> str:
    """A value as an SQL literal."""
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


def complete_columns(info: MemoryInfo) -> frozenset[str]:
    """The columns that are never NULL: those every recorder writes, and `dataset` if all slots have one."""
    always = {"slot", "step"}
    if sum(info.datasets.values()) == sum(info.slots.values()):
        always.add("dataset")
    return frozenset(always)


_LETTER = r"A-Za-z_\x80-\x9f\xa1-\u1fff\u200c-\u202e\u2030-\u205e\u2061-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
"""Letters of an SQL name: ASCII letters, and everything beyond ASCII that DuckDB does not read as a space."""
_TOKEN = re.compile(
    rf"""
    (?<![{_LETTER}0-9$]) [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
    | (?<![{_LETTER}0-9$]) \$((?:[{_LETTER}][{_LETTER}0-9]*)?)\$.*?\$\1\$
    | --[^\n\r]* | /\* | [()]
    """,
    re.DOTALL | re.VERBOSE,
)
"""The tokens that matter for nesting, as DuckDB reads them: strings, quoted names, line comments, the start of block
comments, and parentheses."""
_COMMENT = re.compile(r"/\*|\*/")
"""The start and end of block comments, which nest."""


def where_of(
    chips: Iterable[Chip], own: str = "", before: int | None = None, complete: Collection[str] = ()
) -> str | None:
    """SQL for the slots to keep; None for all slots. All removing chips must hold. Among keeping chips for the same
    columns, one must hold.

    `before`: keep only slots of earlier steps. `complete`: columns that are never NULL. Raises BadMask for a condition
    that would close the parentheses around it, such as "a) OR (b", and so let in slots that a chip removes.
    """
    parts: list[str] = []
    allowed: dict[tuple[str, ...], list[str]] = {}
    for chip in chips:
        sql = chip.sql(complete)
        if chip.only:
            allowed.setdefault(chip.columns, []).append(sql)
        else:
            parts.append(sql)
    parts = [one[0] if len(one) == 1 else f"({' OR '.join(one)})" for one in allowed.values()] + parts
    if own:
        parts.append(enclosed(own) if parts or before is not None else own)
    if before is not None:
        parts.append(f"step < {before}")
    return " AND ".join(parts) or None


def narrowed(own: str, condition: str) -> str:
    """Add a condition to the reader's own condition, which may be empty. Raises BadMask as `where_of` does."""
    return f"{enclosed(own)} AND ({condition})" if own else condition


def samples_filter(samples: Iterable[tuple[str | None, int]], only: bool) -> str:
    """The slots of some samples, each given by dataset and number. With `only` false, all other slots, including those
    without a sample.
    """
    numbers: dict[str | None, list[int]] = {}
    for dataset, sample in samples:
        numbers.setdefault(dataset, []).append(sample)
    parts = []
    for dataset, own in numbers.items():
        value, listed = "NULL" if dataset is None else literal(dataset), ", ".join(map(str, own))
        if only:
            parts.append(f"dataset IS NOT DISTINCT FROM {value} AND sample IN ({listed})")
        else:
            parts.append(f"(dataset IS DISTINCT FROM {value} OR sample IS NULL OR sample NOT IN ({listed}))")
    return (" OR " if only else " AND ").join(parts)


def enclosed(own: str) -> str:
    """Put a condition in parentheses. Raises BadMask for a condition that would close them."""
    depth, within, place = 0, 0, 0
    while depth >= 0 and (token := (_COMMENT if within else _TOKEN).search(own, place)) is not None:
        place = token.end()
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        within += {"/*": 1, "*/": -1}.get(token[0], 0)
    if within:
        raise BadMask(f"{own!r} begins a comment that it does not end.", hint="End it with */.", field="where")
    if depth:
        does = (
            "opens a parenthesis that it does not close" if depth > 0 else "closes a parenthesis that it did not open"
        )
        raise BadMask(f"{own!r} {does}.", hint="Give one condition, whole by itself.", field="where")
    return f"({own}\n)"  # on a new line, because the condition may end in a comment
