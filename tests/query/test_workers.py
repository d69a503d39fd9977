"""Work is shared out once, and what goes wrong is heard of."""

from __future__ import annotations

import threading

import pytest

from dualform.query.workers import cores, share


def test_every_task_is_done_once_by_a_worker_of_its_own():
    done, busy = [], [0] * cores()

    def work(worker: int, task: int) -> None:
        busy[worker] += 1
        assert busy[worker] == 1
        done.append(task)
        busy[worker] -= 1

    share(range(1000), work)
    assert sorted(done) == list(range(1000))


def test_the_first_failure_is_raised_and_ends_the_others():
    done = []

    def work(_: int, task: int) -> None:
        if task == 5:
            raise ValueError("five")
        done.append(task)

    with pytest.raises(ValueError, match="five"):
        share(range(100_000), work)
    assert len(done) < 100_000


def test_a_failing_list_of_tasks_is_heard_of():
    def tasks():
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        share(tasks(), lambda worker, task: None)


def test_many_askers_share_the_cores():
    totals = []

    def ask(number: int) -> None:
        own = []
        share(range(200), lambda worker, task: own.append(task))
        totals.append(sorted(own) == list(range(200)))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [True] * 16
