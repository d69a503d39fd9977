"""What one shard or run says of rows alone, as lists of its slots, where another one says it of single slots.

A column of single slots hides that of the samples (tables.py), which would hide in all shards what it hides in one.

Shapes: E extents of a space, T slots of them, D datapoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from dualform.store.extents import PLAIN, Extents
from dualform.store.list_columns import ListColumns
from dualform.store.manifest import Manifest
from dualform.store.samples import TABLE, Samples
from dualform.store.shard_tables import Tables, whole
from dualform.store.tables import ColumnTypes, arrow_type
from dualform.store.user_columns import as_common, common_types


def missing_lists(part: Tables, table: str, name: str, kind: str) -> pa.ChunkedArray:
    """[E]: a column that the table of a shard or run does not have, of type `kind`.

    Of lists, an entry for each slot, which is what is said of its row; else, and where nothing is, NULL. Raises Damaged
    as reading columns does, and BadInput as `as_common`.
    """
    rows = part.rows(table) if table in part.types else 0
    of_samples = pa.types.is_list(arrow_type(kind)) and rows and name in part.types[TABLE]
    if not of_samples:
        return pa.chunked_array([pa.nulls(rows, arrow_type(kind))])
    samples = Samples(part)
    said = as_common(name, samples.column(name), kind.removesuffix("[]"))
    if said.null_count == len(said):
        return pa.chunked_array([pa.nulls(rows, arrow_type(kind))])
    extents = Extents(whole(part, table, PLAIN), ListColumns(part, table), samples.unknown)
    datapoints = extents.every_datapoint()
    entries = pa.array(said).take(pa.array(datapoints, mask=datapoints < 0))
    ends = pa.array(np.cumsum([0, *extents.slots]), pa.int32())
    return pa.chunked_array([pa.ListArray.from_arrays(ends, entries)])


def types_for_slots(columns: Mapping[str, ColumnTypes], manifests: Sequence[Manifest]) -> dict[str, dict[str, str]]:
    """The `columns` of all manifests, in which those of single slots also hold what one of them says of rows alone."""
    found = {table: dict(types) for table, types in columns.items()}
    for space in {space for manifest in manifests for space in manifest.spaces}:
        for manifest in manifests:
            of_rows, own = manifest.columns[TABLE], manifest.columns.get(space, {})
            hidden = {name: of_rows[name] for name in found[space] if name in of_rows and name not in own}
            found[space] = common_types(found[space], hidden)
    return found
