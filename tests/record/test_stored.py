"""Recording into a folder: what the store reads back, and how failures of writing surface."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dualform.errors import AlreadyExists, BadInput, RecordingError
from dualform.query.weights.coefficients import coefficients
from dualform.record.recorder import Recorder
from dualform.store.reading.snapshot import Snapshot
from dualform.store.writing.writer import Writer
from tests.trainings import learn

from .listed import batches, small_net, snapshot


def train(recorder, model, optimizer, data):
    snapshots = [snapshot(model)]
    for x, y in data:
        with recorder.step(dataset="made", label=y):
            learn(
                optimizer, cross_entropy(model(x), y), lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            )
        snapshots.append(snapshot(model))
    return snapshots


def started(path, **options):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, Recorder(model, optimizer, path, **options)


def test_a_memory_rebuilds_the_network_at_every_step(tmp_path):
    model, optimizer, recorder = started(tmp_path / "m", label_names={"made": ["a", "b", "c"]})
    data = batches(3) * 3
    with recorder:
        snapshots = train(recorder, model, optimizer, data[:6])
        recorder.flush()
        partial = Snapshot.open(tmp_path / "m")
        assert (partial.count("sample"), partial.steps, partial.recording) == (48, 6, True)
        snapshots += train(recorder, model, optimizer, data[6:])[1:]
        recorder.query_set("test", data[0][0], label=data[0][1])
    memory = Snapshot.open(tmp_path / "m")
    assert (memory.count("sample"), memory.steps, memory.recording) == (72, 9, False)
    assert memory.keys("0").rows == 24
    assert memory.table("labels").to_pylist()[1] == {"dataset": "made", "label": 1, "name": "b"}
    assert memory.column("sample", "label").tolist() == [int(label) for _, y in data for label in y]
    steps = memory.column("sample", "step")
    for layer in memory.layers.values():
        keys = memory.keys(layer.name).of_entries(np.arange(72)).astype(np.float64)
        values = memory.values(layer.name).take(np.arange(72)).astype(np.float64)
        weight = layer.weights[0].name
        for at_step, expected in enumerate(snapshots):
            found = coefficients(memory, weight, at_step)
            used = steps < at_step
            scaled = values[used] * found.per_step[steps[used]][:, None]
            rebuilt = found.initial * memory.initial()[weight] + scaled.T @ keys[used]
            np.testing.assert_allclose(rebuilt, expected[weight], atol=1e-6)
    np.testing.assert_array_equal(memory.final()["0.weight"], model[0].weight.detach().numpy())
    query_set = memory.query_set("test")
    np.testing.assert_array_equal(query_set.queries("0"), data[0][0].numpy())
    assert query_set.labels.tolist() == data[0][1].tolist()


def test_without_values(tmp_path):
    model, optimizer, recorder = started(tmp_path / "m", values=False)
    with recorder:
        train(recorder, model, optimizer, batches(2))
    memory = Snapshot.open(tmp_path / "m")
    assert not memory.layer("0").values
    assert memory.keys("2").rows == 16
    assert memory.table("factors").num_rows == 0
    assert memory.table("steps")["first_step"].to_pylist() == [0, 1]


def test_without_values_keys_are_those_with_values(tmp_path):
    for values in (True, False):
        torch.manual_seed(3)
        model, optimizer, recorder = started(tmp_path / str(values), values=values)
        with recorder:
            train(recorder, model, optimizer, batches(3))
    first, second = Snapshot.open(tmp_path / "True"), Snapshot.open(tmp_path / "False")
    for layer in ("0", "2"):
        assert first.keys(layer).entry_block(0, 24).tobytes() == second.keys(layer).entry_block(0, 24).tobytes()


def test_what_was_recorded_before_an_exception_is_committed(tmp_path):
    model, optimizer, recorder = started(tmp_path / "m")

    def interrupted():
        with recorder:
            train(recorder, model, optimizer, batches(3))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    memory = Snapshot.open(tmp_path / "m")
    assert (memory.count("sample"), memory.recording) == (24, True)


def test_a_failure_of_writing_surfaces_at_the_next_step(tmp_path, monkeypatch):
    failed = threading.Event()

    def append(self, batch):
        if batch.step == 1:
            failed.set()
            raise OSError("no space left")

    monkeypatch.setattr(Writer, "append", append)
    model, optimizer, recorder = started(tmp_path / "m")

    def failing():
        with recorder:
            train(recorder, model, optimizer, batches(2))
            assert failed.wait(60)
            with pytest.raises(RecordingError, match=r"^writing the memory failed: OSError: no space left\."):
                recorder.flush()
            train(recorder, model, optimizer, batches(1))

    with pytest.raises(RecordingError) as caught:
        failing()
    assert str(caught.value) == (
        "writing the memory failed: OSError: no space left. The steps committed before are safe. Free disk "
        "space or repair the folder, then record again."
    )
    assert isinstance(caught.value.__cause__, OSError)
    assert "dualform-writer" not in [thread.name for thread in threading.enumerate()]


def test_a_failure_of_writing_surfaces_on_leaving(tmp_path, monkeypatch):
    def close(self, ending):
        raise AlreadyExists("made up")

    monkeypatch.setattr(Writer, "close", close)
    model, optimizer, recorder = started(tmp_path / "m")
    with pytest.raises(AlreadyExists, match=r"^made up$"), recorder:
        train(recorder, model, optimizer, batches(1))


def test_a_query_set_under_a_name_that_is_taken_does_not_end_the_recording(tmp_path):
    model, optimizer, recorder = started(tmp_path / "m")
    data = batches(2)
    with recorder:
        train(recorder, model, optimizer, data)
        recorder.query_set("test", data[0][0])
        with pytest.raises(BadInput, match=r"^Query set 'test' already exists\."):
            recorder.query_set("test", data[0][0])
        train(recorder, model, optimizer, data)
    assert Snapshot.open(tmp_path / "m").count("sample") == 32


def test_a_training_that_never_leaves_does_not_hang_its_interpreter(tmp_path):
    program = (
        "import torch, dualform\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"recorder = dualform.Recorder(model, optimizer, {str(tmp_path / 'm')!r}).__enter__()\n"
        "with recorder.step():\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "recorder.flush()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert Snapshot.open(tmp_path / "m").count("sample") == 1
