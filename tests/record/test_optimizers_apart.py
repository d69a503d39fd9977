"""Several optimizers that update at steps of their own, seldom, or twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import RecordingError
from tests.record.listed import small_net
from tests.record.optimizer_trainings import CLOSE, batch, closed as closed, distances, recorded
from tests.trainings import learn


def test_an_optimizer_may_update_at_a_rate_of_its_own(tmp_path):
    """The second gathers gradients of three steps; its last update comes after its step, behind a flush."""

    def train(model, optimizers, recorder, told):
        for number in range(8):
            x, y = batch(number)
            with recorder.step(label=y):
                learn(optimizers[0], cross_entropy(model(x), y))
                if number == 2:
                    optimizers[1].step()
                    optimizers[1].zero_grad()
            if number == 5:
                recorder.flush()
                optimizers[1].step()
                optimizers[1].zero_grad()
            told()

    memory, history = recorded(tmp_path / "m", train)
    assert max(distances(memory, history).values()) < CLOSE
    assert all(reconstruction.exact for reconstruction in memory.verify().values())
    own = memory.sql("SELECT step, first_step FROM factors WHERE parameter = '4.weight' ORDER BY step").records()
    assert own == [{"step": 2, "first_step": 0}, {"step": 5, "first_step": 3}]
    steps = memory.sql("SELECT step, lr FROM steps ORDER BY step").records()
    assert steps == [{"step": n, "lr": 0.05} for n in range(8)]


def stepped_in_backward(model, make):
    """An optimizer for each parameter, which steps as soon as the gradient is there."""
    optimizers = {parameter: make([parameter]) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


def test_optimizers_that_step_inside_the_backward_pass_are_refused_for_that(tmp_path):
    model = small_net()
    optimizers = stepped_in_backward(model, lambda own: torch.optim.AdamW(own, lr=0.01))
    x, y = batch(0)
    made = dualform.Recorder(model, optimizers, tmp_path / "m", quiet=True)
    with pytest.raises(RecordingError) as refused, made, made.step(label=y):
        cross_entropy(model(x), y).backward()
    assert str(refused.value) == (
        "optimizers stepped inside the backward pass of step 0, before the gradients of optimizer 3 (AdamW) "
        "came, but slots of a step are made at its first update. Step the optimizers after loss.backward() has "
        "returned, not in "
        "hooks of their parameters."
    )
    assert not (tmp_path / "m").exists()


def test_optimizers_that_step_inside_the_backward_pass_of_one_layer_are_recorded(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizers = stepped_in_backward(model, lambda own: torch.optim.AdamW(own, lr=0.01))
    with dualform.Recorder(model, optimizers, tmp_path / "m", quiet=True) as recorder:
        for number in range(6):
            x, y = batch(number)
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
    with dualform.open(tmp_path / "m") as memory:
        assert all(own.exact and not own.reason for own in memory.verify().values())
        assert torch.allclose(memory.weights()["weight"], model.weight.detach(), atol=1e-5)


@pytest.mark.parametrize("cleared", [False, True])
def test_what_waits_for_an_optimizer_that_does_not_update_is_bounded(tmp_path, monkeypatch, cleared):
    monkeypatch.setattr("dualform.record.audit.pending.MOST", 6)
    waiting = []

    def train(model, optimizers, recorder, told):
        for number in range(16):
            x, y = batch(number)
            with recorder.step(label=y):
                optimizers[0].zero_grad()
                if cleared:
                    optimizers[1].zero_grad()
                cross_entropy(model(x), y).backward()
                optimizers[0].step()
                if number == 14:
                    optimizers[1].step()
            waiting.append(len(recorder._training.recording._updates._each[1]._pending.steps))
            told()

    memory, history = recorded(tmp_path / "m", train)
    assert max(waiting) == 7
    assert max(distances(memory, history).values()) < CLOSE
    own = memory.sql("SELECT DISTINCT first_step FROM factors WHERE parameter = '4.weight' AND step = 14").records()
    assert own == [{"first_step": 14 if cleared else 0}]


def test_an_optimizer_that_updates_twice_is_named(tmp_path):
    def train(model, optimizers, recorder, told):
        for number in range(4):
            x, y = batch(number)
            with recorder.step(label=y):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
                if number == 2:
                    optimizers[1].step()
            told()

    memory, _ = recorded(tmp_path / "m", train)
    found = memory.verify()
    assert found["0"].exact
    assert "optimizer 1 (AdamW) stepped twice inside step 2" in found["4"].reason
    assert not found["4"].exact


@settings(max_examples=6, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.sampled_from(["none", "inside", "after"])] * 2, st.booleans(), st.booleans()),
        min_size=2,
        max_size=7,
    )
)
def test_any_course_of_updates_is_followed(tmp_path_factory, course):
    """By step, when each optimizer updates, if at all, and whether its gradients are cleared after the step."""

    def train(model, optimizers, recorder, told):
        for number, (*when, first_cleared, second_cleared) in enumerate(course):
            x, y = batch(number)
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
                for optimizer, moment in zip(optimizers, when, strict=True):
                    if moment == "inside":
                        optimizer.step()
            for optimizer, moment, cleared in zip(optimizers, when, (first_cleared, second_cleared), strict=True):
                if moment == "after":
                    optimizer.step()
                if cleared or moment != "none":
                    optimizer.zero_grad()
            told()

    memory, history = recorded(tmp_path_factory.mktemp("course") / "m", train)
    assert max(distances(memory, history).values()) < 3 * CLOSE
    steps = memory.sql("SELECT step, updated FROM steps ORDER BY step").records()
    assert steps == [{"step": n, "updated": set(own[:2]) != {"none"}} for n, own in enumerate(course)]
