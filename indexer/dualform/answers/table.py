"""Shared by answers that are tables: printing, their form in notebooks, and conversion to pandas and Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import SHOWN, Columns, as_html, as_text, column_of
from dualform.answers.scan import Scan

A = TypeVar("A")


class Shown(ABC):
    """A result that prints itself as a table, also in notebooks."""

    _asked: tuple[ref[Any], Any] | None = None
    """The memory that gave the answer, and the question. No pickle has it, and no message."""

    @abstractmethod
    def shown(self, most: int) -> tuple[Columns, int]:
        """The rows to print, at most `most`, and the number of all rows."""

    @abstractmethod
    def title(self) -> str:
        """One line that describes the rows."""

    def __repr__(self) -> str:
        return as_text(*self.shown(SHOWN + 2), self.title())

    def _repr_html_(self) -> str:
        with suppress(Exception):  # a memory that was closed, a server that is gone: the table needs neither
            return self._html(*self._source())
        return as_html(*self.shown(SHOWN + 2), self.title())

    def _html(self, memory: Any, question: Any) -> str:
        """The notebook's HTML. `memory`: to look up more; None if it is gone or unknown."""
        return as_html(*self.shown(SHOWN + 2), self.title())

    def _source(self) -> tuple[Any, Any]:
        return (None, None) if self._asked is None else (self._asked[0](), self._asked[1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: own for name, own in vars(self).items() if name != "_asked"}


def asked_of(memory: Any, question: Any, answer: A) -> A:
    """The answer, which from now on knows the memory as long as that lives: a notebook then shows samples."""
    if isinstance(answer, Shown):
        object.__setattr__(answer, "_asked", (ref(memory), question))
    return answer


class Table(Shown):
    """A result that is a table."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows of `table`."""

    @abstractmethod
    def table(self, most: int | None = None) -> Columns:
        """The result as columns; only the first `most` rows if given."""

    def shown(self, most: int) -> tuple[Columns, int]:
        return self.table(most), self.rows

    def to_pandas(self) -> Any:
        """`table` as a pandas.DataFrame. Raises MissingPackage without pandas."""
        return self.table().to_pandas()

    def to_arrow(self) -> Any:
        """`table` as a pyarrow.Table. Raises MissingPackage without pyarrow."""
        return self.table().to_arrow()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table().__arrow_c_stream__(requested_schema)


def counted(number: int, noun: str) -> str:
    """ "1 query", "2,000 queries"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def slots_told(scan: Scan, space: str) -> str:
    """ "320 slots of space 'sample'", or how many of them a mask left, and what is missing of them; empty where nothing
    is known."""
    of = f" of space {space!r}" if space else ""
    if not scan.slots_scanned:
        return f"slots{of}" if space else ""
    left = "" if scan.slots_matching == scan.slots_scanned else f"{scan.slots_matching:,} of "
    sample = f", {scan.sample}" if scan.sample else ""
    missing = f", without those of {', '.join(scan.missing)}" if scan.missing else ""
    return f"{left}{counted(scan.slots_scanned, 'slot')}{of}{sample}{missing}"


def group_columns(by: Sequence[str], groups: Sequence[tuple[Any, ...]], numbers: NDArray[Any]) -> dict[str, Any]:
    """The values of the groups of these numbers, a column for each of `by`."""
    chosen = [groups[number] for number in numbers.tolist()]
    names = by or [f"group_{place}" for place in range(len(groups[0]) if groups else 0)]
    return {name: column_of([own[place] for own in chosen]) for place, name in enumerate(names)}


def beside(own: Mapping[str, NDArray[Any]], of_user: Mapping[str, NDArray[Any]], at: int) -> dict[str, NDArray[Any]]:
    """The columns of an answer, with a user's columns inserted at place `at`. User columns keep their names. A column
    of the answer with the same name gets underscores appended.
    """
    taken = {*own, *of_user}
    renamed = {free_name(name, taken) if name in of_user else name: column for name, column in own.items()}
    names = [*list(renamed)[:at], *of_user, *list(renamed)[at:]]
    return {name: {**renamed, **of_user}[name] for name in names}


def free_name(name: str, taken: Container[str]) -> str:
    """The name, with underscores appended until it is not taken."""
    while name in taken:
        name += "_"
    return name


def first_places(shape: tuple[int, ...], most: int | None) -> tuple[NDArray[np.int64], ...]:
    """The indices of the first numbers of an array of that shape, in its order, one array an axis."""
    size = int(np.prod(shape))
    return np.unravel_index(np.arange(size if most is None else min(size, most)), shape) if size else _none(shape)


def _none(shape: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.zeros(0, dtype=np.int64) for _ in shape)
