"""What is one file each: a kind of layer with a form of keys and a key source of its own, and a kind of shard."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput
from dualform.record.layout import KeyForm
from dualform.record.ranks import TrainingShard
from dualform.record.recorder import Recorder
from dualform.record.taps import Call, ModuleTap, Parameter
from dualform.store.files.segment import npy
from dualform.store.reading.snapshot import Snapshot
from dualform.store.sources.key_format import KeyFormat, MadeRows, float32_rows
from dualform.store.writing.writer import Writer
from tests.trainings import learn, take_steps

from .block_trainings import assert_exact

B, STEPS = 4, 6


class SignRows(MadeRows):
    def make(self, rows):
        matrix, places = self.stored.holding(rows)
        return matrix[places].astype(np.float32)


class Places(KeyForm):
    """Keys [B, H * W, C] of whole maps, all of them signs."""

    space = "place"
    batch_axis = 0

    def source_of(self, dtype):
        return "signs"


class TappedTransposed(ModuleTap):
    """nn.ConvTranspose2d without bias: each place of its input brings a product of its own to the output."""

    key_form = Places()

    def __init__(self, name, module, values=True):
        super().__init__(name, module, values)
        self.d_in, self.d_out = module.weight.shape[0], module.weight[0].numel()
        self.parameters = {Parameter(f"{name}.weight", 0, self.d_in, transposed=True): module.weight}

    def call_of(self, args, kwargs, output):
        return Call(args[0].detach().flatten(2).transpose(1, 2), (output,), raw=False, argument=args[0])

    def error_of(self, key, kept, gradients):
        patches = nn.functional.unfold(gradients[0], self.module.kernel_size, stride=self.module.stride)
        return patches.transpose(1, 2)


@pytest.fixture
def signs():
    class Signs(KeyFormat, source="signs"):
        """Keys of -1, 0 and 1, stored in a byte each."""

        @property
        def forms(self):
            return (npy("|i1", self.d_in),)

        def accepted(self, keys):
            return float32_rows(keys, self.d_in).astype(np.int8)

        def source(self, stored):
            return SignRows(stored, stored.first_row, self.d_in)

    yield Signs
    del KeyFormat.named["signs"]


class Upsampling(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.head = nn.ConvTranspose2d(3, 2, 2, stride=2, bias=False), nn.Linear(2, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.up(x)).mean((2, 3)))


@pytest.mark.parametrize("shape", [(5, 4), (4, 4)])
def test_a_transposed_convolution_of_ones_own(tmp_path, signs, shape):
    model = Upsampling()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = []
    with Recorder(model, optimizer, tmp_path / "m", taps=[TappedTransposed("up", model.up)]) as recorder:
        for _ in range(STEPS):
            given.append(torch.randn(B, 3, *shape).sign())
            with recorder.step(label=np.arange(B) % 3):
                learn(optimizer, cross_entropy(model(given[-1]), torch.arange(B) % 3))
    assert_exact(dualform.open(tmp_path / "m"), ["up", "head"])
    memory = Snapshot.open(tmp_path / "m")
    assert {name: (layer.space, layer.source) for name, layer in memory.layers.items()} == {
        "up": ("place", "signs"), "head": ("sample", "rows"),
    }  # fmt: skip
    count = STEPS * B * shape[0] * shape[1]
    wanted = torch.cat([maps.flatten(2).transpose(1, 2).reshape(-1, 3) for maps in given]).numpy()
    np.testing.assert_array_equal(dualform.open(tmp_path / "m").keys("up", np.arange(count)), wanted)


class Solo:
    """A kind of shard for one process, which writes the first of one."""

    number, parted = 0, ""

    def __init__(self):
        self.updates, self.added, self.closed = [], 0, False

    def agree(self, update, step, recorded):
        self.updates.append((update, step))
        return recorded

    def summed(self, numbers, about):
        self.added += 1
        return numbers

    def check_folder(self, path):
        """It is new."""

    def writer(self, header):
        return Writer(header)

    def close(self):
        self.closed = True


def train(recorder, model, optimizer):
    with recorder:
        take_steps(recorder, optimizer, STEPS, lambda _: model(torch.randn(B, 3)).square().sum(), label=np.arange(B))


def test_a_kind_of_shard_of_ones_own(tmp_path):
    torch.manual_seed(0)
    model, shard = nn.Linear(3, 2), Solo()
    assert isinstance(shard, TrainingShard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(Recorder(model, optimizer, tmp_path / "m", ranks=shard), model, optimizer)
    assert shard.updates == [("of the step that runs", step) for step in range(STEPS)]
    assert (shard.added, shard.closed) == (STEPS, True)
    assert all(own.exact for own in dualform.open(tmp_path / "m").verify().values())


def test_what_is_no_shard_is_refused(tmp_path):
    model = nn.Linear(3, 2)
    with pytest.raises(BadInput) as caught:
        Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", ranks="two")
    assert str(caught.value) == (
        "ranks must be a number or a TrainingShard; str lacks agree, check_folder, close, number, parted, "
        "summed, writer. Pass the number of ranks, for example ranks=torch.distributed.get_world_size()."
    )
