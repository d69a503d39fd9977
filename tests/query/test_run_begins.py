"""What a run begins with, weights and momentum, is held against what the run before ended with."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact
from dualform.store.manifest import FileMark, Manifest
from dualform.store.weights import read_buffers, write_weights
from tests.record.listed import batches
from tests.trainings import learn

from .run_training import FIRST, STEPS, Training


def test_a_run_that_began_with_other_weights_is_off_from_its_first_step(tmp_path):
    training = Training()
    training.record(tmp_path / "a", FIRST)
    training.resume()
    with torch.no_grad():
        training.model[2].weight[0, 0] += 1e-3
    training.record(tmp_path / "b", STEPS)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        statuses = {layer.name: layer.status for layer in engine.info().layers}
        second = statuses.pop("2")
        assert {status.name for status in statuses.values()} == {"exact"}
        assert (second.name, second.since) == ("approximate", FIRST)
        assert second.reason == (
            f"run 1 ({tmp_path / 'b'}) did not begin with the weights that run 0 ({tmp_path / 'a'}) ended with "
            f"(from step {FIRST} on)."
        )
        way = torch.linalg.vector_norm(training.history[-1]["2.weight"] - training.history[0]["2.weight"])
        assert second.error is not None
        assert 0.5e-3 / float(way) < second.error < 2e-3 / float(way)
        assert engine.output("2", "test", at_step=FIRST).status.exact
        assert not engine.output("2", "test").status.exact
        with pytest.raises(Inexact):
            engine.output("2", "test", at_step=FIRST + 1)


@pytest.mark.parametrize("momentum", ["lost", "another"])
def test_a_run_that_began_without_the_momentum_is_off_from_its_first_step(tmp_path, momentum):
    training = Training()
    training.record(tmp_path / "a", FIRST)
    training.resume(momentum)
    training.record(tmp_path / "b", STEPS)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        statuses = [layer.status for layer in engine.info().layers]
        assert {(status.name, status.since, status.error) for status in statuses} == {("approximate", FIRST, None)}
        assert statuses[0].reason == (
            f"run 1 ({tmp_path / 'b'}) did not begin with the momentum_buffer that run 0 ({tmp_path / 'a'}) left "
            f"(from step {FIRST} on)."
        )
        assert engine.output("0", "test", at_step=FIRST).status.exact
        with pytest.raises(Inexact):
            engine.weights()
        assert torch.allclose(engine.weights(allow_inexact=True)["0.weight"], training.history[-1]["0.weight"])


def as_first_written(path):
    """A memory's buffers as the first memories of format 2 had them: SGD's alone, without its name."""
    manifest = Manifest.read(path)
    held = read_buffers(path, manifest.files)
    (path / "weights/buffers.safetensors").unlink(missing_ok=True)
    manifest.files.pop("weights/buffers.safetensors", None)
    if held:
        momentum = {name: own["momentum_buffer"] for name, own in held.items()}
        file, size, digest = write_weights(path, "momentum", momentum)
        manifest.files[file] = FileMark(size, digest)
    manifest.buffers = {name: own["momentum_buffer"] for name, own in manifest.buffers.items()}
    manifest.write(path)


@pytest.mark.parametrize("momentum", ["kept", "another"])
def test_buffers_as_the_first_memories_of_this_format_have_them_are_read(tmp_path, momentum):
    training = Training()
    training.record(tmp_path / "a", FIRST)
    training.resume(momentum)
    training.record(tmp_path / "b", STEPS)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        expected = engine.weights(allow_inexact=True)["0.weight"]
    for run in ("a", "b"):
        as_first_written(tmp_path / run)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        assert {layer.status.name for layer in engine.info().layers} == {
            "exact" if momentum == "kept" else "approximate"
        }
        assert torch.equal(engine.weights(allow_inexact=True)["0.weight"], expected)
    with dualform.open(tmp_path / "b") as engine:
        assert engine.verify()["0"].exact


def test_a_run_without_momentum_needs_none(tmp_path):
    training = Training(momentum=0.0, nesterov=False)
    training.record(tmp_path / "a", FIRST)
    training.resume("lost")
    training.record(tmp_path / "b", STEPS)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        assert {layer.status.name for layer in engine.info().layers} == {"exact"}


def test_what_was_wrong_with_the_first_run_is_wrong_with_the_second(tmp_path):
    training = Training()
    with dualform.Recorder(training.model, training.optimizer, tmp_path / "a") as recorder:
        for number, (x, y) in enumerate(batches(FIRST)):
            with recorder.step(label=y):
                learn(training.optimizer, cross_entropy(training.model(x), y))
            if number == 5:  # an update by hand
                with torch.no_grad():
                    training.model[4].weight.mul_(1.02)
    training.done = FIRST
    training.resume()
    training.record(tmp_path / "b", STEPS)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        statuses = {layer.name: layer.status for layer in engine.info().layers}
        measured = engine.verify()["4"].reconstruction_error
        assert (statuses["0"].name, statuses["4"].name, statuses["4"].since) == ("exact", "approximate", 5)
        assert statuses["4"].error is not None
        assert measured is not None
        assert 0.5 * measured <= statuses["4"].error <= 4 * measured
        assert statuses["4"].reason == "weights were changed outside the optimizer's update, after that of step 5."
