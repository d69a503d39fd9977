"""The tables of several runs of one training as those of one: each run's rows follow those of the run before.

Steps, slots and datapoints of a run are numbered behind those of the runs before it. `samples` has one column more,
`run`: the number of each datapoint's run, from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualform.store.entries import Integers
from dualform.store.rows_for_slots import missing_lists
from dualform.store.shard_tables import Tables, taken
from dualform.store.tables import SHARE, ColumnTypes, arrow_type, extents_table, joined
from dualform.store.user_columns import as_common

RUN = "run"
"""The column of `samples` that names a datapoint's run, where the training recorded none of that name."""
_STEPS = ("step", "first_step")


class RunTables(Tables):
    """Tables (shard_tables.py)."""

    def __init__(
        self,
        parts: Sequence[Tables],
        first_steps: Sequence[int],
        types: Mapping[str, ColumnTypes],
        spaces: Mapping[str, str],
        folders: Sequence[str],
    ) -> None:
        """`first_steps`: the number of each run's first step. `spaces`: the space of each layer. `folders`: where the
        files of each run's segments lie."""
        self.types = types
        self._parts, self._first_steps, self._spaces, self._folders = parts, first_steps, spaces, folders
        self._held: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._first_slots = {table: self._before(table, "slots") for table in types if table.startswith("extents_")}

    def rows(self, table: str) -> int:
        return len(self.columns(table, [next(iter(self.types[table]))])[0])

    def columns(self, table: str, names: Sequence[str]) -> list[pa.ChunkedArray]:
        return [self._column(table, name) for name in names]

    def some(self, table: str, name: str, rows: Integers) -> pa.Array:
        kind = self.types[table][name]
        if not pa.types.is_list(arrow_type(kind)):
            return taken(self._column(table, name), rows)
        starts = np.cumsum([0, *(self._rows(n, table) for n in range(len(self._parts)))])
        cuts = np.searchsorted(rows, starts)
        found = [pa.array([], type=arrow_type(kind))]
        for number, part in enumerate(self._parts):
            own = rows[cuts[number] : cuts[number + 1]] - starts[number]
            known = name in part.types.get(table, {})
            entries = part.some(table, name, own) if known else taken(missing_lists(part, table, name, kind), own)
            found.append(as_common(name, entries, kind))
        return joined(found, found[0].type)

    @contextmanager
    def reading(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.reading())
            yield

    def _column(self, table: str, name: str) -> pa.ChunkedArray:
        if table == "labels":  # names are of the whole training: a run may tell them again
            return self._labels()[name]
        if (table, name) not in self._held:
            kind = self.types[table][name]
            chunks = list[pa.Array]()
            for number in range(len(self._parts)):
                chunks += as_common(name, self._of_run(number, table, name), kind).chunks
            self._held[table, name] = pa.chunked_array(chunks, arrow_type(kind))
        return self._held[table, name]

    def _of_run(self, number: int, table: str, name: str) -> pa.ChunkedArray:
        """A column of one run, numbered behind the runs before it."""
        part, rows = self._parts[number], self._rows(number, table)
        if name not in part.types.get(table, {}):
            return self._unsaid(number, table, name, rows)
        column = part.columns(table, [name])[0]
        if table == "segments" and name == "file":
            return pa.chunked_array(
                [pa.array([f"{self._folders[number]}/{file}" for file in column.to_pylist()], pa.string())]
            )
        shift = self._shift(number, table, name)
        return column if shift is None else pc.add(column, shift).cast(column.type)

    def _unsaid(self, number: int, table: str, name: str, rows: int) -> pa.ChunkedArray:
        """A column that a run does not have: where another one held a budget, this one kept every sample."""
        if (table, name) == ("samples", RUN) and not any(RUN in part.types["samples"] for part in self._parts):
            return pa.chunked_array([pa.array(np.full(rows, number))])
        if (table, name) == ("samples", SHARE) and "shares" in self.types:
            return pa.chunked_array([pa.array(np.ones(rows))])
        return missing_lists(self._parts[number], table, name, self.types[table][name])

    def _shift(self, number: int, table: str, name: str) -> Any:
        """What is added to the numbers of one run's column; None for nothing."""
        if name in _STEPS:
            return self._first_steps[number]
        if (table, name) == ("samples", "datapoint") or name == "first_datapoint":
            return sum(self._rows(before, "samples") for before in range(number))
        if table in ("entries", "products") and name == "first_slot":
            layers = self._parts[number].columns(table, ["layer"])[0].to_pylist()
            return pa.array(
                [int(self._first_slots[extents_table(self._spaces[layer])][number]) for layer in layers], pa.int64()
            )
        if name == "first_slot":
            return int(self._first_slots[table][number])
        return None

    def _before(self, table: str, name: str) -> Integers:
        """int64[runs]: the sum of a column over the runs before each."""
        own = [
            int(np.asarray(part.columns(table, [name])[0]).sum()) if table in part.types else 0 for part in self._parts
        ]
        return np.cumsum([0, *own[:-1]])

    def _rows(self, number: int, table: str) -> int:
        part = self._parts[number]
        return part.rows(table) if table in part.types else 0

    def _labels(self) -> pa.Table:
        names = list(self.types["labels"])
        parts = [pa.table(part.columns("labels", names), names=names) for part in self._parts]
        # A label has one name, or each slot that is joined with them would count twice: the last that was said.
        said = {(row["dataset"], row["label"]): tuple(row.values()) for part in parts for row in part.to_pylist()}
        columns = list(zip(*said.values(), strict=True)) if said else [()] * len(names)
        kinds = [arrow_type(kind) for kind in self.types["labels"].values()]
        return pa.table([pa.chunked_array([pa.array(c, k)]) for c, k in zip(columns, kinds, strict=True)], names=names)
