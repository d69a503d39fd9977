"""Probes: layer inputs and outputs of test examples, taken without touching the training."""

import numpy as np
import pytest
import torch
from torch import nn

from dualform.errors import BadInput, RecordingError

from .listed import Opened, batches


def recorded(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    return model, opened


def step(model, opened):
    x, y = batches(1)[0]
    with opened.recorder.step(label=y):
        model(x).square().mean().backward()


@pytest.mark.parametrize("batch_size", [4, 1024])
def test_inputs_of_every_layer_and_outputs(tmp_path, batch_size):
    model, opened = recorded(tmp_path)
    x = torch.randn(11, 5)
    with opened.recorder:
        step(model, opened)
        model[1].eval()
        modes = [module.training for module in model.modules()]
        rng, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
        opened.recorder.probe("test", x, label=torch.arange(11), batch_size=batch_size)
        assert [module.training for module in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), rng)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    queries, labels, outputs = opened.sink.probes["test"]
    model.eval()
    with torch.no_grad():
        hidden = model[1](model[0](x))
        np.testing.assert_array_equal(queries["0"], x.numpy())
        np.testing.assert_allclose(queries["3"], hidden.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs, model[3](hidden).numpy(), rtol=1e-5, atol=1e-6)
    assert labels.tolist() == list(range(11))
    assert len(opened.sink.recorded) == 1


def test_a_model_of_several_inputs_that_returns_no_matrix(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, a, b):
            return {"sum": self.layer(a + b)}

    model = Two()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    a, b = torch.randn(4, 2, 5), torch.randn(4, 2, 5)
    with opened.recorder:
        with opened.recorder.step():
            model(a, b)["sum"].sum().backward()
        opened.recorder.probe("pairs", (a, b))
        with pytest.raises(BadInput, match=r"^inputs hold 4 and 3 examples\."):
            opened.recorder.probe("uneven", (a, b[:3]))
        with pytest.raises(BadInput, match=r"^label holds float32\. Labels are integers\.$"):
            opened.recorder.probe("labels", (a, b), label=torch.zeros(4))
    queries, labels, outputs = opened.sink.probes["pairs"]
    np.testing.assert_array_equal(queries["layer"], (a + b).reshape(8, 5).numpy())
    assert labels is None
    assert outputs is None


def test_a_probe_needs_a_memory(tmp_path):
    _, opened = recorded(tmp_path)
    with pytest.raises(RecordingError, match=r"^there is no memory before the first recorded step\."), opened.recorder:
        opened.recorder.probe("test", torch.zeros(1, 5))
