"""Answerers that are processes of this machine, which can be killed and stopped by their numbers, and work on one share
at a time.

A server of processes imports what they need once and then forks them: a new one takes milliseconds.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from dualform.query.shards.engines import Reply, open_shard
from dualform.query.shards.shards import ShardQuestion
from dualform_service.shards import Launch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "tests.service.shards.local_process"])


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
