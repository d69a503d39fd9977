"""Recording never ends a training that would have gone on: what it cannot take is refused before, or a defect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform.errors import BadInput, RecordingError
from dualform.record.recorder import Recorder
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


@pytest.mark.parametrize("skipped", [{0, 1}, {2}], ids=str)
def test_a_batch_that_is_left_out_before_its_forward_pass(tmp_path, skipped):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(4)):
            with opened.recorder.step(label=y):
                opened.optimizer.zero_grad()
                if number not in skipped:
                    cross_entropy(model(x), y).backward()
                opened.optimizer.step()  # as a trainer makes it whatever the batch brought
    taken = [len(batch.samples["label"]) for batch in opened.sink.recorded]
    assert [size for size in taken if size] == [8] * (4 - len(skipped))
    assert opened.sink.defects == []


def test_batches_that_are_all_left_out_are_told_of_at_the_end(tmp_path):
    opened = opened_on(small_net(), tmp_path / "m")
    opened.recorder.__enter__()
    for _ in range(2):
        with opened.recorder.step():
            pass
    with pytest.warns(RuntimeWarning, match=r"Nothing was recorded.*it was not called in a recorded step"):
        opened.recorder.__exit__(None, None, None)
    assert not (tmp_path / "m").exists()


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


def failing(opened, model):
    """A training whose writer fails after the second step, recorded with on_error="warn"; returns its weights."""
    train(opened, model, batches(2))
    opened.fail(RecordingError("the disk is full."))
    with pytest.warns(RuntimeWarning, match=r"^recording stopped after 2 steps: the disk is full\.$"):
        train(opened, model, batches(4)[2:3])
    train(opened, model, batches(4)[3:])


def test_a_failure_of_writing_warns_once_and_the_training_goes_on(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m", on_error="warn")
    with opened.recorder:
        failing(opened, model)
        opened.recorder.flush()
        opened.recorder.query_set("test", batches(1)[0][0])
        assert not any(module._forward_hooks for module in model.modules())
    assert (opened.recorder.steps, opened.sink.finished, len(opened.sink.recorded)) == (2, None, 2)
    assert (opened.sink.commits, opened.sink.query_sets, opened.sink.abandoned) == (0, {}, True)
    plain = small_net()
    unrecorded = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x, y in batches(4):
        learn(unrecorded, cross_entropy(plain(x), y))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


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
