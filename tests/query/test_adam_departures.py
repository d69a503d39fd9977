"""Under Adam, what moves weights outside the record is dated and named, and what does not is not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from tests.record.listed import batches, small_net, snapshot
from tests.trainings import learn

from .adam_trainings import (
    adamw,
    plain,
    record,
)


@pytest.mark.parametrize("state", ["kept", "lost", "another"])
def test_a_resumed_training_is_one_memory(tmp_path, state):
    model = small_net()
    optimizer, history = adamw(model), [snapshot(model)]
    for run in range(2):
        with dualform.Recorder(model, optimizer, tmp_path / str(run)) as recorder:
            for x, y in batches(24)[12 * run : 12 * run + 12]:
                with recorder.step(label=y):
                    plain(model, optimizer, x, y, 0)
                history.append(snapshot(model))
        before = copy.deepcopy(optimizer.state_dict())
        model = copy.deepcopy(model)
        optimizer = adamw(model)
        if state != "lost":
            optimizer.load_state_dict(before)
        if state == "another":
            for own in optimizer.state.values():
                own["exp_avg_sq"].mul_(0.5)
    with dualform.open([tmp_path / "0", tmp_path / "1"]) as memory:
        status = memory.info().layers[0].status
        if state == "kept":
            assert status.name == "exact"
            for at_step in (5, 12, 20, 24):
                for name, value in memory.weights(at_step=at_step).items():
                    np.testing.assert_allclose(value, history[at_step][name], rtol=1e-4, atol=2e-6)
        else:
            kind = "exp_avg" if state == "lost" else "exp_avg_sq"
            assert (status.name, status.since, status.error) == ("approximate", 12, None)
            assert f"did not begin with the {kind} that run 0" in status.reason


def test_buffers_that_are_cleared_while_training_are_the_reason(tmp_path):
    def loop(model, optimizer, x, y, number):
        if number == 20:
            optimizer.state.clear()
        plain(model, optimizer, x, y, number)

    record(tmp_path / "m", loop=loop)
    with dualform.open(tmp_path / "m") as memory:
        status = memory.info().layers[0].status
        assert status.name == "approximate"
        assert status.reason == "the optimizer's exp_avg of 0.weight was cleared before step 20 (from step 20 on)."
        assert memory.verify()["0"].reconstruction_error == pytest.approx(status.error, rel=0.3)


@pytest.mark.parametrize("amount", [1e-3, 1e-2])
def test_weights_that_are_moved_by_hand_date_the_departure(tmp_path, amount):
    def nudge(number, model):
        if number == 25:
            with torch.no_grad():
                model[2].weight.add_(amount * torch.randn(6, 7))

    record(tmp_path / "m", between=nudge)
    with dualform.open(tmp_path / "m") as memory:
        statuses = {layer.name: layer.status for layer in memory.info().layers}
        assert (statuses["2"].name, statuses["2"].since) == ("approximate", 25)
        assert statuses["2"].reason.startswith("weights were changed outside the optimizer's update")
        assert (statuses["0"].name, statuses["4"].name) == ("exact", "exact")


def test_noise_of_one_step_is_what_rounding_makes(tmp_path):
    """One-step distances lie below what the twin says of them, by no more than a few orders of magnitude."""
    record(tmp_path / "m", steps=100)
    with dualform.open(tmp_path / "m") as memory:
        table = memory._view.snapshot.table("watch")
        shares = np.array(table["one_step"]) / np.array(table["noise"])
        assert shares.max() < 4
        assert np.median(shares) > 0.05


def test_an_eps_of_zero_warns_of_nothing(tmp_path):
    """A warning would fail the test. Gradients that are 0 leave their weights to 0 / 0, as they leave torch's."""
    record(tmp_path / "m", eps=0.0)
    with dualform.open(tmp_path / "m") as memory:
        memory.weights("label = 1", allow_inexact=True)
        memory.verify()


def test_a_memory_that_is_still_recorded_is_not_said_to_be_cut_off(tmp_path):
    model = small_net()
    optimizer = adamw(model)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for x, y in batches(5):
            with recorder.step(label=y):
                plain(model, optimizer, x, y, 0)
        recorder.flush()
        with dualform.open(tmp_path / "m") as memory:
            reason = memory.verify()["0"].status.reason
            assert reason == "there are no final weights: the recording was cut off, or still runs."


def test_squares_that_underflow_are_not_said_to_be_written_weights(tmp_path):
    def tiny(model, optimizer, x, y, number):
        learn(optimizer, cross_entropy(model(x), y) * 1e-18)

    record(tmp_path / "m", loop=tiny, eps=1e-30)
    with dualform.open(tmp_path / "m") as memory:
        status = memory.info().layers[0].status
        assert status.name == "approximate"
        assert status.reason == f"AdamW's update of step {status.since} was not what its rule makes of the record."
