"""Embeddings and bags of them: a key is a row number, or the weights of a bag's rows; against one-hot rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import NotFound
from dualform.record.taps import ModuleTap, embedding
from tests.record.taps.block_trainings import assert_exact, sgd
from tests.trainings import learn, record_steps

L, V, D, CLASSES = 5, 17, 8, 3


class Bag(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, D, **options), nn.Linear(D, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)).mean(1))


class Placed(Bag):
    """An embedding of positions, or of distances between them, beside one of tokens."""

    def __init__(self, places):
        super().__init__()
        self.positions, self.places = nn.Embedding(2 * L, D), places

    def forward(self, x):
        own = self.positions(self.places)
        return self.head(torch.tanh(self.embed(x) + (own.mean(0) if own.dim() == 3 else own)).mean(1))


PLACES = {
    "positions of one row": torch.arange(L)[None],
    "distances": torch.arange(L)[:, None] - torch.arange(L) + L,
}


@pytest.mark.parametrize(("places", "rows"), [*zip(PLACES, [L + 1, L], strict=True)])
@pytest.mark.filterwarnings("ignore:whether layer 'positions'")
def test_what_is_looked_up_once_for_all_rows_is_of_no_row(tmp_path, places, rows):
    model = Placed(PLACES[places])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        3,
        lambda _: model(torch.randint(0, V, (rows, L), generator=generator)).square().sum(),
        sample=np.arange(rows),
        batch_dim=0,
    )
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["embed", "head", "positions"])
        assert {layer.name: layer.space for layer in memory.info().layers}["positions"] == "positions"
        seen = memory.slots(np.arange(PLACES[places].numel()), "positions")["sample"]
        assert np.ma.count(seen) == 0


class Labelled(Bag):
    """An embedding of one class of each row, beside one of tokens."""

    def __init__(self):
        super().__init__()
        self.classes = nn.Embedding(CLASSES, D)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x) + self.classes(x[:, 0] % CLASSES)[:, None]).mean(1))


def spaces_of(path, rows, **options):
    model = Labelled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randint(0, V, (rows, L), generator=torch.Generator().manual_seed(1))
    record_steps(
        dualform.Recorder(model, optimizer, path, **options),
        optimizer,
        1,
        lambda _: model(x).square().sum(),
        sample=np.arange(rows),
        batch_dim=0,
    )
    with dualform.open(path) as memory:
        return {layer.name: layer.space for layer in memory.info().layers}


def test_one_number_of_each_row_is_a_sample_unless_it_may_be_one_of_each_position(tmp_path):
    rows = {"embed": "token", "classes": "sample", "head": "sample"}
    assert spaces_of(tmp_path / "told", L + 1) == rows
    with pytest.warns(RuntimeWarning, match=r"^whether layer 'classes' saw one number of each row"):
        assert spaces_of(tmp_path / "doubtful", L) == {**rows, "classes": "classes"}
    assert spaces_of(tmp_path / "said", L, spaces={"classes": "sample"}) == rows


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_norm": 1.0}, "it changes its weight in each forward pass (max_norm)"),
        ({"sparse": True}, "its gradients are sparse (sparse=True)"),
        (
            {"scale_grad_by_freq": True},
            "it scales gradients by how often a token is in the batch (scale_grad_by_freq)",
        ),
    ],
    ids=["max_norm", "sparse", "scale_grad_by_freq"],
)
def test_what_is_not_recorded(tmp_path, options, reason):
    model = Bag(**options)
    made = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert made.skipped == {"embed": reason}


class Numbers(nn.Module):
    """An embedding of rows or of their tokens alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(40, D), nn.Linear(D, CLASSES)

    def forward(self, x):
        own = torch.tanh(self.embed(x))
        return self.head(own if own.dim() == 2 else own.mean(1))


def train_on(model, path, batches, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, path, **options),
        optimizer,
        batches,
        lambda x: model(x).square().sum(),
        label=lambda x: np.arange(len(x)) % CLASSES,
        batch_dim=0,
    )
    memory = dualform.open(path)
    return memory, {layer.name: layer.space for layer in memory.info().layers}


DOUBTFUL = {"rows in order": torch.arange(8), "tokens with an even diagonal": torch.tensor([[1, 2], [3, 1]])}


@pytest.mark.parametrize("first", DOUBTFUL.values(), ids=DOUBTFUL)
def test_a_first_batch_that_may_be_positions_is_named(tmp_path, first):
    batches = [first, torch.randint(40, first.shape, generator=torch.Generator().manual_seed(1))]
    with pytest.warns(RuntimeWarning, match=r"^whether layer 'embed' saw .* its numbers are those of positions"):
        memory, spaces = train_on(Numbers(), tmp_path / "doubtful", batches)
    assert spaces["embed"] == "embed"
    with pytest.raises(NotFound) as caught:
        memory.topk("embed", np.ones((1, 40), np.float32), k=1, where="label = 1")
    assert str(caught.value).endswith("Spaces that have it: sample.")
    with pytest.raises(
        NotFound, match=r"\(space 'embed'\)\. Spaces that have it: sample\. Filter .* --where-space SPACE"
    ):
        memory.weights("label = 1")
    said = "sample" if first.dim() == 1 else "token"
    memory, spaces = train_on(Numbers(), tmp_path / "said", batches, spaces={"embed": said})
    assert spaces["embed"] == said


def test_the_row_of_a_single_sequence_is_known(tmp_path):
    memory, spaces = train_on(Numbers(), tmp_path / "m", [torch.arange(6)[None], torch.arange(4, 10)[None]])
    assert spaces["embed"] == "token"
    assert memory.slots(np.arange(12), "token")["label"].tolist() == [0] * 12


class Patched(nn.Module):
    """Patches, and positions that begin at three."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(1, D, (1, 2), stride=(1, 2))
        self.positions, self.head = nn.Embedding(20, D), nn.Linear(D, CLASSES)

    def forward(self, x):
        own = self.patches(x[:, None, None]).flatten(2).transpose(1, 2)
        return self.head(torch.tanh(own + self.positions(torch.arange(3, 3 + own.shape[1]))).mean(1))


def test_positions_beside_patches_alone(tmp_path):
    with pytest.warns(RuntimeWarning, match=r"^whether layer 'positions' saw one number of each row or of each"):
        _, spaces = train_on(Patched(), tmp_path / "square", [torch.randn(4, 8)])
    assert spaces["positions"] == "positions"
    _, spaces = train_on(Patched(), tmp_path / "told", [torch.randn(5, 8)])
    assert spaces["positions"] == "positions"


def test_positions_are_told_by_the_number_of_labels(tmp_path):
    """Nothing but tokens and what is said shows how many rows there are."""
    model = Placed(torch.arange(3, 3 + L))
    model.head = nn.Identity()
    _, spaces = train_on(model, tmp_path / "m", [torch.randint(0, V, (4, L))])
    assert spaces == {"embed": "token", "positions": "positions"}


WORDS, WIDTH, CLASSES_BAGS, BAGS, UPDATES = 11, 4, 3, 5, 8


class Network(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.head = nn.EmbeddingBag(WORDS, WIDTH, **options), nn.Linear(WIDTH, CLASSES_BAGS)

    def forward(self, *inputs, **named):
        return self.head(torch.tanh(self.bag(*inputs, **named)))


def counts_of(bags, weights=None):
    """[n, WORDS] of lists of words, one word after the other."""
    found = np.zeros((len(bags), WORDS), np.float32)
    for row, bag in enumerate(bags):
        for number, word in enumerate(bag):
            found[row, word] += 1.0 if weights is None else weights[row][number]
    return torch.from_numpy(found)


def as_list(bags, last=False):
    """As one list, and where each bag begins; `last`: and where the last one ends."""
    offsets = np.cumsum([0, *map(len, bags)])
    words = torch.tensor([word for bag in bags for word in bag], dtype=torch.int64)
    return words, torch.from_numpy(offsets if last else offsets[:-1])


def train_on_bags(model, path, inputs):
    optimizer = sgd(model)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step, (given_, named) in enumerate(inputs):
            labels = torch.arange(step, step + BAGS) % CLASSES_BAGS
            with recorder.step(label=labels):
                learn(optimizer, cross_entropy(model(*given_, **named), labels))
    return model


def test_weights_of_samples(tmp_path):
    rng, model = np.random.default_rng(0), Network(mode="sum")
    words = rng.integers(0, WORDS, (UPDATES, BAGS, 4))
    weights = rng.normal(size=words.shape).astype(np.float32)
    inputs = [
        ((torch.from_numpy(own),), {"per_sample_weights": torch.from_numpy(of).requires_grad_()})
        for own, of in zip(words, weights, strict=True)
    ]
    train_on_bags(model, tmp_path / "m", inputs)
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["bag", "head"])
        counts = [counts_of(own, of) for own, of in zip(words, weights, strict=True)]
        np.testing.assert_array_equal(memory.keys("bag"), torch.cat(counts).numpy())


def test_longer_bags_begin_other_files(tmp_path):
    rng, model = np.random.default_rng(1), Network(mode="sum")
    bags = [[rng.integers(0, WORDS, rng.integers(0, 4)).tolist() for _ in range(BAGS)] for _ in range(UPDATES)]
    bags[4][0] = list(range(10))
    bags[6][2] = [1] * 40
    train_on_bags(model, tmp_path / "m", [(as_list(own), {}) for own in bags])
    folder = tmp_path / "m" / "shard-00000" / "layers" / "bag"
    assert sorted(file.name for file in folder.glob("keys*")) == [
        "keys-000000.16.npy", "keys-000000.4.npy", "keys-000000.64.npy",
    ]  # fmt: skip
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["bag", "head"])
        np.testing.assert_array_equal(memory.keys("bag"), torch.cat([counts_of(own) for own in bags]).numpy())


REFUSED = {
    "max": ({"mode": "max"}, "each number of its output comes from another row (mode='max'), so it is not linear"),
    "sparse": ({"sparse": True}, "its gradients are sparse (sparse=True)"),
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
    st.one_of(st.none(), st.integers(-5, 4)),
    st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5),
    st.booleans(),
)
def test_keys_and_values_make_the_gradient(mode, padding, bags, last):
    torch.manual_seed(0)
    layer = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding, include_last_offset=last).double()
    words, offsets = as_list(bags, last)
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
    bags = [[[1, 2]] * BAGS, [[1, 2, 3, 4, 5], *[[3]] * (BAGS - 1)]]
    with pytest.warns(RuntimeWarning, match="layer 'bag' took a bag of 5 members"):
        train_on_bags(Network(mode="sum"), tmp_path / "m", [(as_list(own), {}) for own in bags])
    with dualform.open(tmp_path / "m") as memory:
        assert {layer.name: layer.status.name for layer in memory.info().layers} == {
            "bag": "approximate",
            "head": "exact",
        }
