"""Several shards, and several runs, read as one memory that one process wrote, whatever each says of its slots."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import dualform
from dualform.errors import BadInput, NotAMemory
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.store.batch import Batch
from dualform.store.maintenance.check import check_memory
from dualform.store.reading import space
from dualform.store.reading.runs import Runs
from dualform.store.reading.snapshot import Snapshot
from tests.store.small_memory import (
    LENGTH,
    TOKENS,
    append_all,
    check_rows,
    expected,
    open_writer,
    token_batch,
    write_shards,
)

SHARDS, STEPS = 2, 5


def token_shards(rows):
    return [
        [token_batch(np.random.default_rng(7 * number + step), step, rows + number) for step in range(STEPS)]
        for number in range(SHARDS)
    ]


def interleaved(shards):
    """The batches of several shards in the order of their slots: of each step, those of the first shard come first."""
    return [one for of_step in zip(*shards, strict=True) for one in of_step]


def check(memory, wanted, few):
    """Every column, of a few slots before it is held and of all; and every entry, key and value."""
    assert memory.count("token") == len(wanted.tokens["slot"])
    for name in memory.columns("token"):
        column = wanted.tokens[name]
        assert memory.space("token").at(np.array(few), [name])[name].to_pylist() == [column[slot] for slot in few], name
        assert memory.column("token", name).tolist() == column, name
    check_rows(memory, TOKENS, wanted)


def test_slots_entries_and_rows_are_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "LONG", 1)  # so that few slots are looked up
    batches = token_shards(3)
    write_shards(tmp_path / "memory", TOKENS, batches)
    memory = Snapshot.open(tmp_path / "memory")
    check(memory, expected(interleaved(batches), TOKENS), [100, 9, *range(0, 161, 20)])
    assert check_memory(tmp_path / "memory") == []


def test_a_live_memory_ends_at_the_last_step_that_every_shard_has(tmp_path):
    batches = token_shards(2)
    write_shards(tmp_path / "memory", TOKENS, batches, finish=False, until=(5, 3))
    memory = Snapshot.open(tmp_path / "memory")
    assert (memory.steps, memory.recording) == (3, True)
    check(memory, expected(interleaved([own[:3] for own in batches]), TOKENS), [9, 0])


def test_a_shard_that_has_not_begun_is_named(tmp_path):
    open_writer(tmp_path / "memory", shards=2).abandon()
    with pytest.raises(NotAMemory) as caught:
        Snapshot.open(tmp_path / "memory")
    assert str(caught.value) == (
        f"{tmp_path / 'memory'} is incomplete: shard-00001 has not begun. "
        "Wait until every process of the training has taken its first step."
    )


FIRST, SECOND = 4, 5


def tokens(steps: int, seed: int) -> list[Batch]:
    return [token_batch(np.random.default_rng(100 * seed + step), step, 3) for step in range(steps)]


def write_run(path, batches, finish=True):
    writer = open_writer(path, TOKENS, journal_seconds=60.0 if finish else 0.0)
    append_all(writer, batches, (1,))
    writer.close() if finish else writer.abandon()
    return path


@pytest.mark.parametrize(("long", "finish"), [(1 << 22, True), (1, False)], ids=["read whole", "looked up"])
def test_slots_entries_and_rows_are_those_of_one_memory(tmp_path, monkeypatch, long, finish):
    monkeypatch.setattr(space, "LONG", long)
    first, second = tokens(FIRST, 1), tokens(SECOND, 2)
    memory = Runs.of([write_run(tmp_path / "a", first), write_run(tmp_path / "b", second, finish)])
    wanted = expected([*first, *(replace(one, step=one.step + FIRST) for one in second)], TOKENS)
    wanted.tokens["run"] = [int(step >= FIRST) for step in wanted.tokens["step"]]
    count = len(wanted.tokens["slot"])
    assert (memory.steps, memory.recording) == (FIRST + SECOND, not finish)
    check(memory, wanted, [count - 1, 0, 5, 5, count // 2])
    assert memory.table("steps")["step"].to_pylist() == list(range(FIRST + SECOND))
    assert memory.table("steps")["first_step"].to_pylist() == list(range(FIRST + SECOND))
    assert len(set(memory.table("samples")["datapoint"].to_pylist())) == memory.table("samples").num_rows


def test_a_column_of_two_types_is_refused_unless_they_are_of_ranks_of_one_training(tmp_path):
    write_run(tmp_path / "a", tokens(2, 1))
    write_run(tmp_path / "b", [replace(one, samples={**one.samples, "weight": np.arange(3)}) for one in tokens(2, 2)])
    with pytest.raises(BadInput) as caught:
        Runs.of([tmp_path / "a", tmp_path / "b"])
    assert str(caught.value) == (
        f"column 'weight' is BIGINT in {tmp_path / 'b'}, but DOUBLE in an earlier run. Open these runs one by one."
    )
    parts = [Snapshot.open(tmp_path / name) for name in ("a", "b")]
    memory = Runs(parts, [tmp_path])
    assert memory.columns("token")["weight"] == "DOUBLE"
    own = [part.column("token", "weight") for part in parts]
    assert memory.column("token", "weight").tolist() == [*own[0].tolist(), *own[1].astype(float).tolist()]


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


def wanted(batch, spoken):
    """What is said of the slots of each call, by plain loops."""
    other = batch.extents[1]
    if len(spoken) != ROWS:
        return [*spoken.tolist(), *[None] * other.slots]
    return [*np.repeat(spoken, LENGTH).tolist(), *[spoken.tolist()[row] if row >= 0 else None for row in other.row]]


def shards(path, batches):
    write_shards(path, TOKENS, [[one] for one in batches])
    assert check_memory(path) == []
    return Engine(Snapshot.open(path), choose("numpy"))


def runs(path, batches):
    for name, batch in zip("ab", batches, strict=True):
        write_shards(path / name, TOKENS, [[batch]])
    return dualform.open([path / "a", path / "b"], backend="numpy")


def steps_of(first, second):
    return [step(seed, spoken) for seed, spoken in zip(SEEDS, (first, second), strict=True)]


@pytest.mark.parametrize(
    ("opened", "of_rows", "of_slots", "rows_first"),
    [
        (shards, "integers", "integers", True),
        (shards, "integers", "texts", False),
        (runs, "floats", "integers", False),
        (runs, "texts", "integers", True),
    ],
)
def test_each_slot_reads_what_was_said_of_it(opened, of_rows, of_slots, rows_first, tmp_path):
    said = (OF_ROWS[of_rows], OF_SLOTS[of_slots]) if rows_first else (OF_SLOTS[of_slots], OF_ROWS[of_rows])
    batches = steps_of(*said)
    memory = opened(tmp_path / "m", batches)
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


def test_sql_reads_the_slots_of_all_shards(tmp_path):
    """Each shard has rows 0 to 2 of the same step, and slots of which no row is known."""
    memory = shards(tmp_path / "m", steps_of(OF_ROWS["integers"], OF_SLOTS["integers"]))
    with memory:
        space = memory._view.snapshot.space("token")
        wanted = space.at(np.arange(space.count), list(space.columns))
        assert wanted["row"].null_count
        assert -5 in wanted["sample"].to_pylist()  # what is said of those slots
        found = memory.sql("SELECT * FROM slots ORDER BY slot")
        assert {name: column.tolist() for name, column in found.items()} == wanted.to_pydict()


INTEGERS, FLOATS = np.array([1, -2, 2**53]), np.array([1.5, 1.0, np.nan])
TEXTS, BOOLEANS = np.array(["1", None, "ü"], dtype=object), np.array([True, False, True])


def said_of_shards(path, *columns) -> Engine:
    """A memory of a step of one shard for each of `columns`, which are said of samples as `said`."""
    batches = []
    for number, column in enumerate(columns):
        batch = token_batch(np.random.default_rng(number), 0, ROWS)
        call, *others = batch.extents
        tokens = {} if column is None else {"spoken": np.repeat(column, 4)}
        said = {} if column is None else {"said": column}
        batch = replace(batch, samples=batch.samples | said, extents=[replace(call, columns=tokens), *others])
        batches.append([replace(batch, unknown=(batch.unknown or {}) | dict.fromkeys(said))])
    write_shards(path, TOKENS, batches)
    return Engine(Snapshot.open(path), choose("numpy"))


def test_integers_and_floats_are_floats(tmp_path):
    with said_of_shards(tmp_path / "m", INTEGERS, FLOATS) as engine:
        assert engine.info().columns["token"]["said"] == "DOUBLE"
        memory = engine._view.snapshot
        regular = np.flatnonzero(memory.column("token", "call") == 0)
        wanted = np.repeat(np.concatenate([INTEGERS, FLOATS]).astype(float), 4)
        for name in ("said", "spoken"):
            column = memory.column("token", name)[regular]
            assert not np.ma.is_masked(column)
            assert np.ma.getdata(column).tobytes() == wanted.tobytes(), name
        where = "said = 1 AND call = 0"  # an integer of the first shard, and a float of the second
        found = engine.topk("every", QUERY, k=99, where=where).slots[0]
        assert sorted(found.tolist()) == sorted(regular[wanted == 1].tolist())


@pytest.mark.parametrize("first", [FLOATS, BOOLEANS], ids=["floats", "booleans"])
def test_what_has_no_number_in_common_is_text(first, tmp_path):
    with said_of_shards(tmp_path / "m", first, TEXTS, None) as engine:
        assert engine.info().columns["token"]["said"] == "VARCHAR"
        memory = engine._view.snapshot
        regular = np.flatnonzero(memory.column("token", "call") == 0)
        wanted = [None if text is None else str(text) for text in TEXTS for _ in range(4)] + [None] * 4 * ROWS
        for name in ("said", "spoken"):
            read = memory.column("token", name)[regular].tolist()
            assert read[4 * ROWS :] == wanted
            own = [first.dtype.type(text == "true" if first is BOOLEANS else text) for text in read[: 4 * ROWS]]
            assert np.array(own).tobytes() == np.repeat(first, 4).tobytes()  # the text says all of the value
        assert check_memory(tmp_path / "m") == []


def test_integers_that_no_float_holds_are_refused_and_the_others_stay(tmp_path):
    said = "has integers beyond 2**53 in one shard and floats in another"
    with said_of_shards(tmp_path / "m", np.array([2**53 + 1, 2, 3]), FLOATS) as engine:
        with pytest.raises(BadInput, match=re.escape(f"column 'said' {said}")):
            engine.topk("every", np.ones((1, 4), np.float32), k=1, where="said = 2")
        assert len(engine.topk("every", np.ones((1, 4), np.float32), k=1, where="sample >= 0").slots[0]) == 1
    assert sorted(re.findall("'([^']*)' " + re.escape(said), " ".join(check_memory(tmp_path / "m")))) == [
        "said",
        "spoken",
    ]
