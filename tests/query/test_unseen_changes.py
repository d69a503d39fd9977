"""Changes that leave no trace in the recorded tensors are seen all the same, from training to status."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune

import dualform
from dualform.query.weights import exactness
from tests.cases import some
from tests.trainings import record_steps

STEPS = 6


def net(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


def record(path, model, optimizer, at_step=None, at_end=None, on_gradient=None, loss=cross_entropy):
    """Train for STEPS steps; `at_step(number)` before each, `at_end()` before the recorder is left."""
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number in range(STEPS):
            if at_step is not None:
                at_step(number)
            with recorder.step(label=y):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                if on_gradient is not None:
                    on_gradient(number)
                optimizer.step()
        if at_end is not None:
            at_end()
        return recorder


def statuses(path):
    with dualform.open(path) as memory:
        return {layer.name: layer.status for layer in memory.info().layers}


def replaced(model, optimizer):
    def at_step(number):
        if number == 3:
            model[0].weight = nn.Parameter(torch.zeros_like(model[0].weight))
            optimizer.param_groups[0]["params"] = list(model.parameters())

    return at_step


def test_weights_that_are_swapped_for_others_between_updates_and_swapped_back(tmp_path):
    """As for an evaluation with averaged weights: no version of the tensor moves, and the update finds it as it was."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = model[0].weight.data

    def swap(number):
        model[0].weight.data = torch.zeros_like(own) if number == 3 else own

    def swap_back(number):
        model[0].weight.data = own

    record(tmp_path / "m", model, optimizer, at_step=swap, on_gradient=swap_back)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["0"].exact
        layer = memory._view.snapshot.layer("0")
        assert [exactness.status(memory._view, layer, step).name for step in (2, 3, 4)] == [
            "exact",
            "approximate",
            "exact",
        ]


def test_a_parameter_that_another_takes_the_place_of(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record(tmp_path / "m", model, optimizer, at_step=replaced(model, optimizer))
    found = statuses(tmp_path / "m")
    assert (found["0"].name, found["2"].name) == ("approximate", "exact")
    assert found["0"].reason == "0.weight was replaced by another tensor at step 2 (from step 2 on)."
    with dualform.open(tmp_path / "m") as memory:
        with pytest.raises(dualform.DualformError, match=r"0\.weight was replaced by another tensor"):
            memory.output("0", np.ones((1, 5)))
        assert memory.output("0", np.ones((1, 5)), at_step=2).status.exact


def test_a_state_that_is_assigned_at_the_end(tmp_path):
    model = net()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record(tmp_path / "m", model, optimizer, at_end=lambda: model.load_state_dict(best, assign=True))
    found = statuses(tmp_path / "m")
    assert {status.name for status in found.values()} == {"approximate"}
    assert found["2"].reason == "2.weight was replaced by another tensor at step 5 (from step 5 on)."
    assert found["2"].error is None  # the weights are where they were, so there is no way to hold the distance against
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["0"].reconstruction_error == np.inf
        assert np.allclose(
            memory.output("0", np.ones((1, 5)), allow_inexact=True), best["0.weight"].sum(1) + best["0.bias"]
        )


def test_a_layer_that_is_pruned_at_the_end(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record(tmp_path / "m", model, optimizer, at_end=lambda: prune.l1_unstructured(model[0], "weight", 0.5))
    assert [status.name for status in statuses(tmp_path / "m").values()] == ["approximate", "exact"]


def test_a_weight_of_another_shape_ends_no_training(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def shrink():
        model[2].weight.data = model[2].weight.data[:2].clone()

    record(tmp_path / "m", model, optimizer, at_end=shrink)
    found = statuses(tmp_path / "m")
    assert [status.name for status in found.values()] == ["exact", "approximate"]


def test_gradients_that_were_zeroed_are_no_updates_though_the_batch_is_the_same(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for number in range(STEPS):
            with recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number % 2:
                    optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        steps = memory.slots(np.arange(12 * STEPS))["step"]
        coefficients = memory.coefficients("0", np.arange(12 * STEPS))
        assert (coefficients[steps % 2 == 0] == 0).all()
        assert coefficients[steps % 2 == 1] == pytest.approx(-0.1, rel=1e-6)


def test_a_single_number_is_held_to_the_factor_of_its_layer(tmp_path):
    """A penalty on a bias of one number would pass for a factor: one number is parallel to any other."""
    model = net(outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(output, y):
        return (output[:, 0] - y).square().mean() + 3 * model[2].bias.square().sum()

    torch.nn.init.constant_(model[2].bias, 2.0)
    record(tmp_path / "m", model, optimizer, loss=loss)
    found = statuses(tmp_path / "m")
    assert (found["0"].name, found["2"].name) == ("exact", "approximate")
    assert "of the gradient of 2.bias at step 0 is not in the recorded slots" in found["2"].reason


def test_the_last_update_before_a_crash_is_not_taken_for_granted(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m")
    with recorder:
        for number in range(STEPS):
            with recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number == STEPS - 1:
                    model[0].weight.grad[0] *= 3
                optimizer.step()
        recorder._training.recording.batches.sink.flush()  # as a crash leaves it: nobody has looked at the last update
        found = statuses(tmp_path / "m")["0"]
        assert (found.name, found.since) == ("approximate", STEPS - 1)
        assert found.reason.endswith("and its weights were not seen since.")
        recorder.flush()
        found = statuses(tmp_path / "m")["0"]
        assert found.name == "approximate"
        assert "not seen" not in found.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("foreach", [False, True])
def test_what_half_precision_loses_of_small_steps_is_followed_or_off(tmp_path, dtype, foreach):
    """Rounding is followed as the plain loop of the optimizer rounds; foreach's own is not."""
    model = net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=foreach)
    x, y = torch.randn(12, 5, dtype=dtype), torch.randint(0, 3, (12,))
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        STEPS,
        lambda _: cross_entropy(model(x).float(), y),
    )
    with dualform.open(tmp_path / "m") as memory:
        reconstructions = memory.verify()
        for layer in some(memory.info().layers):
            assert (layer.status.name == "approximate") == foreach
            error = reconstructions[layer.name].reconstruction_error
            assert (error is None or error > 1e-2) == foreach  # None: it moved less than rounding
