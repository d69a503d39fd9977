"""Work is shared out once, and what goes wrong is heard of."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from dualform.kernels.workers import cores, divide


def test_every_task_is_done_once_by_a_worker_of_its_own():
    done, busy = [], [0] * cores()

    def work(worker: int, task: int) -> None:
        busy[worker] += 1
        assert busy[worker] == 1
        done.append(task)
        busy[worker] -= 1

    divide(range(1000), work)
    assert sorted(done) == list(range(1000))


def test_the_first_failure_is_raised_and_ends_the_others():
    done = []

    def work(_: int, task: int) -> None:
        if task == 5:
            raise ValueError("five")
        done.append(task)

    with pytest.raises(ValueError, match="five"):
        divide(range(100_000), work)
    assert len(done) < 100_000


def test_a_failing_list_of_tasks_is_heard_of():
    def tasks():
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        divide(tasks(), lambda worker, task: None)


class Interrupted(threading.Thread):
    """Shares work among three, of whom `end` ends the first; then the others are let go on, after a while."""

    def __init__(self, end: BaseException) -> None:
        super().__init__()
        self.events: list[str] = []
        self.begun, self.go, self._end = threading.Event(), threading.Event(), end
        self.start()

    def run(self) -> None:
        def work(worker: int, task: int) -> None:
            if worker == 0:
                assert self.begun.wait(60)
                raise self._end
            self.begun.set()
            assert self.go.wait(60)
            self.events.append("a worker ended")

        try:
            divide(range(1000), work, workers=3)
        except BaseException as error:
            self.events.append(f"share raised {type(error).__name__}")


@pytest.mark.parametrize("end", [KeyboardInterrupt(), ValueError()], ids=["Ctrl-C", "an error"])
def test_whoever_has_begun_is_waited_for(end):
    shared = Interrupted(end)
    assert shared.begun.wait(60)
    shared.join(0.05)
    assert shared.events == []
    shared.go.set()
    shared.join()
    assert shared.events[-1] == f"share raised {type(end).__name__}"
    assert shared.events[:-1] == ["a worker ended"] * (len(shared.events) - 1) != []


def test_a_pinned_thread_does_not_hide_the_other_cores():
    found = []

    def ask() -> None:
        os.sched_setaffinity(threading.get_native_id(), {min(os.sched_getaffinity(0))})
        found.append(cores())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [len(os.sched_getaffinity(os.getpid()))]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own():
    """A fork copies none of its parent's threads."""

    def both_at_once() -> None:
        meeting = threading.Barrier(2, timeout=20)
        divide(range(2), lambda worker, task: meeting.wait(), workers=2)

    both_at_once()
    child = multiprocessing.get_context("fork").Process(target=both_at_once)
    child.start()
    child.join(60)
    assert child.exitcode == 0
