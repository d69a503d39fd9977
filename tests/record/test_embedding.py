"""Embeddings: a slot is a token, its key a row number; the record against one-hot rows made by hand."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import dualform
from dualform.errors import NotFound
from tests.cases import some
from tests.trainings import learn, record_steps

from .block_trainings import assert_exact, assert_live

STEPS, B, L, V, D, CLASSES = 24, 6, 5, 17, 8, 3


class Bag(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, D, **options), nn.Linear(D, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)).mean(1))


class Tied(nn.Module):
    """A language model in small: its head is its embedding, and its positions are looked up once for all rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.positions = nn.Embedding(V, D), nn.Embedding(L, D)
        self.mix, self.head = nn.Linear(D, D), nn.Linear(D, V, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.embed(x) + self.positions(torch.arange(x.shape[1])))))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, path, steps=STEPS, make=sgd, **options):
    generator = torch.Generator().manual_seed(1)
    optimizer = make(model)
    tokens = []
    with dualform.Recorder(model, optimizer, path, **options) as recorder:
        for step in range(steps):
            x = torch.randint(0, V, (B, L), generator=generator)
            tokens.append(x)
            with recorder.step(dataset="a" if step < steps // 2 else "b", sample=np.arange(B)):
                out = model(x)
                y = x[:, 0] % CLASSES if out.dim() == 2 else (x + 1) % V
                learn(optimizer, cross_entropy(out.flatten(0, -2), y.flatten()))
    return torch.stack(tokens)


@pytest.mark.parametrize("padding", [None, 3], ids=["plain", "padding_idx"])
def test_an_embedding(tmp_path, padding):
    model = Bag(padding_idx=padding)
    tokens = train(model, tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["embed", "head"])
        np.testing.assert_array_equal(memory.keys("embed"), one_hot(tokens.flatten(), V).numpy())
        space = next(layer.space for layer in memory.info().layers if layer.name == "embed")
        assert space == "token"
        columns = memory.slots(np.arange(L * B), space)
        np.testing.assert_array_equal(columns["sample"], np.repeat(np.arange(B), L))
        np.testing.assert_array_equal(columns["position"], np.tile(np.arange(L), B))
        assert_live(memory, model)
        if padding is not None:
            assert not memory.values("embed")[tokens.flatten() == padding].any()
        query = one_hot(torch.tensor([2, 3]), V).float()
        found = np.asarray(memory.output("embed", query.numpy()))
        np.testing.assert_allclose(found, model.embed(torch.tensor([2, 3])).detach().numpy(), atol=1e-5)
        hits = memory.topk("embed", query.numpy(), k=5)
        np.testing.assert_array_equal(hits.slots[0], np.flatnonzero(tokens.flatten() == 2)[:5])


def test_an_embedding_that_is_the_heads_weight_and_one_of_positions(tmp_path):
    model = Tied()
    train(model, tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["embed", "positions", "mix", "head"])
        assert_live(memory, model)
        spaces = {layer.name: layer.space for layer in memory.info().layers}
        assert spaces == {"embed": "token", "positions": "positions", "mix": "token", "head": "token"}
        np.testing.assert_array_equal(memory.keys("positions"), np.tile(np.eye(L, dtype=np.float32), (STEPS, 1)))
        rows = memory.slots(np.arange(L), "positions")["row"]
        assert all(row is None or row is np.ma.masked or row < 0 for row in rows)


class Placed(Bag):
    """An embedding of positions, or of distances between them, beside one of tokens."""

    def __init__(self, places):
        super().__init__()
        self.positions, self.places = nn.Embedding(2 * L, D), places

    def forward(self, x):
        own = self.positions(self.places)
        return self.head(torch.tanh(self.embed(x) + (own.mean(0) if own.dim() == 3 else own)).mean(1))


PLACES = {
    "positions": torch.arange(L),
    "positions of one row": torch.arange(L)[None],
    "backwards": torch.arange(L - 1, -1, -1),
    "distances": torch.arange(L)[:, None] - torch.arange(L) + L,
}


@pytest.mark.parametrize("rows", [L, L + 1], ids=["as many rows as tokens", "more rows"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.filterwarnings("ignore:whether layer 'positions'")
def test_what_is_looked_up_once_for_all_rows_is_of_no_row(tmp_path, places, rows):
    model = Placed(PLACES[places])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        5,
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


def test_a_query_set_has_rows_of_ones(tmp_path):
    model = Bag()
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randint(0, V, (B, L), generator=generator)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        with recorder.step(label=np.arange(B)):
            model(x).square().sum().backward()
            optimizer.step()
        recorder.query_set("test", x)
    with dualform.open(tmp_path / "m") as memory:
        np.testing.assert_array_equal(memory.query_set("test", "embed").queries, one_hot(x.flatten(), V).numpy())


@pytest.mark.parametrize("network", [Bag, Tied])
def test_embeddings_under_adamw(tmp_path, network):
    """Watched through entries of one-hot keys, and rebuilt by a trajectory."""
    model = network()
    train(model, tmp_path / "m", make=adamw)
    with dualform.open(tmp_path / "m") as memory:
        reconstructions = memory.verify()
        for layer in some(memory.info().layers):
            assert layer.status.exact, (layer.name, layer.status.reason)
            assert reconstructions[layer.name].reconstruction_error <= 2e-5
            assert layer.status.error == pytest.approx(
                reconstructions[layer.name].reconstruction_error, rel=0.3, abs=1e-8
            )


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
    train_on(Numbers(), tmp_path / "of no row", batches, routed=["embed"])


def test_the_row_of_a_single_sequence_is_known(tmp_path):
    memory, spaces = train_on(Numbers(), tmp_path / "m", [torch.arange(6)[None], torch.arange(4, 10)[None]])
    assert spaces["embed"] == "token"
    assert memory.slots(np.arange(12), "token")["label"].tolist() == [0] * 12


class Windowed(Numbers):
    """Distances in two dimensions between the four places of a window, looked up once for all rows."""

    def __init__(self):
        super().__init__()
        self.distances = nn.Embedding(9, D)
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None] + 1
        self.apart = apart[0] * 3 + apart[1]

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x) + self.distances(self.apart).mean(0)).mean(1))


@pytest.mark.parametrize("rows", [4, 6], ids=["as many rows as places", "more rows"])
@pytest.mark.filterwarnings("ignore:whether layer 'distances'")
def test_distances_in_two_dimensions_are_of_no_row(tmp_path, rows):
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(40, (rows, 4), generator=generator) for _ in range(3)]
    memory, spaces = train_on(Windowed(), tmp_path / "m", batches)
    assert spaces == {"embed": "token", "head": "sample", "distances": "distances"}
    assert np.ma.count(memory.slots(np.arange(16), "distances")["label"]) == 0
    assert_exact(memory, spaces)


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
