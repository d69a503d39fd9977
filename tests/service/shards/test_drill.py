"""Processes killed or frozen while they are asked: each is named in time, and replaced.

They are processes of this machine, which can be killed and stopped by their numbers, and work on one share at a time. A
server of processes imports what they need once and then forks them: a new one takes milliseconds. `make test` has six
turns, `make drill` fifty.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import dualform
from dualform.errors import Unavailable
from dualform.query.shards.engines import Reply, open_front, open_shard
from dualform.query.shards.shards import ShardQuestion
from dualform_service.shards import Fleet, Launch
from tests.query.shards.memories import write
from tests.service.shards.test_fleet import QUERIES, answered

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "tests.service.shards.test_drill"])


def _answer(connection: Connection, path: Path, number: int) -> None:
    engine, workers, sending = open_shard(path, number, "numpy"), ThreadPoolExecutor(1), threading.Lock()

    def reply(name: int, asked: ShardQuestion | None, seconds: float) -> None:
        answer = engine.reply(asked, seconds)
        with sending:
            connection.send((name, answer))

    while True:
        match connection.recv():
            case str(given_up):
                engine.give_up(given_up)
            case asked:
                workers.submit(reply, *asked)


class LocalProcess:
    """ShardAnswerer."""

    def __init__(self, path: Path, number: int) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_answer, args=(theirs, path, number), daemon=True)
        self.process.start()
        theirs.close()
        self._lock, self._names = threading.Lock(), itertools.count()
        self._futures: dict[int, Future[Reply]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, asked, seconds):
        future: Future[Reply] = Future()
        with self._lock:
            name = next(self._names)
            self._futures[name] = future
            self._connection.send((name, asked, seconds))
        return future

    def give_up(self, name):
        with self._lock:
            self._connection.send(name)

    def _read(self) -> None:
        try:
            while True:
                name, reply = self._connection.recv()
                self._futures.pop(name).set_result(reply)
        except (EOFError, OSError) as error:
            for future in list(self._futures.values()):
                future.set_exception(error)

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self._reader.join()
        self._connection.close()
        self.process.close()


def local_processes(path: Path, started: dict[int, LocalProcess]) -> Launch:
    """Starts processes; `started` has the last one of each shard."""

    def launch(number: int) -> LocalProcess:
        started[number] = LocalProcess(path, number)
        return started[number]

    return launch


NAMES = ["shard-00000", "shard-00001"]
DEADLINE = 0.4
TURNS = int(os.environ.get("DUALFORM_DRILL", "6"))


def test_kills_and_freezes(tmp_path):
    write(tmp_path / "memory", [[3, 4, 2], [2, 2, 4]])
    with dualform.open(tmp_path / "memory", backend="numpy") as one:
        expected = one.topk("plain", QUERIES, 5)
    rng, started, late, recovered = np.random.default_rng(0), {}, [], []
    with Fleet(local_processes(tmp_path / "memory", started), lambda: NAMES, DEADLINE) as fleet:
        front = open_front(tmp_path / "memory", fleet, "numpy")

        answered(front, expected)
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
            recovered.append(answered(front, expected))
            assert started[victim].process is not process
        front.close()
    # Where other tests have the processor, a few are named later, and a few processes, which take some tenths of a
    # second of it to start, come later.
    assert np.quantile(late, 0.8) <= 0.2
    assert max(late) <= 10
    assert np.quantile(recovered, 0.8) < 5
