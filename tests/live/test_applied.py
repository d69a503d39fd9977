"""A model that computes with other weights for a while, and has its own bits again."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, RecordingError
from dualform_client import AsyncClient, Client
from dualform_service.server import Server
from tests.trainings import record_steps


class Tied(nn.Module):
    """Two names for one weight, and a scale that no recorded layer has."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.hidden, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.hidden(self.embed(x))))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("applied") / "m"
    torch.manual_seed(0)
    model, words = Tied(), torch.randint(0, 7, (6, 5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    record_steps(
        dualform.Recorder(model, optimizer, path),
        optimizer,
        words,
        lambda batch: nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten()),
        label=lambda batch: batch[:, 0],
    )
    with dualform.open(path) as memory:
        yield model, memory


def bits(model):
    return {name: value.view(torch.uint8).clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("question", [{"where": "label < 3"}, {"at_step": 2}, {"where": "label < 3", "at_step": 4}])
def test_it_computes_as_a_copy_that_loaded_the_weights(trained, question):
    model, memory = trained
    before, twin, x = bits(model), copy.deepcopy(model), torch.arange(7)[None]
    twin.load_state_dict(memory.weights(**question))
    with memory.applied(model, **question) as inside:
        assert torch.equal(model(x), twin(x))
        assert not same(bits(model), before)
        assert sorted(inside) == sorted(before)
        assert sorted(inside.others) == ["norm.bias", "norm.weight"]
        assert inside.not_recorded == ()
        assert inside.statuses.keys() == {"embed", "hidden", "head"}
    assert same(bits(model), before)
    assert model.head.weight is model.embed.weight


def test_types_are_the_models_own(trained):
    model, memory = trained
    half = copy.deepcopy(model).to(torch.bfloat16)
    before = bits(half)
    with memory.applied(half, at_step=1) as inside:
        assert torch.equal(half.hidden.weight, inside["hidden.weight"].to(torch.bfloat16))
        assert half.hidden.weight.requires_grad
    assert same(bits(half), before)


def test_an_exception_leaves_it_as_it_was(trained):
    model, memory = trained
    before = bits(model)
    with pytest.raises(ZeroDivisionError), memory.applied(model, at_step=0):
        1 / 0  # noqa: B018
    assert same(bits(model), before)


def test_a_graph_goes_backward_with_the_weights_that_it_was_made_with_and_no_others(trained):
    model, memory = trained
    x = torch.arange(7)[None]
    expected = torch.autograd.grad(model(x).square().sum(), model.hidden.weight)[0]
    before = model(x).square().sum()
    with memory.applied(model, at_step=0):
        first = model(x).square().sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            before.backward(retain_graph=True)
    assert torch.equal(torch.autograd.grad(before, model.hidden.weight)[0], expected)
    with memory.applied(model, at_step=2), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.backward()
    model.zero_grad()


def test_a_model_that_was_made_in_inference_mode(trained):
    model, memory = trained
    x = torch.arange(7)[None]
    with torch.inference_mode():
        other = Tied()
        other.load_state_dict(model.state_dict())
    before, twin = bits(other), copy.deepcopy(model)
    twin.load_state_dict(memory.weights(at_step=2))
    with memory.applied(other, at_step=2), torch.inference_mode():
        assert torch.equal(other(x), twin(x))
    assert same(bits(other), before)

    def write():
        with memory.applied(other, at_step=2), torch.inference_mode():
            other.hidden.weight.zero_()

    with pytest.raises(RecordingError, match=r"weights of the model changed inside memory\.applied"):
        write()
    assert same(bits(other), before)


def test_training_inside_is_told_of_and_lost(trained):
    model, memory = trained
    before, x = bits(model), torch.arange(7)[None]

    def train():
        with memory.applied(model, "step < 3"):
            model(x).sum().backward()
            torch.optim.SGD([model.hidden.weight], lr=1.0).step()

    with pytest.raises(RecordingError, match=r"weights of the model changed inside memory\.applied"):
        train()
    model.zero_grad()
    assert same(bits(model), before)


def test_nothing_is_written_into_a_model_that_does_not_fit(trained):
    _, memory = trained
    other = Tied()
    other.hidden = nn.Linear(4, 3)
    before = bits(other)
    with pytest.raises(BadInput, match=r"'hidden\.weight' is \[3, 4\] in the model and \[4, 4\] in the memory"):
        memory.applied(other, at_step=0).__enter__()
    with pytest.raises(BadInput, match=r"The model lacks 'embed\.weight', 'hidden\.weight', "):
        memory.applied(nn.Linear(4, 4), at_step=0).__enter__()
    assert same(bits(other), before)


def test_a_model_that_is_being_recorded_is_refused(trained, tmp_path):
    model, memory = trained
    part = nn.Sequential(model.hidden)  # another module, with a weight of the recorded model
    with dualform.Recorder(part, torch.optim.SGD(part.parameters(), lr=0.1), tmp_path / "n") as recorder:
        with pytest.raises(RecordingError, match="A recorder is open on this model"):
            memory.applied(model, at_step=0).__enter__()
        with recorder.step():
            part(torch.ones(2, 4)).sum().backward()
    model.zero_grad()
    with memory.applied(model, at_step=0):
        pass


def test_a_served_memory_and_an_awaited_answer(trained):
    model, memory = trained
    x = torch.arange(7)[None]
    with memory.applied(model, at_step=2):
        expected = model(x)
    with Server(memory) as server, Client(server.address) as client:
        with client.applied(model, at_step=2):
            assert torch.equal(model(x), expected)

        async def awaited():
            async with AsyncClient(server.address) as memory, memory.applied(model, at_step=2):
                return model(x)

        assert torch.equal(asyncio.run(awaited()), expected)
