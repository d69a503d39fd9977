"""A table, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy import ma
from numpy.typing import NDArray

from dualform.answers.scan import Scan
from dualform.extras import optional


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Mapping[str, NDArray[Any]]):
    """A table by column name: one NumPy array per column, all of one length.

    Numbers and booleans with NULLs are masked arrays; texts are object arrays in which NULL is None.
    """

    arrays: Mapping[str, NDArray[Any]]
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space that the slots are of; empty for the rows of an SQL statement."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values()))) if self.arrays else 0

    def records(self) -> list[dict[str, Any]]:
        """One dict of plain Python values per row; NULL is None."""
        lists = {name: column.tolist() for name, column in self.arrays.items()}
        return [{name: values[row] for name, values in lists.items()} for row in range(self.rows)]

    def to_arrow(self) -> Any:
        """A pyarrow.Table; raises MissingPackage where pyarrow is not installed."""
        pyarrow = optional("pyarrow")
        return pyarrow.table(
            {name: pyarrow.array(column.tolist()) if _has_nulls(column) else column for name, column in self.items()}
        )

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; raises MissingPackage where pandas is not installed."""
        return optional("pandas").DataFrame(
            {name: column.tolist() if _has_nulls(column) else column for name, column in self.items()}
        )

    def __repr__(self) -> str:
        return f"Columns({self.rows} rows: {', '.join(self)})"


def _has_nulls(column: NDArray[Any]) -> bool:
    return isinstance(column, ma.MaskedArray) or column.dtype == object
