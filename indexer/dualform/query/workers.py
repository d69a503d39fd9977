"""Work shared out among the processor's cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Task = TypeVar("Task")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, cores() - 1), thread_name_prefix="dualform-scan")


def share(tasks: Iterable[Task], work: Callable[[int, Task], None]) -> None:
    """Call work(worker, task) for every task, `worker` from 0 to cores() - 1; the caller is one of the workers.

    Whoever is free takes the next task. What `work` raises first ends the others after their present task, and is
    raised here.
    """
    waiting, lock, failures = iter(tasks), threading.Lock(), list[BaseException]()

    def run(worker: int) -> None:
        try:
            while not failures:
                with lock:
                    task = next(waiting, None)
                if task is None:
                    return
                work(worker, task)
        except BaseException as error:  # raised again by the caller
            failures.append(error)

    others = [_pool().submit(run, worker) for worker in range(1, cores())]
    run(0)
    for other in others:
        # One that has not begun finds nothing left to do: other questions may hold the pool for long.
        if not other.cancel():
            other.result()
    if failures:
        raise failures[0]
