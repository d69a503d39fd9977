"""Questions by what a network is given: each layer's own inputs are the queries, wherever the memory is."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, NotFound
from dualform_client import AsyncClient, Client
from dualform_service.server import Server
from tests.cases import some
from tests.query.test_backends import SETTINGS
from tests.trainings import take_steps


class Network(nn.Module):
    """Tokens in the second axis of the batch, a matrix of its own, a convolution in groups, and one layer twice."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.around = nn.MultiheadAttention(8, 2)  # time first
        self.own = nn.Parameter(torch.randn(8, 8) / 3)
        self.groups = nn.Conv1d(8, 4, 3, groups=2, padding=1)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 9)

    def forward(self, words, scale=None, more=None):
        tokens = self.embed(words).transpose(0, 1)  # [L, B, 8]
        tokens = tokens + self.around(tokens, tokens, tokens, need_weights=False)[0]
        tokens = torch.tanh(tokens @ self.own)
        features = self.groups(tokens.permute(1, 2, 0)).transpose(1, 2)
        if more is not None:
            features = features * more["scale"][0].view(-1, 1, 1)
        return self.head(self.drop(features).mean(1))


WORDS = torch.randint(0, 9, (30, 5), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("queries") / "m"
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        take_steps(
            recorder,
            optimizer,
            WORDS.split(6),
            lambda words: nn.functional.cross_entropy(model(words), words[:, 0]),
            label=lambda words: words[:, 0],
            batch_dim={"token": 1, "embed": 0},
        )
        recorder.query_set("test", WORDS[:4])
    with dualform.open(path) as memory:
        yield model, memory


def test_they_are_those_of_a_query_set_that_was_taken_as_the_training_ended(trained):
    model, memory = trained
    modes = [module.training for module in model.modules()]
    found = memory.queries(model, WORDS[:4])
    names = {name for layer in memory.info().layers for name in (layer.name, *layer.views)}
    assert found.keys() == names
    assert {"own", "groups.0", "groups.1", "around.q"} <= names
    for name in names:
        np.testing.assert_array_equal(found[name].rows, memory.query_set("test", name).queries, err_msg=name)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_few_examples_at_a_time_are_those_of_each_few_alone(trained):
    """Products of another number of rows may be rounded otherwise: bits are compared between batches of one size."""
    model, memory = trained
    found = memory.queries(model, WORDS[:4], batch_size=3)
    parts = [memory.queries(model, own) for own in (WORDS[:3], WORDS[3:4])]
    for name, rows in some(found.items()):
        np.testing.assert_array_equal(rows.rows, np.concatenate([part[name].rows for part in parts]), err_msg=name)


def test_the_same_answers_by_inputs_in_process_and_served(trained):
    model, memory = trained
    question = {"inputs": {"words": WORDS[:2]}, "model": model}
    asked = {
        "topk": ("head", {"k": 3}),
        "group_sum": ("groups.1", {"by": "label"}),
        "output": ("around.out_proj", {"at_step": 3}),
    }
    with Server(memory) as server, Client(server.address) as client:

        async def awaited(method, layer, named):
            async with AsyncClient(server.address) as remote:
                return await getattr(remote, method)(layer, **question, **named)

        for method, (layer, named) in asked.items():
            plain = getattr(memory, method)(layer, memory.queries(model, WORDS[:2])[layer], **named)
            answers = [getattr(one, method)(layer, **question, **named) for one in (memory, client)]
            for answer in (*answers, asyncio.run(awaited(method, layer, named))):
                if method == "topk":
                    assert answer.ids.tolist() == plain.ids.tolist()
                    np.testing.assert_array_equal(answer.flat_scores, plain.flat_scores)
                else:
                    numbers = "sums" if method == "group_sum" else "values"
                    np.testing.assert_array_equal(getattr(answer, numbers), getattr(plain, numbers))


def test_arguments_of_every_kind(trained):
    model, memory = trained
    scale = torch.ones(4)
    expected = memory.queries(model, WORDS[:4])
    for inputs in (
        {"words": WORDS[:4].numpy(), "scale": None, "more": {"scale": (scale,)}},
        {"words": WORDS[:4].tolist(), "scale": 2.0},
        (WORDS[:4], "same for all", {"scale": [scale]}),
    ):
        found = memory.queries(model, inputs, batch_size=3)
        for name, own in expected.items():
            np.testing.assert_allclose(found[name].rows, own.rows, rtol=1e-5, atol=1e-6)
    doubled = memory.queries(model, {"words": WORDS[:4], "more": {"scale": [2 * scale]}})
    np.testing.assert_allclose(doubled["head"].rows, 2 * expected["head"].rows, rtol=1e-5)
    for inputs, told in (
        ({"words": WORDS[:4], "more": {"scale": [scale[:3]]}}, "inputs contains 4 and 3 examples"),
        ({"words": object()}, "inputs must be tensors or arrays, not object."),
        ({"scale": None}, "inputs contains no examples"),
    ):
        with pytest.raises(BadInput, match=told):
            memory.queries(model, inputs)


def test_a_model_that_was_frozen_since_has_the_same_layers(trained):
    """torch computes `tokens @ own` as another product where nothing is trained. In float64 the two differ by 1e-15, so
    that the queries, which are float32, differ by one last place at most.
    """
    trained_model, memory = trained
    model = copy.deepcopy(trained_model).double()
    frozen = copy.deepcopy(model).requires_grad_(False)
    with pytest.warns(RuntimeWarning, match="not those that the training ended with"):
        expected, found = (memory.queries(one, WORDS[:4]) for one in (model, frozen))
    assert "own" in found
    assert found.keys() == expected.keys()
    for name, rows in found.items():
        np.testing.assert_array_max_ulp(rows.rows, expected[name].rows, maxulp=1)


def test_other_weights_are_told_of(trained):
    model, memory = trained
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head.bias += 1
    with pytest.warns(RuntimeWarning, match=r"not those that the training ended with \(head\.bias\)"):
        found = memory.queries(other, WORDS[:2])
    np.testing.assert_array_equal(found["head"].rows, memory.queries(model, WORDS[:2])["head"].rows)


def test_a_model_that_was_not_recorded_is_refused(trained):
    model, memory = trained
    other = Network()
    other.head = nn.Linear(4, 7)
    with pytest.raises(BadInput, match=r"Layer 'head' maps 4 to 7 in the model, but 4 to 9 in the memory\."):
        memory.queries(other, WORDS[:2])
    with pytest.raises(BadInput, match="The model does not call any layer of the memory: embed, "):
        memory.queries(nn.Sequential(nn.Linear(5, 2)), torch.ones(2, 5))
    with pytest.raises(NotFound, match=r"The model did not call layer 'tail' for these inputs\. It called embed, "):
        memory.topk("tail", inputs=WORDS[:2], model=model)


def test_queries_or_inputs_with_their_model(trained):
    model, memory = trained
    for named, told in (
        ({}, "queries are missing."),
        ({"inputs": WORDS}, "inputs= needs model=."),
        ({"model": model}, "model= needs inputs=."),
        ({"model": model, "inputs": WORDS, "queries": "test"}, "queries and inputs= cannot be combined."),
    ):
        with pytest.raises(BadInput, match=told):
            memory.topk("head", **named)


def test_a_query_set_takes_named_arguments(tmp_path):
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step(batch_dim={"token": 1, "embed": 0}):
            model(WORDS[:7]).square().mean().backward()
        recorder.query_set("named", words=WORDS[:4], scale=None)
        recorder.query_set("one", {"words": WORDS[:4], "more": {"scale": [torch.ones(4)]}})
        with pytest.raises(BadInput, match="inputs cannot be passed both as one argument and by name"):
            recorder.query_set("both", WORDS[:4], words=WORDS[:4])
    with dualform.open(tmp_path / "m") as memory:
        one, other = (memory.query_set(name, "own").queries for name in ("named", "one"))
        np.testing.assert_allclose(one, other, rtol=1e-6)


def losses(output, labels):
    return nn.functional.cross_entropy(output, labels, reduction="none")


@pytest.fixture(scope="module")
def undisturbed(trained):
    """What is answered where nothing is set in torch."""
    model, memory = trained
    with pytest.warns(RuntimeWarning, match="gradients has no gradients in 'own'"):
        gradients = memory.gradients(model, WORDS[:4], WORDS[:4, 0], losses)
    return told(gradients), told(memory.queries(model, WORDS[:4]))


def told(found):
    if isinstance(found, dict):
        return {name: own.rows.tobytes() for name, own in found.items()}
    return {name: (own.keys.tobytes(), own.errors.tobytes()) for name, own in found.layers.items()}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:gradients has no gradients in 'own'")
@pytest.mark.parametrize("setting", [name for name in SETTINGS if "medium" not in name and "bf16" not in name])
def test_no_setting_of_torch_changes_what_is_asked(trained, undisturbed, setting):
    """But for precisions in which the model itself computes, autocast among them: queries are what its layers take."""
    model, memory = trained
    with SETTINGS[setting]():
        words = WORDS[:4].clone() if setting == "inference mode" else WORDS[:4]
        gradients, queries = memory.gradients(model, words, words[:, 0], losses), memory.queries(model, words)
    assert told(gradients) == undisturbed[0]
    if "autocast" not in setting:
        assert told(queries) == undisturbed[1]
        return
    taken = []
    with SETTINGS[setting](), model.head.register_forward_pre_hook(lambda _, args: taken.append(args[0])):
        model.eval()(words)
    # The layer's input, as the product takes it.
    half = torch.float16 if setting == "autocast to float16" else torch.bfloat16
    np.testing.assert_array_equal(queries["head"].rows, taken[0].detach().to(half).float().numpy())
