"""Gradients and updates that do not come where they are looked for: refused at first, a defect later."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import RecordingError
from tests.cases import pairwise

from .listed import batches, opened_on, small_net, snapshot, train


def test_a_gradient_outside_its_step_is_refused_at_first_and_a_defect_later(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    data = batches(3)
    reason = "the gradient of layer '4' arrived outside the step that its forward pass ran in"
    with opened.recorder:
        with opened.recorder.step():
            loss = model(data[0][0]).sum()
        with pytest.raises(RecordingError, match=rf"^{reason}\. Put forward and backward of a batch into one"):
            loss.backward()
        opened.optimizer.zero_grad()
        train(opened, model, data[:2])
        with opened.recorder.step():
            loss = model(data[0][0]).sum()
        loss.backward()
        with opened.recorder.step():
            model(data[1][0]).sum().backward()
    assert ("4", 2, f"{reason}, after step 2") in opened.sink.defects
    assert len(opened.sink.recorded) == 4


def test_an_update_outside_a_step_that_was_not_recorded(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        for number, (x, y) in enumerate(batches(3)):
            opened.optimizer.zero_grad()
            with opened.recorder.step(label=y):
                (cross_entropy(model(x), y) * (float("nan") if number == 1 else 1)).backward()
            if number:
                opened.optimizer.step()
    reason = (
        "after step 0 the optimizer updated with NaN or infinity in a key or error signal, in a step that was not "
        "recorded"
    )
    assert sorted(opened.sink.defects) == [("0", 0, reason), ("2", 0, reason), ("4", 0, reason)]
    assert [(log.step, log.updated) for log in opened.sink.logs.values()] == [(0, False)]


def test_an_optimizer_that_steps_twice_later_is_a_defect(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        train(opened, model, batches(1))
        x, y = batches(1)[0]
        opened.optimizer.zero_grad()
        with opened.recorder.step(label=y):
            cross_entropy(model(x), y).backward()
            opened.optimizer.step()
            opened.optimizer.step()
    assert opened.sink.defects == [(layer, 1, "the optimizer stepped twice inside step 1") for layer in ("0", "2", "4")]


def no_rows(model, optimizer, x, y):
    optimizer.zero_grad()
    cross_entropy(model(x[:0]), y[:0], reduction="sum").backward()


def zeroed(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=False)


def forward_alone(model, optimizer, x, y):
    model(x)
    optimizer.zero_grad(set_to_none=False)


def without_gradients(model, optimizer, x, y):
    optimizer.zero_grad()


def of_some_layers(model, optimizer, x, y):
    """Another loss on one layer's weight, whose gradient is zero."""
    optimizer.zero_grad()
    (0 * model[0].weight).sum().backward()


def test_a_resumed_training_does_not_begin_with_a_step_without_gradients(tmp_path):
    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in (batches(3), [(x[:0], y[:0]) for x, y in batches(1)], batches(3, seed=2)):
        with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, resume=True) as recorder:
            for x, y in batch:
                if len(x):
                    take(recorder, optimizer, model, x, y)
                    continue
                with pytest.raises(
                    RecordingError,
                    match=r"^The first step of the resumed training moves the weights without a gradient\.",
                ):
                    take(recorder, optimizer, model, x, y)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 6
        assert all(own.exact and not own.reason for own in memory.verify().values())


def take(recorder, optimizer, model, x, y):
    with recorder.step(label=y):
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(x), y, reduction="sum").backward()
        optimizer.step()


@pytest.mark.parametrize("halved", ["weights", "products"])
def test_a_gradient_of_half_precision_that_is_zero_ends_nothing(tmp_path, halved):
    """All that the loss leaves of a batch is nothing: there are slots, whose error signals are zero."""
    model = small_net().bfloat16() if halved == "weights" else small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        for number, (x, y) in enumerate(batches(6)):
            with recorder.step(label=y), torch.autocast("cpu", torch.bfloat16, enabled=halved == "products"):
                optimizer.zero_grad()
                output = model(x.bfloat16() if halved == "weights" else x).float()
                (cross_entropy(output, y, reduction="sum") * (number not in (2, 3))).backward()
                optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 6
        assert {own.status.name for own in memory.verify().values()} <= {"exact", "exact to bfloat16"}


NO_SLOTS = [no_rows, zeroed, forward_alone, without_gradients, of_some_layers]
OPTIMIZERS = {
    "momentum": lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda own: torch.optim.AdamW(own, lr=0.05),
    "NAdam": lambda own: torch.optim.NAdam(own, lr=0.02),
}


@pytest.mark.parametrize(("gradients", "optimizer", "outside"), pairwise(NO_SLOTS, OPTIMIZERS, [False, True]))
def test_an_update_without_gradients_is_a_step_without_slots(tmp_path, gradients, optimizer, outside):
    """What momentum and decay do in it is rebuilt, also where it comes first, twice in a row, and last."""
    model, without = small_net(), {0, 3, 4, 7}
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    weights = []
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        for number, (x, y) in enumerate(batches(8)):
            with recorder.step(label=y, sample=torch.arange(8) + 8 * number):
                if number in without:
                    gradients(model, optimizer, x, y)
                else:
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                if not outside:
                    optimizer.step()
            if outside:
                optimizer.step()
            if recorder.steps:
                weights.append(snapshot(model))
    with dualform.open(tmp_path / "m") as memory:
        assert len(weights) == memory.info().steps == 7
        reconstructions = memory.verify()
        assert all(own.exact and not own.reason for own in reconstructions.values()), reconstructions
        for step, expected in enumerate(weights, 1):
            rebuilt = memory.weights(at_step=step)
            for name, weight in expected.items():
                np.testing.assert_allclose(rebuilt[name], weight, rtol=1e-4, atol=1e-5, err_msg=f"{name} {step}")
        assert int(memory.group_sum("0", np.ones((1, 5), np.float32), by="step").counts.sum()) == 32
