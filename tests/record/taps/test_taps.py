"""Taps of products by hand, by `dualform.tap` and by your own kind of layer."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import Recorder, tap
from dualform.errors import BadInput, RecordingError
from dualform.record.taps import Parameter
from dualform.record.taps.matrix import BY_HAND
from dualform.store.maintenance.check import check_memory
from dualform.store.maintenance.copying import copy_memory
from tests.record.listed import Opened
from tests.record.product_tap import Product
from tests.trainings import take_steps


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
    assert BY_HAND == []


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


def test_another_matrix_by_the_same_name_and_a_name_that_is_first_told_later_are_told_of(tmp_path):
    model = Tied()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        steps(opened, model, 1)
        model.name = "late"
        with pytest.warns(RuntimeWarning, match="^late was first recorded by hand after the first step"):
            steps(opened, model, 1)
        model.forward = lambda words: dualform.tap(model.embedding(words), model.pair[0], "second")
        with pytest.warns(RuntimeWarning, match="^second was recorded by hand with another matrix than at first"):
            steps(opened, model, 1)
    assert opened.sink.layer_names == ["embedding", "second", "head"]
    assert len(opened.sink.parts("second")) == 2


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


def test_what_is_no_shard_is_refused(tmp_path):
    model = nn.Linear(3, 2)
    with pytest.raises(BadInput) as caught:
        Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", ranks="two")
    assert str(caught.value) == (
        "ranks must be a number or a TrainingShard; str lacks agree, check_folder, close, gather, number, parted, "
        "summed, writer. Pass the number of ranks, for example ranks=torch.distributed.get_world_size()."
    )
