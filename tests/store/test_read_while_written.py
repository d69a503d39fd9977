"""Whoever reads a memory while another process writes it sees whole steps, the same ones for as long as it looks."""

from __future__ import annotations

import pytest

from dualform.errors import NotAMemory
from dualform.store.reading.snapshot import Snapshot
from tests.reliability import report, rounds
from tests.store.small_memory import LAYERS, expected
from tests.store.test_killed import FLUSH_EVERY, STEPS, batches, check_steps, processes, record

__all__ = ["processes"]


@pytest.mark.soak
def test_a_reader_during_writing_sees_whole_steps_and_keeps_them(processes, tmp_path):
    whole, count, moments = expected(batches(), LAYERS), rounds(1, 20), list[int]()
    for number in range(count):
        path = tmp_path / str(number)
        # Every second recording writes a frame of its journal for each step, too.
        options = {"flush_every": FLUSH_EVERY, "journal_seconds": 1e4 if number % 2 else 0.0}
        options |= {"pause": 0.01, "ends": True}
        writing = processes.Process(target=record, args=(path, tmp_path / f"{number}.log"), kwargs=options)
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
