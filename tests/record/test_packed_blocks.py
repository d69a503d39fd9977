"""Blocks of one packed parameter, as the queries, keys and values of attention have one."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import dualform
from dualform.errors import RecordingError
from dualform.record.taps import Parameter
from tests.record.block_trainings import (
    CLASSES,
    Attending,
    B,
    D,
    L,
    Packed,
    adamw,
    assert_exact,
    assert_live,
    brought,
    parted,
    statuses,
    train,
)
from tests.record.product_tap import Product
from tests.trainings import record_steps


@pytest.mark.parametrize("momentum_before", [0, 3], ids=["from the start", "with momentum from before"])
def test_queries_keys_and_values_of_one_parameter(tmp_path, momentum_before):
    model = Attending()
    train(model, tmp_path / "m", model.attend.taps, momentum_before=momentum_before)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().skipped == {}
        assert_exact(memory, ["q", "k", "v", "stem", "head"])
        for tap in model.attend.taps:
            np.testing.assert_array_equal(memory.keys(tap.name), torch.cat(tap.seen).numpy())
        assert_live(memory, model)
        assert memory.weights().not_recorded == ()
        x = torch.randn(4, D, generator=torch.Generator().manual_seed(5))
        for i, part in enumerate("qkv"):
            rows = slice(D * i, D * i + D)
            live = linear(x, model.attend.in_proj_weight[rows], model.attend.in_proj_bias[rows])
            np.testing.assert_allclose(np.asarray(memory.output(part, x.numpy())), live.detach().numpy(), atol=1e-5)


def test_what_a_mask_leaves_of_a_block_is_what_its_slots_brought(tmp_path):
    model = Attending()
    train(model, tmp_path / "m", model.attend.taps)
    name = "attend.in_proj_weight"
    with dualform.open(tmp_path / "m") as memory:
        unrecorded_change, left = parted(memory, name)
        by_hand = np.concatenate([brought(memory, part, "a") for part in "qkv"])
        np.testing.assert_allclose(left - unrecorded_change, by_hand, atol=1e-6)
        assert np.abs(by_hand).max() > 1e-2


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


def test_a_block_under_adamw_is_what_it_is_as_a_parameter_of_its_own(tmp_path):
    class Single(nn.Module):
        """Packed with q, k and v apart."""

        def __init__(self):
            super().__init__()
            packed = Packed()
            self.head, parts = packed.head, packed.c_attn.detach().split(D, 1)
            for part, weight in zip("qkv", parts, strict=True):
                layer = nn.Linear(D, D, bias=False)
                layer.weight.data = weight.T.contiguous()
                setattr(self, part, layer)

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            return self.head((torch.softmax(q @ k.transpose(1, 2) / D**0.5, -1) @ v).mean(1))

    packed = Packed()
    train(packed, tmp_path / "packed", packed.taps, make=adamw)
    train(Single(), tmp_path / "single", make=adamw)
    with dualform.open(tmp_path / "packed") as one, dualform.open(tmp_path / "single") as other:
        for where in (None, "dataset = 'a'"):
            expected = np.concatenate([other.weights(where)[f"{part}.weight"].numpy() for part in "qkv"]).T
            np.testing.assert_allclose(one.weights(where)["c_attn"].numpy(), expected, atol=2e-6)


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
