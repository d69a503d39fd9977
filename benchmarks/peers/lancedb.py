"""LanceDB without an index: an exhaustive search over its columnar files."""

from __future__ import annotations

from pathlib import Path

import lancedb
import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Data, Mask
from benchmarks.peers import SearchOnly, Slots
from benchmarks.peers.duckdb import key_table


class Lancedb(SearchOnly):
    name = "LanceDB"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        database = lancedb.connect(str(folder / "lance"))
        kept = (folder / "lance" / "slots.lance").exists()
        self._table = database.open_table("slots") if kept else database.create_table("slots", key_table(data))

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        asked = self._table.search(queries[0] if len(queries) == 1 else list(queries))
        asked = asked.distance_type("dot").limit(k).select(["slot", "_distance"])
        if mask is not None:
            asked = asked.where(mask.where, prefilter=True)
        rows = asked.to_arrow()
        slots = rows["slot"].to_numpy()
        if len(queries) == 1:
            return [slots]
        of_query = rows["query_index"].to_numpy()
        return [slots[of_query == query] for query in range(len(queries))]
