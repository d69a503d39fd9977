"""The output layer is known by what it makes of a query set, also where only one layer was recorded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput
from tests.trainings import take_steps

CLASSES = 4


class Net(nn.Module):
    """What comes after `head` makes its outputs others than the network's."""

    def __init__(self, after=nn.Identity()):  # noqa: B008
        super().__init__()
        self.hidden, self.head, self.after = nn.Linear(6, CLASSES), nn.Linear(CLASSES, CLASSES), after

    def forward(self, x):
        return self.after(self.head(torch.tanh(self.hidden(x))))


@pytest.fixture
def record(tmp_path):
    def record(model, layers=None, query_set=True):
        torch.manual_seed(0)
        inputs, labels = torch.randn(20, 6), torch.randint(0, CLASSES, (20,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with dualform.Recorder(model, optimizer, tmp_path / "run", layers=layers, quiet=True) as recorder:
            take_steps(
                recorder,
                optimizer,
                3,
                lambda _: nn.functional.cross_entropy(model(inputs), labels),
                label=labels,
                sample=torch.arange(20),
            )
            if query_set:
                recorder.query_set("test", inputs[:5], label=labels[:5])
        return dualform.open(tmp_path / "run")

    return record


@pytest.mark.parametrize(
    ("after", "layers", "found"),
    [
        (nn.Identity(), None, "head"),
        (nn.Identity(), ["hidden"], None),
        (nn.Sigmoid(), None, None),
        (nn.LogSoftmax(dim=1), ["head"], None),
    ],
)
def test_a_layer_gives_the_outputs_only_if_they_are_its_own(record, after, layers, found):
    with record(Net(after), layers) as memory:
        assert memory.info().output_layer == found
        if found:
            assert memory.placebo(queries="test", where="label <> 1").margin.shape == (5,)
            return
        for ask in (memory.output, memory.topk, lambda queries: memory.placebo(queries=queries, where="label <> 1")):
            with pytest.raises(BadInput, match=r"which layer gives|the layer that gives") as refused:
                ask(queries="test")
            assert refused.value.field == "layer"
            assert (layers or ["head"])[0] in refused.value.hint


def test_the_only_layer_is_asked_where_nothing_tells_of_outputs(record):
    with record(nn.Sequential(nn.Linear(6, CLASSES)), query_set=False) as memory:
        assert memory.info().output_layer == "0"
