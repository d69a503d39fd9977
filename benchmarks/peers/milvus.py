"""Milvus Lite: a FLAT index in its own file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient

from benchmarks.data import Data, Mask
from benchmarks.peers import SearchOnly, Slots
from benchmarks.timing import Cannot

AT_ONCE = 4000
"""Slots of an insert: 13 MB of keys, under the 64 MB of its messages."""


class Milvus(SearchOnly):
    name = "Milvus Lite"

    def build(self, data: Data, folder: Path, patience: float) -> None:
        kept = (folder / "milvus.done").exists()
        self._client = MilvusClient(str(folder / "milvus.db"))
        if not kept:
            self._create(data.keys.shape[1])
            self._insert(data, time.monotonic() + patience, patience)
            (folder / "milvus.done").touch()
        self._client.load_collection("slots")

    def _create(self, width: int) -> None:
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("slot", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        schema.add_field("dataset", DataType.VARCHAR, max_length=64)
        schema.add_field("sample", DataType.INT64)
        schema.add_field("coin", DataType.BOOL)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        self._client.create_collection("slots", schema=schema, index_params=index)

    def _insert(self, data: Data, until: float, patience: float) -> None:
        columns = {name: data.columns[name].tolist() for name in ("dataset", "sample", "coin")}
        for start in range(0, len(data.keys), AT_ONCE):
            if time.monotonic() > until:
                raise Cannot(f"it had loaded {start:,} of {len(data.keys):,} slots after {patience:.0f} s")
            rows: list[dict[str, Any]] = [
                {"slot": slot, "vector": data.keys[slot], **{name: column[slot] for name, column in columns.items()}}
                for slot in range(start, min(start + AT_ONCE, len(data.keys)))
            ]
            self._client.insert("slots", rows)

    def top(self, queries: NDArray[np.float32], k: int, mask: Mask | None) -> Slots:
        found = self._client.search(
            "slots",
            queries,
            limit=k,
            filter="" if mask is None else _filter(mask),
            search_params={"metric_type": "IP"},
        )
        return [np.array([hit["slot"] for hit in hits], dtype=np.int64) for hits in found]

    def close(self) -> None:
        self._client.close()


def _filter(mask: Mask) -> str:
    value = str(mask.value).lower() if isinstance(mask.value, bool) else repr(mask.value)
    return f"{mask.column} == {value}"
