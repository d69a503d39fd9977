"""The columns of lists of a table of extents, each read when it is first needed."""

from __future__ import annotations

import pyarrow as pa

from dualform.store.entries import Integers
from dualform.store.lists import Lists
from dualform.store.shard_tables import Tables


class ListColumns:
    """Safe to use from several threads: what is made twice at once is the same."""

    def __init__(self, tables: Tables, table: str) -> None:
        self._tables, self._table = tables, table
        self._read = dict[str, Lists]()

    def whole(self, name: str) -> Lists:
        """The lists of all extents."""
        if name not in self._read:
            self._read[name] = Lists(self._tables.columns(self._table, [name])[0])
        return self._read[name]

    def some(self, name: str, extents: Integers) -> Lists | None:
        """Those of some extents alone, in their order; None where all are at hand."""
        if name in self._read:
            return None
        return Lists(pa.chunked_array([self._tables.some(self._table, name, extents)]))
