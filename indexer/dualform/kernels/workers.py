"""Work shared out among the processor's cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Generic, TypeVar

Task = TypeVar("Task")


_TINY, _ONE = 5e-324, 1.0
"""Their product is 0.0 where a thread takes numbers below the normal ones for zero."""


@contextmanager
def subnormal_numbers() -> Iterator[None]:
    """Inside, this thread computes with numbers below the normal ones, though `torch.set_flush_denormal(True)` was
    called in it, or in the thread that began it.
    """
    torch = sys.modules.get("torch")
    if _TINY * _ONE != 0.0 or torch is None:
        yield
        return
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(True)


def cores() -> int:
    """Processor cores that this process may use, whatever a library has pinned the calling thread to."""
    return len(os.sched_getaffinity(os.getpid())) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, cores() - 1), thread_name_prefix="dualform-scan")


if hasattr(os, "register_at_fork"):  # a fork copies none of the threads, nor lets go of a lock that one of them holds
    os.register_at_fork(after_in_child=_pool.cache_clear)


def start() -> None:
    """Has the threads of the pool begin now: those that begin later take over the priority of the thread that first
    needs them, and keep it."""
    pool, count = _pool(), max(1, cores() - 1)
    all_begun = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(all_begun.wait)
    all_begun.wait()


def divide(tasks: Iterable[Task], work: Callable[[int, Task], None], workers: int | None = None) -> None:
    """Call work(worker, task) for every task, `worker` from 0 to `workers` - 1 (as many as there are cores for None).

    The caller is one of the workers; whoever is free takes the next task. What `work` raises first, or Ctrl-C, ends
    the others after their present task and is raised here: no worker runs any more then, so that what they were
    given may be freed.
    """
    shared = _SharedTasks(tasks, work)
    try:
        for worker in range(1, cores() if workers is None else workers):
            _pool().submit(shared.help, worker)
        shared.run(0)
    except BaseException as error:  # no thread to be had, or Ctrl-C
        shared.failures.append(error)
    finally:
        shared.end()
    if shared.failures:
        raise shared.failures[0]


class _SharedTasks(Generic[Task]):
    def __init__(self, tasks: Iterable[Task], work: Callable[[int, Task], None]) -> None:
        self.failures: list[BaseException] = []
        self._waiting, self._work = iter(tasks), work
        self._taking = threading.Lock()
        self._helping = threading.Condition()
        self._helpers, self._ended = 0, False

    def run(self, worker: int) -> None:
        """Do tasks until there are none left or one has failed."""
        try:
            while not self.failures:
                with self._taking:
                    task = next(self._waiting, None)
                if task is None:
                    return
                self._work(worker, task)
        except BaseException as error:  # raised again by divide
            self.failures.append(error)

    def help(self, worker: int) -> None:
        """As `run`, in a thread of the pool; nothing where it comes too late: other questions may hold the pool."""
        with self._helping:
            if self._ended:
                return
            self._helpers += 1
        try:
            with subnormal_numbers():
                self.run(worker)
        finally:
            with self._helping:
                self._helpers -= 1
                self._helping.notify_all()

    def end(self) -> None:
        """Returns once nobody helps any more, and nobody will."""
        while True:
            try:
                with self._helping:
                    self._ended = True
                    self._helping.wait_for(lambda: not self._helpers)
                return
            except BaseException as error:  # Ctrl-C does not free what others read
                self.failures.append(error)
