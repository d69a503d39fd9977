"""DuckDB: array_inner_product over a table of arrays, ORDER BY and GROUP BY."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.data import COLUMNS, Data, Groups, Mask
from benchmarks.peers import Slots


class Duckdb:
    name = "DuckDB"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        self._database = duckdb.connect()
        width = data.keys.shape[1]
        self._array = f"FLOAT[{width}]"
        self._database.register("arrow", key_table(data))
        self._database.execute(f"CREATE TABLE slots AS SELECT * REPLACE (vector::{self._array} AS vector) FROM arrow")
        self._database.unregister("arrow")

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        where = "" if mask is None else f"WHERE {mask.where}"
        # A statement a query takes no longer than one with a join, and keeps no score in memory.
        statement = f"SELECT slot FROM slots {where} ORDER BY {self._score()} DESC, slot LIMIT {k}"
        return [self._fetch(statement, [query.tolist()])["slot"] for query in queries]

    def top_of_groups(self, query: NDArray[np.float32], k: int, groups: Groups) -> Slots:
        by = ", ".join(groups.by)
        rows = self._fetch(
            f"SELECT {by}, slot FROM (SELECT {by}, slot, {self._score()} AS score FROM slots) "
            f"QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY score DESC, slot) <= {k} "
            f"ORDER BY {by}, score DESC, slot",
            [query.tolist()],
        )
        number = groups.numbers[rows["slot"]]
        return [rows["slot"][number == group] for group in range(groups.count)]

    def sums(self, queries: NDArray[np.float32], groups: Groups, absolute: bool) -> NDArray[np.float64]:
        by = ", ".join(groups.by)
        score = f"abs({self._score()})" if absolute else self._score()
        statement = f"SELECT sum({score}::DOUBLE) AS total FROM slots GROUP BY {by} ORDER BY {by}"
        return np.stack([np.asarray(self._fetch(statement, [query.tolist()])["total"]) for query in queries])

    def _score(self) -> str:
        return f"array_inner_product(vector, ?::{self._array})"

    def _fetch(self, statement: str, parameters: list[Any]) -> dict[str, NDArray[Any]]:
        return self._database.execute(statement, parameters).fetchnumpy()

    def close(self) -> None:
        self._database.close()


def key_table(data: Data) -> pa.Table:
    """The keys as a column of fixed-size lists, with the slots' columns."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(data.keys.ravel()), data.keys.shape[1])
    columns = {name: pa.array(data.columns[name]) for name in COLUMNS}
    return pa.table({"slot": np.arange(len(data.keys)), **columns, "vector": vectors})
