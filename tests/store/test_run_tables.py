"""Tables of several runs as those of one."""

import pyarrow as pa

from dualform.store.reading.runs import RunTables
from dualform.store.reading.shard_tables import HeldTables

TYPES = {"extents_token": {"step": "BIGINT", "first_slot": "BIGINT", "slots": "BIGINT"}}


def test_a_space_that_no_layer_is_in_has_slots_all_the_same():
    parts = [
        HeldTables({"extents_token": pa.table({"step": [0, 1], "first_slot": [0, 4], "slots": [4, 3]})}, TYPES),
        HeldTables({"extents_token": pa.table({"step": [0], "first_slot": [0], "slots": [2]})}, TYPES),
    ]
    tables = RunTables(parts, [0, 2], TYPES, {}, ["a", "b"])
    step, first = tables.columns("extents_token", ["step", "first_slot"])
    assert (step.to_pylist(), first.to_pylist()) == ([0, 1, 2], [0, 4, 7])
