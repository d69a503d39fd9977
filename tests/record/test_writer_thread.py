"""The thread that writes: what it does while nothing comes, and who hears of what fails there."""

from __future__ import annotations

import errno
import itertools
import threading
import time

import pytest

from dualform.errors import RecordingError
from dualform.record.writer_thread import WriterThread


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_it_calls_while_nothing_comes_as_often_as_it_was_asked_to():
    thread, calls = WriterThread(10), []

    def idle() -> float:
        calls.append(time.monotonic())
        return 0.05

    thread.when_idle = idle
    thread.do(lambda: None)
    wait_for(lambda: len(calls) >= 5)
    thread.stop()
    done = len(calls)
    gaps = [after - before for before, after in itertools.pairwise(calls)]
    assert min(gaps) > 0.04
    time.sleep(0.15)
    assert len(calls) == done, "it goes on after stop"


def test_jobs_go_first_and_in_order():
    thread, order, gate = WriterThread(1000), [], threading.Event()

    def idle() -> float:
        order.append("idle")
        return 60.0

    thread.put(gate.wait, 1)
    thread.when_idle = idle
    for number in range(5):
        thread.put(lambda number=number: order.append(number), 1)
    gate.set()
    wait_for(lambda: "idle" in order)
    assert order == [0, 1, 2, 3, 4, "idle"]
    thread.do(lambda: order.append("more"))
    assert order[6] == "more"
    thread.stop()


def test_what_fails_while_nothing_comes_is_heard_at_the_next_step():
    thread, calls = WriterThread(10), []

    def idle() -> float:
        calls.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    thread.when_idle = idle
    thread.do(lambda: None)
    wait_for(lambda: calls)
    wait_for(lambda: thread._error is not None)
    with pytest.raises(RecordingError, match=r"writing the memory failed: OSError: .*No space left on device"):
        thread.put(lambda: calls.append(2), 1)
    with pytest.raises(RecordingError):
        thread.check()
    thread.stop()
    assert calls == [1]
