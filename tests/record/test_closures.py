"""Optimizers that are given a closure, and evaluate it once or several times in one update."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import RecordingError
from dualform.record.recorder import Recorder

from .listed import batches, small_net


class Looking(torch.optim.Optimizer):
    """Evaluates its closure as often as it is told, and moves along each gradient."""

    def __init__(self, parameters, times):
        super().__init__(parameters, {"lr": 0.05})
        self.times = list(times)

    def step(self, closure):
        for _ in range(self.times.pop(0)):
            with torch.enable_grad():
                loss = closure()
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p -= 0.05 * p.grad
        return loss


def train(model, optimizer, data, recorder=None):
    for x, y in data:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        if recorder is None:
            optimizer.step(closure)
        else:
            with recorder.step(label=y):
                optimizer.step(closure)


def test_a_closure_that_is_evaluated_twice_is_refused_at_the_first_step(tmp_path):
    model = small_net()
    optimizer = Looking(model.parameters(), [2])
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with pytest.raises(RecordingError) as raised, recorder:
        train(model, optimizer, batches(1), recorder)
    assert str(raised.value) == (
        "Looking evaluated its closure more than once in the update of step 0, so no one set of "
        "slots explains the change of the weights. Use an optimizer that takes one gradient for "
        "each update, or record only scores: values=False."
    )
    assert not (tmp_path / "m").exists()


@pytest.mark.filterwarnings("ignore:.*no update rule:RuntimeWarning")
def test_later_it_is_a_defect_and_the_training_goes_on(tmp_path):
    model, twin, data = small_net(), small_net(), batches(5)
    optimizer = Looking(model.parameters(), [1, 1, 3, 1, 1])
    recorder = Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        train(model, optimizer, data, recorder)
    train(twin, Looking(twin.parameters(), [1, 1, 3, 1, 1]), data)
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), twin.parameters(), strict=True))
    memory = dualform.open(tmp_path / "m")
    assert memory.info().slots == {"sample": 40}
    for layer in memory.info().layers:
        assert layer.status.reason.endswith(
            "From step 2 on, Looking evaluated its closure more than once in the update of step 2."
        )


def test_lbfgs_is_recorded_for_scores(tmp_path):
    model, twin, data, keys = small_net(), small_net(), batches(3), []
    model[2].register_forward_hook(lambda module, args, output: keys.append(args[0].detach().clone()))
    options = {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS(model.parameters(), **options)
    recorder = Recorder(model, optimizer, tmp_path / "m", values=False)
    with recorder:
        train(model, optimizer, data, recorder)
    train(twin, torch.optim.LBFGS(twin.parameters(), **options), data)
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), twin.parameters(), strict=True))
    memory = dualform.open(tmp_path / "m")
    assert len(keys) > 6
    assert torch.equal(torch.from_numpy(memory.keys("2")), torch.cat(keys))
    (reason,) = {layer.status.reason for layer in memory.info().layers}
    assert reason.endswith("with gradients cleared in between: slots of all of them are there, used or not.")
