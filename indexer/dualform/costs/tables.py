"""What a memory's tables will take: rows of a few steps are written again and again, with numbers that go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualform.costs import texts
from dualform.store import shard
from dualform.store.samples import TABLE as SAMPLES
from dualform.store.snapshot import Snapshot
from dualform.store.tables import arrow_type

_GOES_ON = frozenset(
    {"step", "first_step", "at_step", "datapoint", "first_datapoint", "first_slot", "first_entry", "slot"}
)
"""Columns that count."""
_FIXED = frozenset({"labels", "segments", "other_segments", "defects"})
"""Tables that do not grow with each step."""
_MOST_ROWS, _MOST_ENTRIES = 200_000, 2_000_000
"""Of one table, and of its lists, that are written to see what they take."""


@dataclass(frozen=True)
class Repeats:
    """Of a layer whose inputs repeat."""

    distinct: int
    """Stored rows of keys, at the end."""
    again: bool
    """Whether inputs come again."""
    per_row: int
    """Keys of a stored row."""


def grown_bytes(
    memory: Snapshot, scratch: Path, times: float, repeats: Mapping[str, Repeats], samples: int | None
) -> int:
    """Bytes of the tables' file once the training is so many times as long; `scratch`: a folder to write to;
    `repeats`: by layer; `samples`: how many distinct ones there are, where that is known.
    """
    types = memory.manifest.tables()
    seen = memory.whole_tables(types)
    growing = {name: rows for name, rows in seen.items() if rows.num_rows and _grows(name, rows, len(memory.layers))}
    tiles = max(2, min([ceil(times), *(_most_tiles(rows) for rows in growing.values())]))
    sizes = []
    for count in (1, tiles):
        more = {name: _tiled(name, rows, count, repeats, samples) for name, rows in growing.items()}
        path = scratch / f"{count}-{shard.FILE}"
        shard.append(path, 0, seen | more, shard.create(path, types, []))
        sizes.append(path.stat().st_size)
    once, several = sizes
    return round(once + (several - once) * max(times - 1, 0) / (tiles - 1))


def _grows(name: str, rows: pa.Table, layers: int) -> bool:
    """A layer that is called in every step has one range of slots, however many there are."""
    return name not in _FIXED and (name != "entries" or rows.num_rows > layers)


def _most_tiles(rows: pa.Table) -> int:
    lists = [column for column in rows.columns if pa.types.is_list(column.type)]
    entries = max((pc.sum(pc.list_value_length(column)).as_py() or 0 for column in lists), default=0)
    return int(min(_MOST_ROWS // rows.num_rows, _MOST_ENTRIES // max(entries, 1)))


def _tiled(name: str, rows: pa.Table, count: int, repeats: Mapping[str, Repeats], samples: int | None) -> pa.Table:
    """The rows so many times after one another."""
    whole = pa.concat_tables([rows] * count).combine_chunks()
    for place, column in enumerate(whole.column_names):
        if column in _GOES_ON:
            whole = whole.set_column(place, column, _going_on(rows[column], count))
    rng = np.random.default_rng(0)
    if name == "digests":  # which no column holds twice
        for column in ("keys", "columns"):
            width = max(len(rows[column][0].as_py() or "") // 2, 1)
            digests = pa.array([rng.bytes(width).hex() for _ in range(whole.num_rows)])
            whole = whole.set_column(whole.column_names.index(column), column, digests)
    if name == SAMPLES:
        for column in filter(lambda column: texts.go_on(rows[column]), rows.column_names):
            more = texts.more(rows[column], count, samples, rng)
            whole = whole.set_column(whole.column_names.index(column), column, more)
    if name == "key_rows":
        whole = whole.set_column(whole.column_names.index(name), name, _key_rows(whole, rng, repeats))
    return whole


def _going_on(column: pa.ChunkedArray, count: int) -> pa.Array:
    missing = np.tile(column.is_null().to_numpy(), count)
    numbers = column.fill_null(0).to_numpy()
    span = int(numbers.max()) - int(numbers.min()) + 1
    added = np.repeat(np.arange(count, dtype=np.int64) * span, len(numbers))
    return pa.array((np.tile(numbers, count) + added).astype(numbers.dtype), mask=missing)


def _key_rows(rows: pa.Table, rng: np.random.Generator, repeats: Mapping[str, Repeats]) -> pa.Array:
    """Rows of keys as they come where inputs repeat: in any order; else one after another."""
    lists, next_row = [], dict.fromkeys(repeats, 0)
    for layer, entries in zip(
        rows["layer"].to_pylist(), pc.list_value_length(rows["key_rows"]).to_pylist(), strict=True
    ):
        own = repeats[layer]
        number = entries // own.per_row
        first = rng.integers(0, max(own.distinct, 1), number) if own.again else next_row[layer] + np.arange(number)
        next_row[layer] += number
        lists.append((first[:, None] * own.per_row + np.arange(own.per_row)).reshape(-1))
    return pa.array(lists, type=arrow_type("BIGINT[]"))
