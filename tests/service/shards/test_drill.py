"""Processes killed or frozen while they are asked: each is named in time, and replaced.

Every turn starts a process, which imports all that an engine needs: `make test` has six turns, `make drill` fifty.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

import dualform
from dualform.errors import Unavailable
from dualform.query.shards.engines import open_front
from dualform_service.shards import Fleet
from tests.query.shards.memories import write
from tests.service.shards.local_process import local_processes

NAMES = ["shard-00000", "shard-00001"]
DEADLINE = 0.4
TURNS = int(os.environ.get("DUALFORM_DRILL", "6"))
QUERIES = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)


def test_kills_and_freezes(tmp_path):
    write(tmp_path / "memory", [[3, 4, 2], [2, 2, 4]])
    with dualform.open(tmp_path / "memory", backend="numpy") as one:
        expected = one.topk("plain", QUERIES, 5)
    rng, started, late, recovered = np.random.default_rng(0), {}, [], []
    with Fleet(local_processes(tmp_path / "memory", started), lambda: NAMES, DEADLINE) as fleet:
        front = open_front(tmp_path / "memory", fleet, "numpy")

        def ask() -> float:
            """Seconds until there is an answer, which is whole, whatever happens to a process meanwhile."""
            began = time.monotonic()
            while True:
                try:
                    found = front.topk("plain", QUERIES, 5)
                except Unavailable:
                    assert time.monotonic() - began < 60
                    continue
                assert (found.ids.tobytes(), found.flat_scores.tobytes()) == (
                    expected.ids.tobytes(),
                    expected.flat_scores.tobytes(),
                )
                assert found.scan.missing == ()
                return time.monotonic() - began

        ask()
        for turn in range(TURNS):
            victim = int(rng.integers(len(NAMES)))
            blow = signal.SIGSTOP if turn % 3 == 0 else signal.SIGKILL
            process = started[victim].process
            timer = threading.Timer(rng.random() * 0.004, os.kill, (process.pid, blow))
            timer.start()
            refused = ""
            while NAMES[victim] not in refused:  # until the blow has met a question; others may be late meanwhile
                began = time.monotonic()
                try:
                    front.topk("plain", QUERIES, 5)
                except Unavailable as error:
                    refused = error.message
            late.append(time.monotonic() - began - DEADLINE)
            timer.join()
            recovered.append(ask())
            assert started[victim].process is not process
        front.close()
    # Where other tests have the processor, a few are named later, and a few processes, which take some tenths of a
    # second of it to start, come later.
    assert np.quantile(late, 0.8) <= 0.2
    assert max(late) <= 10
    assert np.quantile(recovered, 0.8) < 5
