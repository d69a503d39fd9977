"""Weights that are computed from others: their layers have scores, and the network as of a step is whole anyway."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

import dualform
from dualform.errors import Inexact
from tests.cases import some
from tests.trainings import learn, record_steps

STEPS = 6


class Scaled(nn.Module):
    """A parametrization of one's own that draws and counts while it trains."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("looks", torch.zeros(()))

    def forward(self, weight):
        if self.training:
            self.looks += 1
        return self.scale * nn.functional.dropout(weight, 0.2, self.training)


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return weight_norm(layer)


def own(layer):
    return parametrize.register_parametrization(layer, "weight", Scaled())


def pruned(layer):
    return prune.l1_unstructured(layer, "weight", 0.5)


KINDS = {
    "weight norm": (parametrizations.weight_norm, "original0"),
    "spectral norm": (parametrizations.spectral_norm, "original"),
    "one's own": (own, "0.scale"),
    "pruned": (pruned, "weight_orig"),
    "the weight norm of before": (old_weight_norm, "weight_g"),
}


def network(kind):
    torch.manual_seed(0)
    return nn.Sequential(KINDS[kind][0](nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))


def train(model, recorder=None):
    """The model's states, as each step begins and at the end, and the inputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = None if recorder is None else recorder(model, optimizer)
    history, inputs = [], []

    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    with made or nullcontext():
        for _ in range(STEPS):
            x, y = torch.randn(6, 4, generator=generator), torch.arange(6) % 3
            history.append(copy.deepcopy(model.state_dict()))
            inputs.append(x)
            with made.step(label=y) if made else nullcontext():
                learn(optimizer, nn.functional.cross_entropy(model(x), y))
    history.append(copy.deepcopy(model.state_dict()))
    return history, torch.cat(inputs).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_exact_the_training_is_untouched_and_every_step_is_known(tmp_path, kind):
    model = network(kind)
    history, inputs = train(model, lambda *of: dualform.Recorder(*of, tmp_path / "m"))
    alone, _ = train(network(kind))
    for one, other in zip(history, alone, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one), "recording changes no bit"
    with dualform.open(tmp_path / "m") as memory:
        np.testing.assert_array_equal(memory.keys("0"), inputs)
        query = np.ones((1, 4), np.float32)
        hits = memory.topk("0", query, k=3)
        scores = (inputs.astype(float) @ query[0]).round(6)
        assert hits.slots[0].tolist() == np.lexsort((np.arange(len(scores)), -scores))[:3].tolist()
        layer = memory.info().layers[0]
        assert (layer.name, layer.d_in, layer.d_out, layer.status.name) == ("0", 4, 5, "scores only")
        for refused in (lambda: memory.output("0", query), lambda: memory.weights("label = 1")):
            with pytest.raises(Inexact, match="its weight is computed from others: .*0.*" + KINDS[kind][1]):
                refused()
        assert memory.verify()["0"].reconstruction_error is None
        assert memory.verify()["2"].exact
        for at_step, live in some(enumerate(history)):
            found = memory.weights(at_step=at_step)
            network(kind).load_state_dict(found)
            assert found.not_recorded == ()
            for name, value in live.items():
                if name.startswith("0"):
                    assert torch.equal(found[name], value), name
                else:
                    torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_a_convolution_and_an_embedding(tmp_path):
    torch.manual_seed(0)
    normed = map(parametrizations.weight_norm, (nn.Embedding(9, 4), nn.Conv1d(5, 3, 2)))
    model = nn.Sequential(*normed, nn.Flatten(), nn.Linear(9, 2))
    optimizer, tokens = torch.optim.AdamW(model.parameters(), lr=0.01), torch.arange(10).reshape(2, 5) % 9
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        3,
        lambda _: model(tokens).square().sum(),
        label=[0, 1],
    )
    with dualform.open(tmp_path / "m") as memory:
        assert memory.keys("0").argmax(1)[:10].tolist() == tokens.reshape(-1).tolist()
        assert memory.keys("1").shape == (3 * 2 * 3, 10)
        assert {name: one.exact for name, one in memory.verify().items()} == {"0": False, "1": False, "3": True}


class Quantized(nn.Linear):
    """As bases of adapters are: rounded numbers in a buffer."""

    def __init__(self, d_in, d_out):
        super().__init__(d_in, d_out, bias=False)
        weight = self.weight.detach()
        del self.weight
        self.register_buffer("weight", (weight * 100).to(torch.int8))

    def forward(self, x):
        return x @ (self.weight.float() / 100).T


class Adapted(nn.Module):
    """As peft lays out a LoRA."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x):
        return self.base_layer(x) + 4.0 * self.lora_B["default"](self.lora_A["default"](x))


def test_a_lora(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(nn.Linear(4, 6)), nn.ReLU(), Adapted(Quantized(6, 3)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    generator, history = torch.Generator().manual_seed(1), []
    with dualform.Recorder(model, optimizer, tmp_path / "m") as made:
        for _ in range(8):
            x, y = torch.randn(6, 4, generator=generator), torch.arange(6) % 3
            history.append(copy.deepcopy(model.state_dict()))
            with made.step(label=y):
                learn(optimizer, nn.functional.cross_entropy(model(x), y))
    assert made.skipped == {
        "0.base_layer": "its weight is frozen", "2.base_layer": "its weight is a buffer, which no optimizer moves",
    }  # fmt: skip
    with dualform.open(tmp_path / "m") as memory:
        assert list(memory.verify()) == [f"{n}.lora_{part}.default" for n in "02" for part in "AB"]
        assert all(one.reconstruction_error <= 1e-5 for one in memory.verify().values())
        found = memory.weights(at_step=7)
        assert found.not_recorded == ()
        for name, value in history[7].items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
