"""A tap needs no module: a product computed by hand is recorded by a tap of one's own."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import Recorder, tap
from dualform.errors import RecordingError
from dualform.store.layer import Parameter
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, snapshot
from .product_tap import Product


def product(weight):
    d_out, d_in = weight.shape
    return Product("weight", d_in, d_out, {Parameter("weight", 0, d_in): weight})


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.last = nn.Parameter(torch.randn(4, 3)), nn.Linear(4, 2)
        self.product = product(self.weight)

    def forward(self, x):
        return self.last(torch.relu(self.product(x, self.weight)))


def test_a_product_by_hand(tmp_path):
    model = ByHand()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", taps=[model.product])
    x, snapshots = torch.randn(6, 3), [snapshot(model)]
    with opened.recorder:
        for _ in range(3):
            with opened.recorder.step(label=np.arange(6)):
                learn(opened.optimizer, model(x).square().sum())
            snapshots.append(snapshot(model))
        opened.recorder.query_set("test", x)
    assert model.product.listener is None
    assert [(layer.name, layer.d_in, layer.repeats) for layer in opened.sink.layers] == [
        ("weight", 3, True), ("last", 4, False),
    ]  # fmt: skip
    np.testing.assert_array_equal(opened.sink.keys("weight"), torch.cat([x] * 3).numpy())
    np.testing.assert_array_equal(opened.sink.query_sets["test"][0]["weight"], x.numpy())
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def test_a_layer_says_what_its_product_was_computed_in(tmp_path):
    for dtype, said in ((torch.bfloat16, "bfloat16"), (torch.float64, "float32"), (torch.float32, "float32")):
        model = nn.Linear(3, 2, dtype=dtype)
        opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
        with opened.recorder, opened.recorder.step():
            model(torch.randn(4, 3, dtype=dtype)).square().sum().backward()
        assert [layer.dtype for layer in opened.sink.layers] == [said]


def test_under_autocast_a_layer_says_bfloat16(tmp_path):
    model = nn.Linear(3, 2)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    with opened.recorder, opened.recorder.step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(4, 3)).float().square().sum()
        loss.backward()
    assert [layer.dtype for layer in opened.sink.layers] == ["bfloat16"]


def test_a_tap_of_another_shape_than_it_says_is_refused_before_the_first_step(tmp_path):
    model = ByHand()
    tap = product(model.weight)
    tap.parameters = {Parameter("weight", 0, 3): nn.Parameter(torch.ones(4, 3, 3))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RecordingError) as raised:
        Opened(model, optimizer, tmp_path / "m", taps=[tap])
    assert raised.value.message == "layer 'weight': weight has shape [4, 9] instead of [4, 3]."


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
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
@pytest.mark.parametrize("first", [0, 1], ids=["always", "later"])
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


@pytest.mark.parametrize("on_error", ["raise", "stop_recording"])
def test_nested_inputs_are_refused_at_first_and_a_defect_later(tmp_path, on_error):
    message = "layer 'layer' was given a nested tensor, whose rows are not rows of a batch"
    with pytest.raises(RecordingError, match=f"^{message}"):
        of_products(tmp_path / "first", [ragged()], on_error=on_error)
    model, plain = of_products(tmp_path / "later", [torch.ones(2, 6), ragged(), torch.ones(2, 6)], on_error=on_error)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with dualform.open(tmp_path / "later") as memory:
        assert memory.info().steps == 3
        status = memory.verify()["layer"].status
        assert (status.name, status.since) == ("approximate", 1)
        assert status.reason == f"{message} (from step 1 on)."
