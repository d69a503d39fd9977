"""Networks that train against each other: a step for each pass, or a pass that steps share."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform.errors import RecordingError
from dualform.record.recorder import Recorder
from tests.record.optimizer_trainings import CLOSE, ROWS, batch, closed as closed, distances, recorded
from tests.trainings import learn


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maker = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5))
        self.judge = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))

    def losses(self, number):
        """The judge's and the maker's, each to be called when its pass is due."""
        true, _ = batch(number)
        noise = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(-number - 1 & 0xFFFF))

        def of_judge():
            fake = self.maker(noise).detach()
            return self.judge(fake).exp().mean() - self.judge(true).mean()

        return of_judge, lambda: -self.judge(self.maker(noise)).mean()


def adversaries(model):
    return [torch.optim.Adam(model.judge.parameters(), lr=0.01), torch.optim.SGD(model.maker.parameters(), lr=0.1)]


def test_two_networks_that_train_against_each_other_take_a_step_for_each_pass(tmp_path):
    """The maker's pass leaves gradients in the judge, which its next pass clears."""

    def train(model, optimizers, recorder, told):
        for number in range(6):
            for loss, optimizer in zip(model.losses(number), optimizers, strict=True):
                with recorder.step():
                    learn(optimizer, loss())
                told()

    memory, history = recorded(tmp_path / "m", train, Adversaries(), adversaries)
    assert max(distances(memory, history).values()) < CLOSE
    assert all(reconstruction.exact for reconstruction in memory.verify().values())


def test_a_forward_pass_that_two_steps_share(tmp_path):
    def train(model, optimizers, recorder, told):
        for number in range(6):
            x, _ = batch(number)
            with recorder.step() as first:
                made = model.maker(x[:, :3])
                learn(optimizers[0], model.judge(made.detach()).exp().mean())
            assert first.updated
            told()
            with recorder.step() as second:
                second.continues(first)
                learn(optimizers[1], -model.judge(made).mean())
            told()

    memory, history = recorded(tmp_path / "m", train, Adversaries(), adversaries)
    assert max(distances(memory, history).values()) < CLOSE
    assert all(reconstruction.exact for reconstruction in memory.verify().values())


def test_a_step_continues_the_one_right_before_it_alone(tmp_path):
    """Whatever came of that one; of another one's forward pass, the samples would be said of the wrong slots."""
    model = Adversaries()
    optimizers = adversaries(model)
    said = {"match": ", which is not the one before it."}

    def one_pass(step, number, factor=1.0):
        optimizers[1].zero_grad()
        (model.maker(batch(number)[0][:, :3]) * factor).mean().backward()
        return step

    with Recorder(model, optimizers, tmp_path / "m", quiet=True) as recorder:
        with recorder.step() as first:
            one_pass(first, 0)
            with pytest.raises(RecordingError, **said):
                first.continues(first)
        with recorder.step() as nothing:  # NaN: it is not recorded
            one_pass(nothing, 1, float("nan"))
        assert recorder.steps == 1
        with recorder.step() as third:
            with pytest.raises(RecordingError, match="Step 1 continues step 0, which is not the one before it"):
                third.continues(first)
            third.continues(nothing)
            one_pass(third, 2)
        with recorder.step() as fourth:
            fourth.continues(third)
            one_pass(fourth, 3)
    assert recorder.steps == 3


def test_both_passes_in_one_step_are_refused_at_the_first_and_named_later(tmp_path):
    def one_step(model, optimizers, recorder, number):
        with recorder.step():
            for loss, optimizer in zip(model.losses(number), optimizers, strict=True):
                learn(optimizer, loss())

    model = Adversaries()
    with (
        pytest.raises(RecordingError, match=r"brought gradients to optimizer 1 \(SGD\)") as refused,
        Recorder(model, adversaries(model), tmp_path / "first") as recorder,
    ):
        one_step(model, recorder._training.plan.owners.optimizers, recorder, 0)
    assert "each forward and backward pass" in refused.value.hint

    def train(model, optimizers, recorder, told):
        for number in range(4):
            if number < 2:
                for loss, optimizer in zip(model.losses(number), optimizers, strict=True):
                    with recorder.step():
                        learn(optimizer, loss())
            else:
                one_step(model, optimizers, recorder, number)
            told()

    memory, _ = recorded(tmp_path / "later", train, Adversaries(), adversaries)
    found = memory.verify()
    assert not found["maker.0"].exact
    assert not found["maker.2"].exact
    assert "after another optimizer's update inside step 4" in found["maker.0"].reason
    assert memory.weights(at_step=3, allow_inexact=True)


def test_gradients_that_are_cleared_between_passes_are_never_called_exact(tmp_path):
    def train(model, optimizers, recorder, told):
        for number in range(6):
            x, y = batch(number)
            with recorder.step(label=y):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number > 2:
                    optimizers[1].zero_grad()
                cross_entropy(model(0.5 * x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
            told()

    memory, history = recorded(tmp_path / "m", train)
    apart = distances(memory, history)
    wrong = {name for (step, name), distance in apart.items() if distance > 1e-3}
    assert "4.weight" in wrong
    found = memory.verify()
    for layer in memory._view.snapshot.layers.values():
        if wrong.intersection(block.block_name for block in layer.parameters):
            assert not found[layer.name].exact, layer.name
            assert found[layer.name].reason, layer.name
        else:
            assert found[layer.name].exact
