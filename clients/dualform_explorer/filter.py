"""The filter of a page: chips picked with a click and an SQL condition, written together as one SQL `where`."""

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
"""Where a slot stands in the training."""
OF_SAMPLE = frozenset(("dataset", "label", "sample"))
"""What it is of."""
STANDARD = OF_PLACE | OF_SAMPLE


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


def complete_columns(info: MemoryInfo) -> frozenset[str]:
    """Those that every recorder writes, and `dataset` where all slots have one."""
    always = {"slot", "step"}
    if sum(info.datasets.values()) == sum(info.slots.values()):
        always.add("dataset")
    return frozenset(always)


_LETTER = r"A-Za-z_\x80-\x9f\xa1-\u1fff\u200c-\u202e\u2030-\u205e\u2061-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
"""Of a name: whatever is beyond ASCII, but for what DuckDB takes for a space."""
_TOKEN = re.compile(
    rf"""
    (?<![{_LETTER}0-9$]) [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
    | (?<![{_LETTER}0-9$]) \$((?:[{_LETTER}][{_LETTER}0-9]*)?)\$.*?\$\1\$
    | --[^\n\r]* | /\* | [()]
    """,
    re.DOTALL | re.VERBOSE,
)
"""Texts, names, comments of a line, the beginnings of others, and parentheses, as DuckDB reads them."""
_COMMENT = re.compile(r"/\*|\*/")
"""What counts within a comment: they may stand in one another."""


def where_of(
    chips: Iterable[Chip], own: str = "", before: int | None = None, complete: Collection[str] = ()
) -> str | None:
    """The slots that stay; None where all do. Chips that leave slots out all hold; of those about the same columns that
    name what alone stays, one must hold.

    `before`: slots of earlier steps alone. `complete`: columns known to be NULL nowhere. Raises BadMask for a condition
    that would end the parentheses around it, as "a) OR (b", and so let slots in that a chip leaves out.
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
    """A condition of one's own, or none, and one more. Raises BadMask as `where_of` does."""
    return f"{enclosed(own)} AND ({condition})" if own else condition


def samples_filter(samples: Iterable[tuple[str | None, int]], only: bool) -> str:
    """The slots of some samples, each a dataset and a number; or those of all others, and those without a sample."""
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
    """In parentheses. Raises BadMask for a condition that would end them."""
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
    return f"({own}\n)"  # on a line of its own, for it may end in a comment
