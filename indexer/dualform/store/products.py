"""Which products of errors and keys a training rounded to half precision, of one layer.

Shapes: n products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.store.entries import Entries, Integers
from dualform.store.shard_tables import Tables, whole


@dataclass(frozen=True, eq=False)
class Products:
    """Ascending by entry."""

    first: Integers
    """int64[n]: the first entry of each; a product is that of consecutive entries."""
    stop: Integers
    """int64[n]: one past the last."""
    step: Integers
    copy: Integers
    """int64[n]: which copy of the weights each was computed with, of those of its step."""
    place: Integers
    """int64[n]: when it was added, among those of its step."""
    dtype: NDArray[np.object_]
    """[n]: "bfloat16" or "float16"."""

    @property
    def nbytes(self) -> int:
        return 6 * self.first.nbytes

    @classmethod
    def of(cls, tables: Tables, layer: str, entries: Entries) -> Products:
        """Of a layer with these entries."""
        table = whole(tables, "products")
        own = table.filter(pc.equal(table["layer"], layer))
        numbers = {name: np.asarray(own[name], dtype=np.int64) for name in ("first_slot", "slots", *_NUMBERS)}
        first = entries.of(numbers["first_slot"])
        order = np.argsort(first, kind="stable")
        kept = {name: numbers[name][order] for name in _NUMBERS}
        dtype = np.array(own["dtype"].to_pylist(), dtype=object)[order]
        return cls(first[order], first[order] + numbers["slots"][order], **kept, dtype=dtype)


_NUMBERS = ("step", "copy", "place")


def merged(parts: list[pa.Table]) -> pa.Table:
    """The products of several shards, each of which numbers its copies on its own."""
    found = [
        part.set_column(part.column_names.index("copy"), "copy", pc.add(pc.multiply(part["copy"], len(parts)), number))
        for number, part in enumerate(parts)
    ]
    return pa.concat_tables(found)
