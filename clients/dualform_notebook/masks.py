"""Masks by mouse: groups of slots that are left out, or kept alone, and one SQL expression of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualform.errors import BadInput


@dataclass(frozen=True)
class GroupMask:
    """Slots that have certain values in some columns: left out, or kept while all others are left out."""

    values: tuple[tuple[str, Any], ...]
    """Column and value; None is NULL."""
    keep: bool = False

    @classmethod
    def of(cls, given: Any) -> GroupMask:
        """From what a front end says: {"values": {column: value}, "keep": false}. Raises BadInput for anything else."""
        if (
            not isinstance(given, Mapping)
            or not isinstance(values := given.get("values"), Mapping)
            or not values
            or not all(isinstance(value, str | int | float | bool | None) for value in values.values())
        ):
            raise BadInput(f"a mask is {given!r}.", hint='Give {"values": {"label": 3}, "keep": False}.', field="masks")
        return cls(tuple((str(column), value) for column, value in values.items()), bool(given.get("keep")))

    @property
    def label(self) -> str:
        """As a reader has it."""
        said = ", ".join(f"{column} = {'NULL' if value is None else value}" for column, value in self.values)
        return f"only {said}" if self.keep else f"without {said}"

    @property
    def sql(self) -> str:
        """True for the slots that stay. NULL is a value among others: what is left out is what was named, no more."""
        compared = "IS NOT DISTINCT FROM" if self.keep else "IS DISTINCT FROM"
        parts = (f"{_quoted(column)} {compared} {_literal(value)}" for column, value in self.values)
        return f"({' AND '.join(parts) if self.keep else ' OR '.join(parts)})"


def where_of(masks: Sequence[GroupMask], where: str) -> str | None:
    """One expression: the slots that every mask leaves, of those that one is kept by where there are such, and `where`.

    None where nothing is masked.
    """
    kept = [mask.sql for mask in masks if mask.keep]
    parts = [mask.sql for mask in masks if not mask.keep]
    if kept:
        parts.append(f"({' OR '.join(kept)})")
    if where.strip():
        parts.append(f"({where.strip()})" if parts else where.strip())
    return " AND ".join(parts) or None


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).upper() if isinstance(value, bool) else repr(value)
