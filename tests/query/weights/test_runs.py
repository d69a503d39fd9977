"""A training that was resumed in another folder answers as one recorded whole, if it began where the other ended."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput, Inexact
from dualform.store.manifest import FileMark, Manifest
from dualform.store.weights import read_buffers, write_weights
from tests.query.trained import _copy as state_of
from tests.record.listed import batches, small_net
from tests.trainings import learn, record_steps

FIRST, STEPS = 12, 30
SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True}


class Training:
    """One network under SGD, recorded in as many folders as it is asked to."""

    def __init__(self, **settings) -> None:
        torch.manual_seed(0)
        self.model = small_net()
        self.settings = SETTINGS | settings
        self.optimizer = torch.optim.SGD(self.model.parameters(), **self.settings)
        self.done = 0
        self.history = [state_of(self.model)]

    def resume(self, momentum: str = "kept") -> None:
        """As another process does, from a checkpoint; the momentum is kept, lost, or another."""
        self.model = copy.deepcopy(self.model)
        before = copy.deepcopy(self.optimizer.state_dict())
        self.optimizer = torch.optim.SGD(self.model.parameters(), **self.settings)
        if momentum != "lost":
            self.optimizer.load_state_dict(before)
        if momentum == "another":
            for state in self.optimizer.state.values():
                state["momentum_buffer"].mul_(0.5)

    def record(self, path, until: int, between=lambda number, model: None):
        with dualform.Recorder(self.model, self.optimizer, path) as recorder:
            for x, y in batches(STEPS)[self.done : until]:
                with recorder.step(dataset="odd" if self.done % 2 else "even", label=y, sample=np.arange(8)):
                    learn(self.optimizer, cross_entropy(self.model(x), y))
                between(self.done, self.model)
                self.done += 1
                self.history.append(state_of(self.model))
            recorder.query_set("test", batches(1)[0][0])
        return path


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    folder, training = tmp_path_factory.mktemp("runs"), Training()
    training.record(folder / "a", FIRST)
    training.resume()
    training.record(folder / "b", STEPS)
    return folder, training


def test_runs_that_are_not_of_one_network_are_refused(resumed, tmp_path):
    folder, _ = resumed
    other = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(other, optimizer, tmp_path / "other"),
        optimizer,
        1,
        lambda _: cross_entropy(other(torch.ones(2, 6)), torch.zeros(2).long()),
        label=torch.zeros(2).long(),
    )
    hint = "Open only runs of one network, recorded with the same layers and spaces."
    with pytest.raises(BadInput) as caught:
        dualform.open([folder / "a", tmp_path / "other"])
    assert str(caught.value) == f"layer '0' of {tmp_path / 'other'} differs from that of {folder / 'a'}. {hint}"
    with pytest.raises(BadInput) as caught:
        dualform.open([])
    assert str(caught.value) == 'path must name at least one folder. For example dualform.open("runs/digits").'
    with pytest.raises(BadInput) as caught:
        dualform.open([folder / "a", folder / "b" / ".." / "a"])
    assert str(caught.value) == f"{folder / 'b' / '..' / 'a'} is named twice. Name each run once."


def test_a_run_that_goes_on_is_seen_after_refresh(resumed, tmp_path):
    folder, _ = resumed
    shutil.copytree(folder / "b", tmp_path / "b")
    with dualform.open([folder / "a", tmp_path / "b"]) as engine:
        assert not engine.refresh()
        manifest = Manifest.read(tmp_path / "b")
        replace(manifest, recording=True).write(tmp_path / "b")
        assert engine.refresh()
        assert engine.info().recording
        assert engine.info().slots == {"sample": 8 * STEPS}


def test_inputs_that_repeat_in_both_runs_answer_as_one_recording(tmp_path):
    """Each run stores its distinct keys; what is equal in both is stored twice."""

    def record(path, model, optimizer, epochs):
        inputs = torch.randn(40, 5, generator=torch.Generator().manual_seed(3))
        record_steps(
            dualform.Recorder(model, optimizer, path),
            optimizer,
            [part for _ in range(epochs) for part in torch.arange(40).split(8)],
            lambda index: cross_entropy(model(inputs[index]), index % 3),
            label=lambda index: index % 3,
            sample=lambda index: index,
        )
        return path

    paths = []
    for parts in ([4], [1, 3]):
        model = small_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        paths.append([record(tmp_path / f"{len(parts)}-{n}", model, optimizer, p) for n, p in enumerate(parts)])
    queries = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    with dualform.open(paths[0]) as whole, dualform.open(paths[1]) as runs:
        assert whole.info().layers[0].distinct_keys == 40
        assert runs.info().layers[0].distinct_keys == 80
        for score in ("dot", "abs"):
            one, other = (e.topk("0", queries, k=60, where="label <> 1", score=score) for e in (whole, runs))
            assert one.ids.tolist() == other.ids.tolist()
            assert one.flat_scores.tobytes() == other.flat_scores.tobytes()
        one, other = (engine.group_sum("0", queries, by=("label", "sample")) for engine in (whole, runs))
        assert one.sums.tobytes() == other.sums.tobytes()
        one, other = (engine.group_sum("0", queries, by="label", score="abs") for engine in (whole, runs))
        np.testing.assert_allclose(other.sums, one.sums, rtol=1e-6)
        assert {layer.status.name for layer in runs.info().layers} == {"exact"}


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


def test_a_run_that_began_without_the_momentum_is_off_from_its_first_step(tmp_path):
    training = Training()
    training.record(tmp_path / "a", FIRST)
    training.resume("lost")
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


def test_buffers_as_the_first_memories_of_this_format_have_them_are_read(tmp_path):
    training = Training()
    training.record(tmp_path / "a", FIRST)
    training.resume("another")
    training.record(tmp_path / "b", STEPS)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        expected = engine.weights(allow_inexact=True)["0.weight"]
    for run in ("a", "b"):
        as_first_written(tmp_path / run)
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as engine:
        assert {layer.status.name for layer in engine.info().layers} == {"approximate"}
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
    @torch.no_grad()
    def by_hand(number, model):
        if number == 5:
            model[4].weight.mul_(1.02)

    training = Training()
    training.record(tmp_path / "a", FIRST, by_hand)
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
