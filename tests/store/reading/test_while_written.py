"""Readers of a memory that another process writes see whole steps at any moment, and keep them."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import NotAMemory
from dualform.store.batch import Batch
from dualform.store.reading.snapshot import Snapshot
from tests.reliability import report, rounds
from tests.store.small_memory import LAYERS, OTHERS, Expected, batches_of, expected, other_row, other_values

STEPS, BATCH, FLUSH_EVERY = 60, 16, 6


def record(path: Path, journal_seconds: float) -> None:
    """Put the same batches every time, with a commit now and then."""
    from dualform.record.sink import SinkThread
    from dualform.store.batch import Ending, Header
    from dualform.store.writing import writer

    writer.JOURNAL_SECONDS = journal_seconds
    ones = {"layer-0.weight": (5, 6), "layer-0.bias": (5,), "layer-1.weight": (3, 5)}
    initial = {name: np.ones(shape, np.float32) for name, shape in ones.items()}
    header = Header(path, LAYERS, "SGD", "sgd", "", initial, label_names={"first": ["zero", "one"]}, others=OTHERS)
    sink = SinkThread(lambda: writer.Writer(header))
    for step, one in enumerate(batches()):
        sink.put(replace(one, others=[other_row(step)]))
        if step % FLUSH_EVERY == FLUSH_EVERY - 1:
            sink.flush()
        time.sleep(0.01)
    sink.close(Ending(final={}))


def batches() -> list[Batch]:
    return batches_of([BATCH] * STEPS)


def check_steps(memory: Snapshot, whole: Expected) -> int:
    """Hold what a memory shows against the first steps of the recording; returns how many it shows."""
    slots = memory.count("sample")
    assert slots % BATCH == 0, "a step is half there"
    assert slots <= STEPS * BATCH
    if not slots:  # and no columns yet, for the first step says what they are
        return 0
    for layer in LAYERS:
        keys, values = memory.keys(layer.name), memory.values(layer.name)
        assert keys.entry_block(0, slots).tobytes() == whole.keys[layer.name][:slots].tobytes()
        assert values.block(0, slots).tobytes() == whole.values[layer.name][:slots].tobytes()
    for column in ("slot", "step", "row", "label", "sample", "dataset", "weight"):
        assert memory.column("sample", column).tolist() == whole.columns[column][:slots]
    assert memory.table("steps")["step"].to_pylist() == list(range(slots // BATCH))
    assert memory.others.moments == list(range(slots // BATCH))
    for at_step in memory.others.moments:
        assert all(np.array_equal(own, other_values(at_step)[n]) for n, own in memory.others.at(at_step).items())
    return slots // BATCH


@pytest.mark.soak
def test_a_reader_during_writing_sees_whole_steps_and_keeps_them(tmp_path):
    context, whole = multiprocessing.get_context("forkserver"), expected(batches(), LAYERS)
    count, moments = rounds(1, 20), list[int]()
    for number in range(count):
        path = tmp_path / str(number)
        # Every second recording writes a frame of its journal for each step, too.
        writing = context.Process(target=record, args=(path, 1e4 if number % 2 else 0.0))
        writing.start()
        held, seen = [], 0
        while writing.is_alive():
            try:
                memory = Snapshot.open(path)
            except NotAMemory:
                assert not held, "a memory that was there is gone"
                continue
            steps = check_steps(memory, whole)
            assert steps >= seen, "what was there is gone"
            if steps > seen:
                held.append((memory, steps))
                moments.append(steps)
            seen = steps
            time.sleep(0.01)
        writing.join()
        assert writing.exitcode == 0
        for memory, steps in held:
            assert check_steps(memory, whole) == steps, "what a reader holds has changed"
        assert check_steps(Snapshot.open(path), whole) == STEPS
    assert any(0 < steps < STEPS for steps in moments)
    report(
        "a memory opened again and again while another process writes it",
        seed=0,
        count=len(moments),
        outcome="each time whole steps, none of them gone again, and the same ones once the writing has ended",
    )
