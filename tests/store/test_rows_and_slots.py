"""A column that one shard or run says of rows, and another of single slots, reads as what was said of each slot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import dualform
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.store.batch import Ending
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from tests.store.small_memory import LENGTH, TOKENS, open_writer, token_batch

ROWS = 3
SEEDS = 2, 3
"""Of batches with slots of which no row is known."""
QUERY = np.ones((1, 4), np.float32)
OF_ROWS = {
    "integers": np.array([7, 8, 9]),
    "floats": np.array([1.5, 2.0, -1.0]),
    "texts": np.array(["a", None, "b"], dtype=object),
}
OF_SLOTS = {
    "integers": np.arange(ROWS * LENGTH),
    "floats": np.arange(ROWS * LENGTH) / 4,
    "texts": np.array(["a", "ü", None] * LENGTH, dtype=object),
}


def step(seed, spoken):
    """A step in which `spoken` is said: of its rows [3], or of the single slots [12] of its first call."""
    batch = token_batch(np.random.default_rng(seed), 0, ROWS)
    call, other = batch.extents
    if len(spoken) == ROWS:
        return replace(
            batch, samples=batch.samples | {"spoken": spoken}, unknown={**(batch.unknown or {}), "spoken": None}
        )
    return replace(batch, extents=[replace(call, columns={"spoken": spoken}), other])


def write(writer, batch, **options):
    writer.append(batch)
    writer.close(Ending(**options))


def wanted(batch, spoken):
    """What is said of the slots of each call, by plain loops."""
    other = batch.extents[1]
    if len(spoken) != ROWS:
        return [*spoken.tolist(), *[None] * other.slots]
    return [*np.repeat(spoken, LENGTH).tolist(), *[spoken.tolist()[row] if row >= 0 else None for row in other.row]]


def shards(path, first, second):
    writers = [open_writer(path, TOKENS, shard_number=number, shards=2) for number in range(2)]
    batches = [step(seed, spoken) for seed, spoken in zip(SEEDS, (first, second), strict=True)]
    for writer, batch in list(zip(writers, batches, strict=True))[::-1]:
        write(writer, batch)
    assert check_memory(path) == []
    return Engine(Snapshot.open(path), choose("numpy")), batches


def runs(path, first, second):
    batches = [step(seed, spoken) for seed, spoken in zip(SEEDS, (first, second), strict=True)]
    for name, batch in zip("ab", batches, strict=True):
        write(open_writer(path / name, TOKENS), batch)
    return dualform.open([path / "a", path / "b"], backend="numpy"), batches


KINDS = [
    ("integers", "integers", True), ("floats", "integers", False), ("texts", "integers", True),
    ("integers", "texts", False),
]  # fmt: skip
"""Of rows, of slots, and whether the shard of rows comes first."""


@pytest.mark.parametrize("opened", [shards, runs])
@pytest.mark.parametrize(("of_rows", "of_slots", "rows_first"), KINDS)
def test_each_slot_reads_what_was_said_of_it(opened, of_rows, of_slots, rows_first, tmp_path):
    said = (OF_ROWS[of_rows], OF_SLOTS[of_slots]) if rows_first else (OF_SLOTS[of_slots], OF_ROWS[of_rows])
    memory, batches = opened(tmp_path / "m", *said)
    expected = [value for batch, own in zip(batches, said, strict=True) for value in wanted(batch, own)]
    kinds = {of_rows, of_slots}
    if kinds == {"integers", "floats"}:
        expected = [None if value is None else float(value) for value in expected]
    elif len(kinds) > 1:
        expected = [None if value is None else str(value) for value in expected]
    with memory:
        column = memory._view.snapshot.column("token", "spoken")
        assert column.tolist() == expected
        there = next(value for value in expected if value is not None)
        literal = f"'{there}'" if isinstance(there, str) else there
        found = memory.topk("every", QUERY, k=99, where=f"spoken = {literal}").slots[0]
        assert sorted(found.tolist()) == [slot for slot, value in enumerate(expected) if value == there]
        groups = memory.group_sum("every", QUERY, by="spoken")
        assert dict(zip(groups.groups, groups.counts.tolist(), strict=True)) == Counter((value,) for value in expected)
        few = [len(expected) - 2, 1, 5]
        assert memory.slots(few, "token")["spoken"].tolist() == [expected[slot] for slot in few]


def test_few_slots_are_looked_up_without_the_whole_column(tmp_path, monkeypatch):
    monkeypatch.setattr("dualform.store.reading.space.LONG", 0)
    said = OF_ROWS["integers"], OF_SLOTS["integers"]
    memory, batches = shards(tmp_path / "m", *said)
    first, second = (wanted(batch, own) for batch, own in zip(batches, said, strict=True))
    with memory:
        found = memory._view.snapshot.space("token").extents
        assert found.said("spoken", found.of(np.array([len(first) + 3, 2]))).to_pylist() == [second[3], first[2]]
        assert "spoken" not in found._lists._read


def test_sql_reads_the_slots_of_all_shards(tmp_path):
    """Each shard has rows 0 to 2 of the same step, and slots of which no row is known."""
    memory, _ = shards(tmp_path / "m", OF_ROWS["integers"], OF_SLOTS["integers"])
    with memory:
        space = memory._view.snapshot.space("token")
        wanted = space.at(np.arange(space.count), list(space.columns))
        assert wanted["row"].null_count
        assert -5 in wanted["sample"].to_pylist()  # what is said of those slots
        found = memory.sql("SELECT * FROM slots ORDER BY slot")
        assert {name: column.tolist() for name, column in found.items()} == wanted.to_pydict()
