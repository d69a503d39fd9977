"""Bags of an embedding: a slot is a bag, its key the weights of its rows; against a linear layer of those keys."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.record.taps import ModuleTap, embedding
from dualform.record.taps.embedding import RowCountForm
from dualform.store.sources.row_numbers import counted, unpacked
from tests.trainings import learn

from .block_trainings import adamw, assert_exact, assert_live, sgd

WORDS, D, CLASSES, B, STEPS = 11, 4, 3, 5, 8


class Network(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.head = nn.EmbeddingBag(WORDS, D, **options), nn.Linear(D, CLASSES)

    def forward(self, *inputs, **named):
        return self.head(torch.tanh(self.bag(*inputs, **named)))


class Dense(nn.Module):
    """The same network, given the counts themselves."""

    def __init__(self, network):
        super().__init__()
        self.bag, self.head = nn.Linear(WORDS, D, bias=False), copy.deepcopy(network.head)
        self.bag.weight.data = network.bag.weight.data.T.clone()

    def forward(self, counts):
        return self.head(torch.tanh(self.bag(counts)))


def counts_of(bags, weights=None, mean=False, padding=None):
    """[n, WORDS] of lists of words, one word after the other."""
    found = np.zeros((len(bags), WORDS), np.float32)
    for row, bag in enumerate(bags):
        members = [n for n, word in enumerate(bag) if word != padding]
        for n in members:
            weight = 1.0 if weights is None else weights[row][n]
            found[row, bag[n]] += np.float32(1 / len(members)) if mean else weight
    return torch.from_numpy(found)


def drawn(longest, seed=0):
    """Lists of up to `longest` words of each step, some of them empty."""
    rng = np.random.default_rng(seed)
    return [[rng.integers(0, WORDS, rng.integers(0, longest + 1)).tolist() for _ in range(B)] for _ in range(STEPS)]


def as_list(bags, last=False):
    """As one list, and where each bag begins; `last`: and where the last one ends."""
    offsets = np.cumsum([0, *map(len, bags)])
    words = torch.tensor([word for bag in bags for word in bag], dtype=torch.int64)
    return words, torch.from_numpy(offsets if last else offsets[:-1])


def train(model, path, inputs, make=sgd):
    optimizer = make(model)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step, (given_, named) in enumerate(inputs):
            labels = torch.arange(step, step + B) % CLASSES
            with recorder.step(label=labels):
                learn(optimizer, cross_entropy(model(*given_, **named), labels))
    return model


WAYS = {
    "sum": ({"mode": "sum"}, 6, adamw),
    "mean": ({}, 6, sgd),
    "mean of one": ({"mode": "mean"}, 1, sgd),
    "without padding": ({"mode": "mean", "padding_idx": 3}, 9, adamw),
    "last offset, without padding": ({"mode": "sum", "include_last_offset": True, "padding_idx": -1}, 5, sgd),
}


@pytest.mark.parametrize(("options", "longest", "make"), WAYS.values(), ids=WAYS)
def test_bags_are_what_a_linear_layer_of_their_counts_is(tmp_path, options, longest, make):
    bags, model = drawn(longest), Network(**options)
    dense = Dense(model)
    inputs = [(as_list(own, "include_last_offset" in options), {}) for own in bags]
    train(model, tmp_path / "m", inputs, make)
    padding = options.get("padding_idx")
    counts = [counts_of(own, None, options.get("mode") != "sum", padding and padding % WORDS) for own in bags]
    train(dense, tmp_path / "dense", [((own,), {}) for own in counts], make)
    with dualform.open(tmp_path / "m") as memory, dualform.open(tmp_path / "dense") as twin:
        assert_exact(memory, ["bag", "head"])
        assert_live(memory, model)
        assert [(layer.space, layer.slots) for layer in memory.info().layers] == [("sample", B * STEPS)] * 2
        np.testing.assert_allclose(memory.keys("bag"), torch.cat(counts).numpy(), rtol=1e-6)
        queries = np.abs(twin.keys("bag")[:3]) + np.float32(0.25)
        assert memory.topk("bag", queries, k=4).ids.tolist() == twin.topk("bag", queries, k=4).ids.tolist()
        for asked in ({}, {"where": "label = 1"}, {"at_step": 3}):
            found, wanted = (np.asarray(own.output("bag", queries, **asked)) for own in (memory, twin))
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_weights_of_samples(tmp_path):
    rng, model = np.random.default_rng(0), Network(mode="sum")
    words = rng.integers(0, WORDS, (STEPS, B, 4))
    weights = rng.normal(size=words.shape).astype(np.float32)
    inputs = [
        ((torch.from_numpy(own),), {"per_sample_weights": torch.from_numpy(of).requires_grad_()})
        for own, of in zip(words, weights, strict=True)
    ]
    train(model, tmp_path / "m", inputs)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["bag", "head"])
        counts = [counts_of(own, of) for own, of in zip(words, weights, strict=True)]
        np.testing.assert_array_equal(memory.keys("bag"), torch.cat(counts).numpy())


def test_longer_bags_begin_other_files(tmp_path):
    bags, model = drawn(3, 1), Network(mode="sum")
    bags[4][0] = list(range(10))
    bags[6][2] = [1] * 40
    train(model, tmp_path / "m", [(as_list(own), {}) for own in bags])
    folder = tmp_path / "m" / "shard-00000" / "layers" / "bag"
    assert sorted(file.name for file in folder.glob("keys*")) == [
        "keys-000000.16.npy", "keys-000000.4.npy", "keys-000000.64.npy",
    ]  # fmt: skip
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["bag", "head"])
        np.testing.assert_array_equal(memory.keys("bag"), torch.cat([counts_of(own) for own in bags]).numpy())


def test_a_query_set(tmp_path):
    model = Network(mode="sum")
    optimizer = sgd(model)
    words = torch.randint(0, WORDS, (B, 4))
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        with recorder.step():
            model(words).square().sum().backward()
            optimizer.step()
        recorder.query_set("test", words)
    with dualform.open(tmp_path / "m") as memory:
        np.testing.assert_array_equal(memory.query_set("test", "bag").queries, memory.keys("bag"))
        assert memory.topk("bag", "test/2", k=1).slots[0].tolist() == [2]


REFUSED = {
    "max": ({"mode": "max"}, "each number of its output comes from another row (mode='max'), so it is not linear"),
    "max_norm": ({"max_norm": 1.0}, "it changes its weight in each forward pass (max_norm)"),
    "sparse": ({"sparse": True}, "its gradients are sparse (sparse=True)"),
    "by frequency": (
        {"scale_grad_by_freq": True},
        "it scales gradients by how often a token is in the batch (scale_grad_by_freq)",
    ),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_product_is_not_recorded(tmp_path, options, reason):
    model = Network(**options)
    assert dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m").skipped == {
        "bag": reason
    }


@settings(max_examples=13, deadline=None)
@given(
    st.sampled_from(["sum", "mean"]),
    st.one_of(st.none(), st.integers(0, 4)),
    st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5),
)
def test_keys_and_values_make_the_gradient(mode, padding, bags):
    torch.manual_seed(0)
    layer = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding).double()
    words, offsets = as_list(bags)
    output = layer(words, offsets)
    error = torch.randn_like(output)
    output.backward(error)
    tap = ModuleTap.kind_of(layer)("bag", layer)
    key, form = tap.call_of((words, offsets), {}, output).key, tap.key_form
    assert form.leading(key) == (len(bags),)
    assert form.width(key) == 5
    keys = torch.cat([rows for _, rows in form.blocks(form.owned(key))]).double()
    torch.testing.assert_close(keys.T @ error, layer.weight.grad, rtol=1e-6, atol=1e-7)


def test_a_bag_of_too_many_members_has_no_slots(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "MOST_MEMBERS", 4)
    bags = [[[1, 2]] * B, [[1, 2, 3, 4, 5], *[[3]] * (B - 1)]]
    with pytest.warns(RuntimeWarning, match="layer 'bag' took a bag of 5 members"):
        train(Network(mode="sum"), tmp_path / "m", [(as_list(own), {}) for own in bags])
    with dualform.open(tmp_path / "m") as memory:
        assert {layer.name: layer.status.name for layer in memory.info().layers} == {
            "bag": "approximate",
            "head": "exact",
        }


@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # torch's own, as it traces
@pytest.mark.parametrize("as_one_list", [True, False])
def test_compiled_bags(tmp_path, as_one_list):
    bags = [[[1, 2, 2], [0, 4, 3], [8, 8, 8], [1, 0, 5], [7, 1, 2]]] * 3
    inputs = [(as_list(own) if as_one_list else (torch.tensor(own),), {}) for own in bags]
    trained = []
    torch.compiler.reset()
    for path in (tmp_path / "m", None):
        model = Network(padding_idx=0)
        model.compile(backend="aot_eager", fullgraph=True)
        optimizer = sgd(model)
        recorder = dualform.Recorder(model, optimizer, path) if path else nullcontext()
        with recorder:
            for given_, _ in inputs:
                with recorder.step() if path else nullcontext():
                    learn(optimizer, model(*given_).square().sum())
        trained.append(model.state_dict())
    assert all(torch.equal(own, trained[1][name]) for name, own in trained[0].items())
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["bag", "head"])
        found = torch.cat([counts_of(own, mean=True, padding=0) for own in bags])
        np.testing.assert_allclose(memory.keys("bag"), found.numpy(), rtol=1e-6)


def test_columns_of_counts():
    """Any, in any order, and some of them twice."""
    rng = np.random.default_rng(0)
    numbers, weights = rng.integers(0, 8, (6, 5)), rng.normal(size=(6, 5)).astype(np.float32)
    keys = torch.from_numpy(weights).view(torch.int32).long() << 32 | torch.from_numpy(numbers)
    chosen = torch.tensor([3, 0, 3, 6])
    ((slots, found, places),) = RowCountForm(7).columns(keys, chosen)
    found = found[:, places]
    assert slots == slice(0, 1024)
    np.testing.assert_array_equal(found.numpy(), counted(*unpacked(keys.numpy()), 7)[:, chosen.numpy()])
