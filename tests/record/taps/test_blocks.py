"""Layers that stand for blocks of parameters: transposed, tied, flattened, and packed as those of attention are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import dualform
from dualform.errors import RecordingError
from dualform.record.taps import Parameter
from tests.record.product_tap import Product
from tests.record.taps.block_trainings import (
    CLASSES,
    Attending,
    B,
    D,
    L,
    Packed,
    Transposed,
    adamw,
    assert_exact,
    assert_live,
    brought,
    parted,
    statuses,
    train,
)
from tests.trainings import record_steps

# Tied weights, one of them transposed.


class TiedTransposed(nn.Module):
    """An autoencoder whose decoder is its encoder's weight, transposed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.bias, self.head = nn.Linear(D, 5), nn.Parameter(torch.zeros(D)), nn.Linear(D, CLASSES)
        shared = Parameter("encoder.weight", 0, 5, transposed=True)
        self.decode = Product("decoder", 5, D, {shared: self.encoder.weight, Parameter("bias", 5, 6): self.bias})

    def forward(self, x):
        return self.head(self.decode(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias).mean(1))


def test_tied_weights_of_which_one_is_transposed(tmp_path):
    model = TiedTransposed()
    train(model, tmp_path / "m", [model.decode], momentum_before=3)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["decoder", "encoder", "head"])
        np.testing.assert_array_equal(memory.keys("decoder"), torch.cat(model.decode.seen).numpy())
        assert_live(memory, model)
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(5))
        live = linear(x, model.encoder.weight.T, model.bias).detach().numpy()
        np.testing.assert_allclose(np.asarray(memory.output("decoder", x.numpy())), live, atol=1e-5)
        terms = brought(memory, "encoder", "a") + brought(memory, "decoder", "a").T
        unrecorded_change, left = parted(memory, "encoder.weight")
        np.testing.assert_allclose(left - unrecorded_change, terms, atol=1e-6)


# An optimizer that is run again.


@pytest.mark.parametrize("network", [Transposed, Packed, TiedTransposed])
def test_blocks_under_adamw(tmp_path, network):
    model = network()
    taps = [tap for name in ("taps", "decode") for tap in np.ravel(getattr(model, name, []))]
    train(model, tmp_path / "m", taps, momentum_before=3, make=adamw)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, statuses(memory))
        assert_live(memory, model)
        for name, value in memory.weights().items():
            unrecorded_change, left = parted(memory, name)
            assert 1e-4 < np.abs(left - unrecorded_change).max() < np.abs(value.numpy() - unrecorded_change).max() + 0.1


def test_numbers_written_by_hand_are_seen_in_their_block_alone(tmp_path):
    model = Attending()

    def grow(module, args):
        module.attend.in_proj_weight.data[D : 2 * D] *= 1.01

    model.register_forward_pre_hook(grow)
    train(model, tmp_path / "m", model.attend.taps)
    with dualform.open(tmp_path / "m") as memory:
        assert {name: status.name for name, status in statuses(memory).items()} == {
            "q": "exact", "k": "approximate", "v": "exact", "stem": "exact", "head": "exact",
        }  # fmt: skip


def test_parts_that_are_not_recorded_stand_as_they_were(tmp_path):
    model = Attending("qk")
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, tmp_path / "m", model.attend.taps)
    live = {name: value.clone() for name, value in model.state_dict().items()}
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["q", "k", "stem", "head"])
        begun, masked, whole = memory.weights(at_step=0), memory.weights("dataset = 'a'"), memory.weights()
        for name in ("attend.in_proj_weight", "attend.in_proj_bias"):
            assert torch.equal(begun[name], initial[name])
            assert torch.equal(masked[name][2 * D :], live[name][2 * D :])
            assert not torch.equal(masked[name][: 2 * D], live[name][: 2 * D])
        rest = ("the rest of attend.in_proj_weight", "the rest of attend.in_proj_bias")
        assert [name for name in whole.others if "rest" in name] == list(rest)
        assert whole.not_recorded == ()
        assert_live(memory, model)


def test_a_training_goes_on_in_a_folder_of_its_own(tmp_path):
    model = Attending("qk")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator, y = torch.Generator().manual_seed(1), torch.arange(B) % CLASSES
    for run in ("one", "two"):
        record_steps(
            dualform.Recorder(model, optimizer, tmp_path / run, taps=model.attend.taps),
            optimizer,
            10,
            lambda _: cross_entropy(model(torch.randn(B, L, D, generator=generator)), y),
            sample=np.arange(B),
        )
        model.attend.in_proj_weight.data[2 * D :] += 1  # of v, which nobody records
    model.attend.in_proj_weight.data[2 * D :] -= 1  # as the second run ended
    with dualform.open([tmp_path / "one", tmp_path / "two"]) as memory:
        assert_exact(memory, ["q", "k", "stem", "head"])
        assert_live(memory, model)


# What has no block.


def refused(model, tmp_path, taps):
    with pytest.raises(RecordingError) as raised:
        dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", taps=taps)
    return raised.value.message


def test_blocks_that_overlap(tmp_path):
    model = Attending()
    model.attend.taps[1].parameters = {
        Parameter("attend.in_proj_weight", 0, D, rows=(D - 1, 2 * D - 1)): model.attend.in_proj_weight
    }
    assert refused(model, tmp_path, model.attend.taps) == (
        "layers 'q' and 'k' hold overlapping blocks of one parameter: attend.in_proj_weight[0:8] and "
        "attend.in_proj_weight[7:15]."
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Parameter("weight", 0, D), "layer 'p' holds 'weight', which is not in the model's state dict."),
        (
            Parameter("attend.in_proj_weight", 0, D, rows=(20, 28)),
            "layer 'p': attend.in_proj_weight[20:28] is outside attend.in_proj_weight, which has 24 rows.",
        ),
        (
            Parameter("attend.in_proj_weight", 0, D, columns=(0, 9)),
            "layer 'p': attend.in_proj_weight[:, 0:9] is outside attend.in_proj_weight, which has 8 columns.",
        ),
        (
            Parameter("attend.in_proj_weight", 0, D, rows=(0, 4)),
            "layer 'p': attend.in_proj_weight[0:4] has shape [4, 8] instead of [8, 8].",
        ),
        (
            Parameter("attend.in_proj_weight", 0, D, transposed=True),
            "layer 'p': attend.in_proj_weight has shape [8, 24] instead of [8, 8].",
        ),
        (
            Parameter("attend.in_proj_weight", D, D + 1, rows=(0, 8)),
            "layer 'p': attend.in_proj_weight[0:8] has shape [24, 8] instead of [8].",
        ),
    ],
    ids=["name", "rows", "columns", "shape", "transposed", "bias"],
)
def test_what_is_no_block_of_the_model(tmp_path, block, message):
    model = Attending()
    tap = Product("p", D, D, {block: model.attend.in_proj_weight})
    assert refused(model, tmp_path, [tap]) == message
