"""Taps of products by hand, by `dualform.tap` and by your own kind of layer; and your own kind of shard."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform import Recorder, tap
from dualform.errors import BadInput, RecordingError
from dualform.record.layout import KeyForm
from dualform.record.ranks import TrainingShard
from dualform.record.taps import Call, ModuleTap, Parameter
from dualform.record.taps.matrix import LISTENING
from dualform.store.files.segment import npy
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import copy_memory
from dualform.store.reading.snapshot import Snapshot
from dualform.store.sources.key_format import KeyFormat, MadeRows, float32_rows
from dualform.store.writing.writer import Writer
from tests.record.listed import Opened
from tests.record.product_tap import Product
from tests.record.taps.block_trainings import assert_exact
from tests.trainings import learn, take_steps


def product(weight):
    d_out, d_in = weight.shape
    return Product("weight", d_in, d_out, {Parameter("weight", 0, d_in): weight})


class Products(nn.Module):
    """A product by a module, by the model itself, and by hand."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.own = nn.Linear(6, 4), nn.Parameter(torch.randn(6, 4))
        self.named, self.head = nn.Parameter(torch.randn(4, 6)), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x) + x @ self.own + tap(x, self.named, "named")))


def of_products(path, inputs, **options):
    """A training, and the same without a recorder."""

    def run(path=None):
        model = Products()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ExitStack() as stack:
            recorder = (
                None if path is None else stack.enter_context(Recorder(model, optimizer, path, quiet=True, **options))
            )
            for x in inputs:
                with recorder.step() if recorder else ExitStack():
                    optimizer.zero_grad()
                    output = model(x)
                    (output.values() if output.is_nested else output).square().sum().backward()
                    optimizer.step()
        return model

    return run(path), run()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("layout", "first"), [(torch.sparse_coo, 0), (torch.sparse_csr, 1)], ids=str)
def test_sparse_inputs_are_recorded_dense(tmp_path, layout, first):
    drawn = torch.Generator().manual_seed(1)
    dense = [torch.randn(5, 6, generator=drawn) * (torch.rand(5, 6, generator=drawn) > 0.6) for _ in range(3)]
    inputs = [x if number < first else x.to_sparse(layout=layout) for number, x in enumerate(dense)]
    model, plain = of_products(tmp_path / "m", inputs)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with dualform.open(tmp_path / "m") as memory:
        assert [own.status.name for own in memory.verify().values()] == ["exact"] * 4
        for layer in ("layer", "own", "named"):
            assert np.array_equal(memory.keys(layer), torch.cat(dense).numpy())


def ragged():
    return torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)], layout=torch.jagged)


def test_nested_inputs_are_refused_at_first_and_a_defect_later(tmp_path):
    message = "layer 'layer' was given a nested tensor, whose rows are not rows of a batch"
    with pytest.raises(RecordingError, match=f"^{message}"):
        of_products(tmp_path / "first", [ragged()])
    model, plain = of_products(tmp_path / "later", [torch.ones(2, 6), ragged(), torch.ones(2, 6)])
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with dualform.open(tmp_path / "later") as memory:
        assert memory.info().steps == 3
        status = memory.verify()["layer"].status
        assert (status.name, status.since) == ("approximate", 1)
        assert status.reason == f"{message} (from step 1 on)."


ROWS, WIDTH, WORDS = 5, 4, 7


class Tied(nn.Module):
    """Words are looked up and predicted by one matrix, which is a layer's own parameter."""

    def __init__(self, name="head"):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.name = nn.Embedding(WORDS, WIDTH), name
        self.pair = nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def forward(self, words):
        x = dualform.tap(self.embedding(words), self.pair[1], "second")
        return dualform.tap(torch.tanh(x), self.embedding.weight, self.name)


def opened_on(model, path, **options):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), path, **options)


def steps(opened, model, count=3):
    generator = torch.Generator().manual_seed(1)
    take_steps(
        opened.recorder,
        opened.optimizer,
        (torch.randint(WORDS, (ROWS,), generator=generator) for _ in range(count)),
        lambda words: model(words).square().sum(),
        label=np.arange(ROWS),
    )


def test_without_a_recorder_it_is_the_product_alone():
    x, weight = torch.randn(ROWS, WIDTH), nn.Parameter(torch.randn(3, WIDTH))
    assert torch.equal(dualform.tap(x, weight, "any"), nn.functional.linear(x, weight))
    assert LISTENING == []


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (lambda model: model.embedding.weight * 2, "its matrix is neither a parameter of the model nor a view of one"),
        (
            lambda model: nn.Parameter(torch.ones(3, WIDTH)),
            "its matrix is neither a parameter of the model nor a view of one",
        ),
        (lambda model: model.embedding.weight[::2], "its matrix is not a block of embedding.weight"),
    ],
    ids=["computed", "of no model", "every other row"],
)
def test_a_matrix_that_is_no_part_of_a_parameter_is_named(tmp_path, weight, why):
    model = Tied()
    model.forward = lambda words: dualform.tap(model.embedding(words), weight(model), "other")
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        steps(opened, model, 1)
    assert opened.recorder.skipped["other"] == why


def test_a_name_that_another_layer_has_is_told_of(tmp_path):
    model = Tied(name="embedding")
    opened = opened_on(model, tmp_path / "m")
    with (
        opened.recorder,
        pytest.warns(RuntimeWarning, match="^embedding was recorded by hand under the name of another layer"),
    ):
        steps(opened, model, 1)
    assert opened.sink.layer_names == ["embedding", "second"]
    assert len(opened.sink.keys("embedding")) == ROWS


def test_another_matrix_by_the_same_name_is_told_of(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        steps(opened, model, 1)
        model.forward = lambda words: dualform.tap(model.embedding(words), model.pair[0], "second")
        with pytest.warns(RuntimeWarning, match="^second was recorded by hand with another matrix than at first"):
            steps(opened, model, 1)
    assert len(opened.sink.parts("second")) == 1


def test_a_name_that_is_first_told_later_is_told_of(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        steps(opened, model, 1)
        model.name = "late"
        with pytest.warns(RuntimeWarning, match="^late was first recorded by hand after the first step"):
            steps(opened, model, 1)
    assert opened.sink.layer_names == ["embedding", "second", "head"]


def test_a_layer_may_have_any_name(tmp_path):
    model, names = Tied(), ["..", "x" * 237, "a/b\\c:\0"]
    blocks = [*zip(names, (model.pair[0], model.pair[1], model.embedding.weight), strict=True)]
    model.forward = lambda words: sum(dualform.tap(model.embedding(words), own, name).sum(1) for name, own in blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    words, spaces = torch.arange(ROWS), {"embedding": "sample"}
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m", spaces=spaces, quiet=True)
    with recorder:
        take_steps(recorder, optimizer, 2, lambda _: model(words).square().sum(), label=np.arange(ROWS))
        recorder.query_set("test", words, label=np.arange(ROWS))
    with dualform.open(tmp_path / "m") as memory:
        for name in names:
            assert len(memory.topk(name, "test", k=2).slots[0]) == 2
            assert memory.verify()[name].exact
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
    assert len(list((tmp_path / "m" / "shard-00000" / "layers").iterdir())) == 4
    copy_memory(tmp_path / "m", tmp_path / "copy")
    dualform.delete(tmp_path / "copy", "label = 1")
    for path in ("m", "copy"):
        assert check_memory(tmp_path / path) == []
    with dualform.open(tmp_path / "copy") as memory:
        for name in names:
            assert len(memory.topk(name, np.ones((1, WIDTH), np.float32), k=2).slots[0]) == 2


@pytest.mark.parametrize("name", [None, 7, "\ud800"])
def test_a_name_that_is_no_text_is_refused(name):
    x, weight = torch.randn(ROWS, WIDTH), nn.Parameter(torch.randn(3, WIDTH))
    with pytest.raises(dualform.errors.BadInput, match="cannot name a layer"):
        dualform.tap(x, weight, name)


MAPS, STEPS = 4, 6


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


def test_a_transposed_convolution_of_ones_own(tmp_path, signs):
    shape = 5, 4
    model = Upsampling()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = []
    with Recorder(model, optimizer, tmp_path / "m", taps=[TappedTransposed("up", model.up)]) as recorder:
        for _ in range(STEPS):
            given.append(torch.randn(MAPS, 3, *shape).sign())
            with recorder.step(label=np.arange(MAPS) % 3):
                learn(optimizer, cross_entropy(model(given[-1]), torch.arange(MAPS) % 3))
    assert_exact(dualform.open(tmp_path / "m"), ["up", "head"])
    memory = Snapshot.open(tmp_path / "m")
    assert {name: (layer.space, layer.source) for name, layer in memory.layers.items()} == {
        "up": ("place", "signs"), "head": ("sample", "rows"),
    }  # fmt: skip
    count = STEPS * MAPS * shape[0] * shape[1]
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


def train_shard(recorder, model, optimizer):
    with recorder:
        take_steps(
            recorder, optimizer, STEPS, lambda _: model(torch.randn(MAPS, 3)).square().sum(), label=np.arange(MAPS)
        )


def test_a_kind_of_shard_of_ones_own(tmp_path):
    torch.manual_seed(0)
    model, shard = nn.Linear(3, 2), Solo()
    assert isinstance(shard, TrainingShard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_shard(Recorder(model, optimizer, tmp_path / "m", ranks=shard), model, optimizer)
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
