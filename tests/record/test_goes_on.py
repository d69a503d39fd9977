"""Recording never ends a training that would have gone on; and what the thread that writes tells of its failures."""

from __future__ import annotations

import errno
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform.errors import BadInput, RecordingError
from dualform.record.recorder import Recorder
from dualform.record.sink import SinkThread
from dualform.store.batch import Batch, Ending, LayerRows
from tests.record.listed import Opened, batches, opened_on, small_net, train
from tests.trainings import learn


def test_a_loss_that_the_training_skips(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(5)):
            with opened.recorder.step(label=y):
                loss = cross_entropy(model(x), y)
                if number in (0, 3):
                    continue
                learn(opened.optimizer, loss)
    slots = [len(batch.samples["label"]) for batch in opened.sink.recorded]
    assert slots == [8, 8, 0, 8]
    assert opened.sink.defects == []


def test_a_lazy_module_is_refused_until_it_has_seen_a_batch(tmp_path):
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(RecordingError) as caught:
        opened_on(model, tmp_path / "m")
    assert str(caught.value) == (
        "Parameter '0.weight' lacks a shape: its module is lazy and has not seen a batch. Run "
        "one batch through the model, then make the optimizer and the recorder."
    )
    model(torch.ones(1, 5))
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        train(opened, model, batches(2))
    assert [(layer.name, layer.d_in) for layer in opened.sink.layers] == [("0", 5), ("2", 4)]
    assert opened.sink.defects == []


@pytest.mark.parametrize("inside", [True, False], ids=["at the update", "at the step's end"])
def test_metadata_that_stops_fitting(tmp_path, inside):
    def step(opened, labels):
        with opened.recorder.step(label=labels):
            opened.optimizer.zero_grad()
            model(batches(1)[0][0]).square().sum().backward()
            if inside:
                opened.optimizer.step()

    message = r"label has shape \[3\], but the recorded layers saw batches of \[8\]"
    for on_error in ("raise", "warn"):
        model = small_net()
        opened = opened_on(model, tmp_path / "m", on_error=on_error)
        with opened.recorder:
            with pytest.raises(BadInput, match=f"^{message}"):  # the first step always raises
                step(opened, np.arange(3))
            step(opened, np.arange(8))
            if on_error == "raise":
                with pytest.raises(BadInput, match=f"^{message}"):
                    step(opened, np.arange(3))
            else:
                with pytest.warns(RuntimeWarning, match=f"^recording stopped after 1 steps: {message}"):
                    step(opened, np.arange(3))
                assert not any(module._forward_hooks for module in model.modules())
            step(opened, np.arange(8))
        assert [batch.step for batch in opened.sink.recorded] == ([0, 1] if on_error == "raise" else [0])
        assert opened.sink.finished is (on_error == "raise")


def test_what_on_error_can_be(tmp_path):
    with pytest.raises(
        BadInput, match=r"""^Unknown on_error 'ignore'\. Choose on_error="raise" or on_error="stop_recording"\.$"""
    ):
        Recorder(small_net(), torch.optim.SGD([torch.zeros(1)], lr=0.1), tmp_path / "m", on_error="ignore")


@pytest.mark.filterwarnings("ignore:layer '[24]' took")
def test_weights_of_another_shape_are_a_defect(tmp_path):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(4)):
            if number == 2:  # as where a network grows while it is trained
                model[2].weight.data, model[2].bias.data = torch.randn(9, 7), torch.randn(9)
                model[4].weight.data = torch.randn(3, 9)
            with opened.recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x), y))
    reasons = {layer: reason for layer, _, reason in reversed(opened.sink.defects)}
    assert reasons["2"] == "2.weight is no longer a tensor of its shape at step 1"
    assert [len(opened.sink.keys(layer)) for layer in ("0", "2", "4")] == [32, 16, 16]


class Noted:
    """A sink that notes what it is called for."""

    def __init__(self, tick=lambda: None, append=lambda of_bytes: None):
        self.calls = []
        self._tick, self._append = tick, append

    def append(self, of_bytes):
        self.calls.append(of_bytes.step)
        self._append(of_bytes)

    def tick(self):
        self.calls.append("tick")
        return self._tick()

    def commit(self):
        self.calls.append("commit")

    def close(self, ending):
        self.calls.append("close")

    def abandon(self):
        self.calls.append("abandon")


def of_bytes(step, size=4):
    """One that holds `size` bytes."""
    keys = np.zeros((size // 4, 1), np.float32)
    return Batch(step, {}, [], {"layer": [LayerRows(0, keys, None)]})


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_the_queue_is_bounded():
    gate, sink = threading.Event(), Noted(append=lambda of_bytes: of_bytes.step or gate.wait())
    thread = SinkThread(lambda: sink, queue_bytes=100)
    thread.put(of_bytes(0, 60))
    thread.put(of_bytes(1, 40))
    blocked = threading.Thread(target=thread.put, args=(of_bytes(2, 4),))
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive()
    gate.set()
    blocked.join(60)
    assert not blocked.is_alive()
    thread.flush()
    thread.put(of_bytes(3, 1000))
    thread.close(Ending())
    assert [call for call in sink.calls if call != "tick"] == [0, 1, 2, "commit", 3, "close"]


def test_what_fails_while_nothing_comes_is_heard_at_the_next_step():
    def tick() -> float:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = Noted(tick)
    thread = SinkThread(lambda: sink)
    wait_for(lambda: thread._error is not None)
    with pytest.raises(RecordingError, match=r"writing the memory failed: OSError: .*No space left on device"):
        thread.put(of_bytes(0))
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
def test_the_disk_is_blamed_for_its_own_errors_alone_and_batches_that_wait_are_not_written(raised, hint):
    gate = threading.Event()

    def append(of_bytes):
        gate.wait()
        raise raised

    sink = Noted(append=append)
    thread = SinkThread(lambda: sink)
    for step in range(3):
        thread.put(of_bytes(step))
    gate.set()
    with pytest.raises(RecordingError) as caught:
        thread.close(Ending())
    assert str(caught.value).startswith(f"writing the memory failed: {type(raised).__name__}: {raised}.")
    assert str(caught.value).endswith(hint)
    assert caught.value.__cause__ is raised
    assert [call for call in sink.calls if call != "tick"] == [0, "abandon"]
