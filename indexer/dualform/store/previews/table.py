"""Rows of a preview set: named columns, an entry a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy import ma
from numpy.typing import NDArray

from dualform.answers import Previews
from dualform.answers.contents import TABLE
from dualform.answers.table import Columns
from dualform.errors import BadInput
from dualform.store.previews.content import BATCH_BYTES, FoundRows

_AS_TEXT = (
    pa.types.is_null, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_date, pa.types.is_time,
    pa.types.is_timestamp,
)  # fmt: skip
_STORED = pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string


class TableRows:
    """Columns of numbers, truth values and texts; dates, times and decimals become texts."""

    kind = TABLE

    def __init__(self, table: Any) -> None:
        """Raises BadInput for what is no table, and for columns that hold anything else."""
        found = _arrow(table)
        if not found.num_columns:
            raise BadInput("table must have at least one column.", hint="Give at least one.", field="table")
        columns = [_column(name, found[place]) for place, name in enumerate(found.column_names)]
        self._rows = pa.StructArray.from_arrays(columns, names=found.column_names)
        self.schema = pa.schema([("row", self._rows.type)])

    def __len__(self) -> int:
        return len(self._rows)

    def scale(self) -> None:
        return None

    def batches(self) -> Iterator[pa.RecordBatch]:
        count = max(1, BATCH_BYTES * len(self) // max(self._rows.nbytes, 1))
        for start in range(0, len(self), count):
            yield pa.record_batch([self._rows.slice(start, count)], schema=self.schema)

    @staticmethod
    def look(found: FoundRows) -> Previews:
        places = pa.array(np.cumsum(found.known) - 1, mask=~found.known)
        spread = found.rows.column("row").take(places)
        columns = dict(zip([own.name for own in spread.type], map(_numpy, spread.flatten()), strict=True))
        return Previews(found.samples, TABLE, found.known, columns=columns)


def _arrow(table: Any) -> pa.Table:
    """A table of Arrow, of whatever is one."""
    if isinstance(table, Columns):
        table = table.to_arrow()
    try:
        if type(table).__module__.partition(".")[0] == "pandas":
            found = pa.Table.from_pandas(table, preserve_index=False)
        elif isinstance(table, Mapping):
            columns = [_entries(column) for column in table.values()]
            found = pa.table(columns, names=list(map(str, table))) if columns else pa.table({})
        else:
            found = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise BadInput(
            f"{type(table).__name__} cannot be stored as a table: {error}",
            hint="Pass a DataFrame, a mapping of columns of one length, or an Arrow table.",
            field="table",
        ) from None
    if len(set(found.column_names)) < found.num_columns:
        raise BadInput("table has two columns of one name.", hint="Rename one of them.", field="table")
    return found


def _entries(column: Any) -> Any:
    if isinstance(column, np.ma.MaskedArray):
        return pa.array(column.data, mask=np.ma.getmaskarray(column))
    return column.detach().cpu().numpy() if hasattr(column, "detach") else column


def _column(name: str, column: pa.ChunkedArray) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):  # which has no cast
        column = pa.chunked_array([column.to_pylist()], pa.string())
    elif pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    kind = column.type
    if pa.types.is_duration(kind):  # as a text its number alone would stand
        numbers = column.cast(pa.int64()).to_pylist()
        texts = [None if own is None else f"{own} {kind.unit}" for own in numbers]
        column = pa.chunked_array([texts], pa.string())
    elif any(own(kind) for own in _AS_TEXT):
        column = column.cast(pa.string())
    elif pa.types.is_decimal(kind):
        column = pa.chunked_array([[None if own is None else str(own) for own in column.to_pylist()]], pa.string())
    elif not any(own(kind) for own in _STORED):
        raise BadInput(f"Column {name!r} cannot hold {kind}.", hint="Pass numbers, booleans or texts.", field="table")
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _numpy(column: pa.Array) -> NDArray[Any]:
    """Numbers and truth values, masked where there are NULLs; texts as objects, NULL as None."""
    if pa.types.is_string(column.type):
        texts = np.empty(len(column), dtype=object)
        texts[:] = column.to_pylist()
        return texts
    if not column.null_count:
        return np.array(column.to_numpy(zero_copy_only=False))
    nulls = np.asarray(column.is_null())
    zero = False if pa.types.is_boolean(column.type) else 0
    filled = column.fill_null(pa.scalar(zero, column.type))
    found: NDArray[Any] = ma.array(filled.to_numpy(zero_copy_only=False), mask=nulls)
    return found
