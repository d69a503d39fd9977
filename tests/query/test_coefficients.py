"""The recurrence against torch's own SGD, one number at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput, NotFound
from dualform.query.weights.coefficients import coefficients
from dualform.rules import Update, named
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some

from ..store.small_memory import write

SGD = named("sgd")
PLAIN = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
RATES = st.sampled_from([0.0, 0.1, 0.5, 1.0])
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "lr": RATES,
            "momentum": st.sampled_from([0.0, 0.5, 0.9]),
            "dampening": st.sampled_from([0.0, 0.3]),
            "weight_decay": st.sampled_from([0.0, 0.1]),
            "nesterov": st.booleans(),
            "maximize": st.booleans(),
            "factor": st.sampled_from([1.0, 0.25, None]),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=50, deadline=None)
@given(steps=STEPS, buffer=st.sampled_from([None, 0.7]), seed=st.integers(0, 99))
def test_every_history_of_settings_gives_the_weight_that_torch_gives(steps, buffer, seed):
    gradients = np.random.default_rng(seed).normal(size=len(steps))
    weight = torch.nn.Parameter(torch.tensor([1.3], dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    if buffer is not None:
        optimizer.state[weight]["momentum_buffer"] = torch.tensor([buffer], dtype=torch.float64)
    updates = []
    for number, (step, gradient) in some(enumerate(zip(steps, gradients, strict=True))):
        setting = {name: value for name, value in step.items() if name != "factor"}
        optimizer.param_groups[0].update(setting)
        factor = step["factor"]
        weight.grad = None if factor is None else torch.tensor([gradient * factor])
        optimizer.step()
        if factor is not None:
            updates.append(Update(number, number, factor, setting))
        got = SGD.coefficients(updates, number + 1, has_buffers=buffer is not None)
        rebuilt = (
            got.initial * 1.3
            + got.buffers.get("momentum_buffer", 0.0) * (buffer or 0.0)
            + got.per_step @ gradients[: number + 1]
        )
        assert rebuilt == pytest.approx(float(weight.detach()), rel=1e-10, abs=1e-12)


def test_constant_momentum_has_the_closed_form():
    lr, m, steps = 0.1, 0.9, 20
    got = SGD.coefficients([Update(s, s, 1.0, {**PLAIN, "lr": lr, "momentum": m}) for s in range(steps)], steps)
    assert got.initial == 1
    assert got.per_step == pytest.approx([-lr * (1 - m ** (steps - s)) / (1 - m) for s in range(steps)])


def test_an_update_of_several_steps_and_gradients_never_used():
    got = SGD.coefficients([Update(1, 3, 0.5, PLAIN), Update(5, 5, 1.0, {**PLAIN, "lr": 0.2})], 7)
    assert got.per_step.tolist() == pytest.approx([0, -0.05, -0.05, -0.05, 0, -0.2, 0])


def test_from_a_memory(tmp_path):
    write(tmp_path / "m", [4, 4, 4])
    memory = Snapshot.open(tmp_path / "m")
    for at_step, stop in ((None, 3), (2, 2), (0, 0)):
        got = coefficients(memory, "layer-0.bias", at_step)
        expected = [-0.05 * (1 - 0.9 ** (stop - s)) / 0.1 for s in range(stop)]
        assert got.per_step == pytest.approx(expected)
        assert (got.initial, got.buffers) == (1.0, {})
    with pytest.raises(
        NotFound, match=r"^There is no recorded parameter 'x'\. Parameters: layer-0\.weight, layer-0\.bias"
    ):
        coefficients(memory, "x")
    with pytest.raises(BadInput, match=r"^at_step must be at most 3, the number of recorded steps, not 4\. Pass 0 "):
        coefficients(memory, "layer-0.bias", 4)
