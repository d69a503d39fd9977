"""A memory of several shards reads as one that one process wrote, in the order (step, shard, call, row, position)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dualform.errors import NotAMemory
from dualform.query.engine import Engine
from dualform.query.score.backends import choose
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from tests.store.small_memory import LAYERS, TOKENS, batches_of, expected, open_writer, token_batch

SHARDS, STEPS = 2, 5


def write(path, layers, batches, finish=(True, True), until=(STEPS, STEPS)):
    writers = [open_writer(path, layers, shard_number=n, shards=SHARDS, journal_seconds=0.0) for n in range(SHARDS)]
    for step in range(STEPS):
        for number, writer in enumerate(writers):
            if step < until[number]:
                writer.append(batches[number][step])
            if step == number:
                writer.commit()
    for writer, done in zip(reversed(writers), reversed(finish), strict=True):
        writer.close() if done else writer.abandon()


def tokens(rows):
    return [
        [token_batch(np.random.default_rng(7 * number + step), step, rows + number) for step in range(STEPS)]
        for number in range(SHARDS)
    ]


def merged(columns: list[Mapping[str, list]], last=STEPS):
    """(shard, slot within it) of every slot, in order."""
    places = [(own["step"][i], n, i) for n, own in enumerate(columns) for i in range(len(own["slot"]))]
    return [(n, i) for step, n, i in sorted(places) if step < last]


def test_slots_entries_and_rows_are_in_order(tmp_path):
    batches = tokens(3)
    write(tmp_path / "memory", TOKENS, batches)
    memory = Snapshot.open(tmp_path / "memory")
    wanted = [expected(own, TOKENS) for own in batches]
    places = merged([one.tokens for one in wanted])
    assert memory.count("token") == len(places)
    for name in memory.columns("token"):
        column = list(range(len(places))) if name == "slot" else [wanted[n].tokens[name][i] for n, i in places]
        assert memory.column("token", name).tolist() == column, name
        assert memory.space("token").at(np.array([9, 0, 30]), [name])[name].to_pylist() == [
            column[i] for i in (9, 0, 30)
        ]
    for layer in TOKENS:
        own = [{slot: entry for entry, slot in enumerate(one.entries[layer.name])} for one in wanted]
        rows = [(slot, n, own[n][i]) for slot, (n, i) in enumerate(places) if i in own[n]]
        entries = memory.entries(layer.name)
        assert entries.slots_of(np.arange(entries.count)).tolist() == [slot for slot, _, _ in rows]
        if layer.keys:
            keys, values = memory.keys(layer.name), memory.values(layer.name)
            stacked = [wanted[n].keys[layer.name][entry] for _, n, entry in rows]
            assert keys.entry_block(0, keys.entries).tobytes() == np.stack(stacked).tobytes()
            stacked = [wanted[n].values[layer.name][entry] for _, n, entry in rows]
            assert values.block(0, entries.count).tobytes() == np.stack(stacked).tobytes()
    assert check_memory(tmp_path / "memory") == []


def test_answers_are_those_of_one_memory_written_whole_bit_for_bit(tmp_path):
    sizes = [4, 3, 5, 2, 4]
    parts = [batches_of(sizes, seed) for seed in range(SHARDS)]
    write(tmp_path / "shards", LAYERS, parts)
    shards = Engine(Snapshot.open(tmp_path / "shards"), choose("numpy"))
    view = shards._view
    queries = np.random.default_rng(9).normal(size=(4, 5)).astype(np.float32)
    columns = [expected(own, LAYERS) for own in parts]
    places = merged([one.columns for one in columns])
    keys = np.stack([columns[n].keys["layer-1"][i] for n, i in places])
    assert view.snapshot.keys("layer-1").of_entries(np.arange(len(places))).tobytes() == keys.tobytes()

    from tests.query import arrays

    labels = [columns[n].columns["label"][i] for n, i in places]
    whole = arrays.engine(arrays.memory({"layer-1": keys}, {"label": labels}))
    for score in ("dot", "abs"):
        one, other = (
            engine.topk("layer-1", queries, k=5, where="label > 2", score=score) for engine in (whole, shards)
        )
        assert one.ids.tolist() == other.ids.tolist()
        assert one.flat_scores.tobytes() == other.flat_scores.tobytes()
    one, other = (engine.group_sum("layer-1", queries, by="label") for engine in (whole, shards))
    assert one.groups == other.groups
    assert one.sums.tobytes() == other.sums.tobytes()
    shards.close()


def test_a_live_memory_ends_at_the_last_step_that_every_shard_has(tmp_path):
    batches = tokens(2)
    write(tmp_path / "memory", TOKENS, batches, finish=(False, False), until=(5, 3))
    memory = Snapshot.open(tmp_path / "memory")
    wanted = [expected(own, TOKENS) for own in batches]
    places = merged([one.tokens for one in wanted], last=3)
    assert (memory.steps, memory.count("token"), memory.recording) == (3, len(places), True)
    assert memory.column("token", "sample").tolist() == [wanted[n].tokens["sample"][i] for n, i in places]
    assert memory.keys("every").entries == memory.entries("every").count == len(places)


def test_a_shard_that_has_not_begun_is_named(tmp_path):
    open_writer(tmp_path / "memory", shards=2).abandon()
    with pytest.raises(NotAMemory) as caught:
        Snapshot.open(tmp_path / "memory")
    assert str(caught.value) == (
        f"{tmp_path / 'memory'} is incomplete: shard-00001 has not begun. "
        "Wait until every process of the training has taken its first step."
    )
