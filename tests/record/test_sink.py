"""The thread that writes: what it does while nothing comes, and who hears of what fails there."""

from __future__ import annotations

import errno
import threading
import time

import numpy as np
import pytest

from dualform.errors import RecordingError
from dualform.record.sink import SinkThread
from dualform.store.batch import Batch, Ending, LayerRows


class Noted:
    """A sink that notes what it is called for."""

    def __init__(self, tick=lambda: None, append=lambda batch: None):
        self.calls = []
        self._tick, self._append = tick, append

    def append(self, batch):
        self.calls.append(batch.step)
        self._append(batch)

    def tick(self):
        self.calls.append("tick")
        return self._tick()

    def commit(self):
        self.calls.append("commit")

    def close(self, ending):
        self.calls.append("close")

    def abandon(self):
        self.calls.append("abandon")


def batch(step, size=4):
    """One that holds `size` bytes."""
    keys = np.zeros((size // 4, 1), np.float32)
    return Batch(step, {}, [], {"layer": [LayerRows(0, keys, None)]})


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_the_queue_is_bounded():
    gate, sink = threading.Event(), Noted(append=lambda batch: batch.step or gate.wait())
    thread = SinkThread(lambda: sink, queue_bytes=100)
    thread.put(batch(0, 60))
    thread.put(batch(1, 40))
    blocked = threading.Thread(target=thread.put, args=(batch(2, 4),))
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive()
    gate.set()
    blocked.join(60)
    assert not blocked.is_alive()
    thread.flush()
    thread.put(batch(3, 1000))
    thread.close(Ending())
    assert [call for call in sink.calls if call != "tick"] == [0, 1, 2, "commit", 3, "close"]


def test_what_fails_while_nothing_comes_is_heard_at_the_next_step():
    def tick() -> float:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = Noted(tick)
    thread = SinkThread(lambda: sink)
    wait_for(lambda: thread._error is not None)
    with pytest.raises(RecordingError, match=r"writing the memory failed: OSError: .*No space left on device"):
        thread.put(batch(0))
    with pytest.raises(RecordingError):
        thread.check()
    with pytest.raises(RecordingError):
        thread.close(Ending())
    assert sink.calls == ["tick", "abandon"]


@pytest.mark.parametrize(
    ("raised", "hint"),
    [
        (OSError("full"), "Free disk space or repair the folder, then record again."),
        (AssertionError("a fault"), "The cause is not the disk: see the error above."),
    ],
)
def test_the_disk_is_blamed_for_its_own_errors_alone(raised, hint):
    def append(batch):
        raise raised

    thread = SinkThread(lambda: Noted(append=append))
    thread.put(batch(0))
    with pytest.raises(RecordingError) as caught:
        thread.close(Ending())
    assert str(caught.value).startswith(f"writing the memory failed: {type(raised).__name__}: {raised}.")
    assert str(caught.value).endswith(hint)
    assert caught.value.__cause__ is raised
