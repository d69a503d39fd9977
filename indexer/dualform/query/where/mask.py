"""Which slots a `where` leaves.

A mask is arithmetic removal from the sum of this training, not a training without those slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import duckdb
import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadMask, EmptyMask, NotFound
from dualform.query.where.expression import Expression, parse


class SlotTables(Protocol):
    """The part of a memory that a mask needs."""

    def count(self, space: str) -> int: ...

    def columns(self, space: str) -> dict[str, str]: ...

    def tables(self, space: str) -> duckdb.DuckDBPyConnection: ...


@dataclass(frozen=True, eq=False)
class Selection:
    """The slots that stay."""

    identity: str
    """Equal for equal masks; empty where there is none."""
    stays: NDArray[np.bool_]
    """bool[slots]."""

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """int64[m], ascending."""
        return np.flatnonzero(self.stays)

    @cached_property
    def count(self) -> int:
        return int(np.count_nonzero(self.stays))

    @property
    def nbytes(self) -> int:
        return self.stays.nbytes + 8 * self.count


def every_slot(memory: SlotTables, space: str) -> Selection:
    return Selection("", np.ones(memory.count(space), dtype=bool))


def check(memory: SlotTables, space: str, where: str, datasets: list[str]) -> Expression:
    """The checked expression of `where`. `datasets` are those recorded in any space.

    Raises BadMask, or NotFound for an unknown column, and for a dataset that no slot has: a misspelt name in
    `dataset <> '…'` would otherwise keep everything without a word.
    """
    expression = parse(where, memory.columns(space))
    for name in expression.datasets:
        if name not in datasets:
            there = f"Datasets: {', '.join(datasets)}." if datasets else "No slot names a dataset."
            raise NotFound(f"no dataset {name!r} in this memory.", hint=there, field="where")
    return expression


def select(memory: SlotTables, space: str, expression: Expression) -> Selection:
    """The slots for which the expression is true; NULL is not true.

    Raises BadMask where it is not boolean or fails on a value (a CAST of a text that is no number). May be empty: see
    `require_slots`.
    """
    connection = memory.tables(space)
    parameters = list(expression.parameters)
    try:
        head = connection.execute(f"SELECT {expression.sql} FROM slots LIMIT 0", parameters)
        kind = str(head.description[0][1]) if head.description else ""
        if kind != "BOOLEAN":
            raise BadMask(f"where is of type {kind}.", hint="Write a condition that is true or false.", field="where")
        rows = connection.execute(f"SELECT slot FROM slots WHERE {expression.sql}", parameters).fetchnumpy()["slot"]
    except duckdb.Error as error:
        raise BadMask(f"where cannot be evaluated: {first_line(error)}", field="where") from None
    stays = np.zeros(memory.count(space), dtype=bool)
    stays[np.asarray(rows, dtype=np.int64)] = True
    return Selection(expression.identity, stays)


def require_slots(selection: Selection, where: str | None, datasets: list[str]) -> Selection:
    """The selection, or EmptyMask where it leaves nothing."""
    if selection.count:
        return selection
    if where is None:
        raise EmptyMask("this memory holds no slots yet.", field="where")
    known = f"; datasets: {', '.join(datasets)}" if datasets else ""
    raise EmptyMask(
        f"where leaves none of {len(selection.stays)} slots: {where}",
        hint=f'See what is there: sql("SELECT dataset, label, count(*) FROM slots GROUP BY ALL"){known}.',
        field="where",
    )


def first_line(error: Exception) -> str:
    """What DuckDB says, without the statement that it was shown."""
    return str(error).strip().split("\n", 1)[0]
