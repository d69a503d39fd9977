"""Query sets: layer inputs and outputs of test examples, taken without touching the training."""

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, RecordingError
from dualform.store.manifest import Manifest
from tests.trainings import learn

from .listed import Opened, batches, opened_on


def recorded(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    return model, opened


def step(model, opened):
    x, y = batches(1)[0]
    with opened.recorder.step(label=y):
        model(x).square().mean().backward()


@pytest.mark.parametrize("batch_size", [4, 1024])
def test_inputs_of_every_layer_and_outputs(tmp_path, batch_size):
    model, opened = recorded(tmp_path)
    x = torch.randn(11, 5)
    with opened.recorder:
        step(model, opened)
        model[1].eval()
        modes = [module.training for module in model.modules()]
        rng, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
        opened.recorder.query_set("test", x, label=torch.arange(11), batch_size=batch_size)
        assert [module.training for module in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), rng)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    queries, labels, outputs = opened.sink.query_sets["test"]
    model.eval()
    with torch.no_grad():
        hidden = model[1](model[0](x))
        np.testing.assert_array_equal(queries["0"], x.numpy())
        np.testing.assert_allclose(queries["3"], hidden.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs, model[3](hidden).numpy(), rtol=1e-5, atol=1e-6)
    assert labels.tolist() == list(range(11))
    assert len(opened.sink.recorded) == 1


def test_a_model_of_several_inputs_that_returns_no_matrix(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, a, b):
            return {"sum": self.layer(a + b)}

    model = Two()
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    a, b = torch.randn(4, 2, 5), torch.randn(4, 2, 5)
    with opened.recorder:
        with opened.recorder.step():
            model(a, b)["sum"].sum().backward()
        opened.recorder.query_set("pairs", (a, b))
        with pytest.raises(BadInput, match=r"^inputs contains 4 and 3 examples\."):
            opened.recorder.query_set("uneven", (a, b[:3]))
        with pytest.raises(BadInput, match=r"^label must be whole numbers, not float32\. Pass integers as labels\.$"):
            opened.recorder.query_set("labels", (a, b), label=torch.zeros(4))
    queries, labels, outputs = opened.sink.query_sets["pairs"]
    np.testing.assert_array_equal(queries["layer"], (a + b).reshape(8, 5).numpy())
    assert labels is None
    assert outputs is None


def test_a_query_set_needs_a_memory(tmp_path):
    _, opened = recorded(tmp_path)
    with (
        pytest.raises(RecordingError, match=r"^A query set cannot be stored before the first recorded step\."),
        opened.recorder,
    ):
        opened.recorder.query_set("test", torch.zeros(1, 5))


class Tagger(nn.Module):
    """A score for each token of a text, whose tokens' places are looked up, too."""

    def __init__(self, flat=False):
        super().__init__()
        self.words, self.places, self.head, self.flat = nn.Embedding(9, 4), nn.Embedding(6, 4), nn.Linear(4, 3), flat

    def forward(self, tokens):
        found = self.words(tokens) + self.places(torch.arange(tokens.shape[1])[None])
        return self.head(found.flatten(0, 1) if self.flat else found)


class Recurrent(nn.Module):
    """[tokens, texts, 4] become scores for each text, or for each of its tokens."""

    def __init__(self, last):
        super().__init__()
        self.cell, self.head, self.last = nn.GRU(4, 5), nn.Linear(5, 3), last

    def forward(self, x):
        found = self.cell(x)[0]
        return self.head(found[-1] if self.last else found)


class Unrolled(nn.Module):
    """[tokens, texts, 4], token after token."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(9, 5)

    def forward(self, x):
        state = x.new_zeros(x.shape[1], 5)
        for one in x:
            state = self.cell(torch.cat([one, state], dim=1)).tanh()
        return state


def examples_of_a_query_set(path, model, inputs, batch_dim=0, spaces=None, **given):
    """What the memory of a training says of the one query set that was taken of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, path, quiet=True, spaces=spaces) as recorder:
        with recorder.step():
            model(inputs).sum().backward()
            optimizer.step()
        recorder.query_set("test", inputs, batch_dim=batch_dim, **given)
    with dualform.open(path) as memory:
        (query_set,) = memory.info().query_sets
    return query_set.examples


TOKENS = torch.randint(9, (8, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"label": TOKENS[:, 0]},
        {"label": TOKENS},
        {"previews": dualform.PreviewSet.texts([str(row) for row in range(8)])},
        {"batch_size": 3},
        {"label": TOKENS[:, 0], "loss": lambda scores, label: scores[:, -1].square().mean(1) + 0 * label},
    ],
    ids=["alone", "labels", "labels of tokens", "preview_set", "in batches", "loss"],
)
def test_a_query_set_of_tokens_says_how_many_examples_it_has(tmp_path, given):
    assert examples_of_a_query_set(tmp_path / "m", Tagger(), TOKENS, **given) == 8


@pytest.mark.parametrize("labels", [7, 5, 47, 49, 0, 96])
def test_labels_that_are_not_one_for_each_example_or_token_are_refused(tmp_path, labels):
    for number, given in enumerate(({}, {"batch_size": 3})):
        with pytest.raises(BadInput) as refused:
            examples_of_a_query_set(tmp_path / str(number), Tagger(), TOKENS, label=torch.arange(labels), **given)
        assert refused.value.field == "label"
        assert str(refused.value) == (
            f"label has {labels} numbers, but the query set has 8 examples along axis 0 of its inputs. "
            "Pass one label for each example, or for each token."
        )
        with dualform.open(tmp_path / str(number)) as memory:
            assert memory.info().query_sets == ()


@pytest.mark.filterwarnings("ignore:query set 'test' is stored without the model's outputs")
@pytest.mark.parametrize(
    ("last", "batch_dim", "texts", "expected"),
    [
        (True, 1, 8, 8),
        (False, 1, 8, 8),
        (True, 0, 8, None),
        (False, 0, 8, None),
        (True, 0, 1, None),
        (False, 0, 12, None),
    ],
)
def test_of_a_network_whose_batch_comes_second_the_number_is_told_or_left_unknown(
    tmp_path, last, batch_dim, texts, expected
):
    inputs = torch.randn(6, texts, 4)
    assert examples_of_a_query_set(tmp_path / "m", Recurrent(last), inputs, batch_dim) == expected


def test_rows_that_may_be_tokens_or_texts_leave_the_number_unknown_unless_labels_or_a_preview_set_tell_it(tmp_path):
    inputs = torch.randn(4, 8, 4)
    assert examples_of_a_query_set(tmp_path / "unrolled", Unrolled(), inputs) is None
    assert examples_of_a_query_set(tmp_path / "named", Unrolled(), inputs, batch_dim=1) == 8
    # A table of places is looked up once for all texts, and tells nothing.
    assert examples_of_a_query_set(tmp_path / "flat", Tagger(flat=True), TOKENS, spaces={"head": "token"}) == 8


@pytest.mark.filterwarnings("ignore:query set 'test' is stored without the model's outputs")
@pytest.mark.parametrize(
    ("last", "batch_dim", "tokens", "expected"),
    [(True, 0, 16, None), (False, 1, 16, 8), (True, 1, 4, 8), (False, 0, 4, None)],
)
def test_parts_of_a_query_set_that_are_square_do_not_pass_tokens_for_examples(
    tmp_path, last, batch_dim, tokens, expected
):
    inputs = torch.randn(tokens, 8, 4)
    size = 8 if tokens == 16 else 4
    assert examples_of_a_query_set(tmp_path / "m", Recurrent(last), inputs, batch_dim, batch_size=size) == expected


def test_a_query_set_of_which_some_parts_are_square_says_how_many_examples_it_has(tmp_path):
    assert examples_of_a_query_set(tmp_path / "m", Tagger(), TOKENS, batch_size=6) == 8


@pytest.mark.parametrize(("preview_set", "expected"), [(dualform.PreviewSet.texts(list("abcdefgh")), 8), (None, None)])
def test_of_an_older_record_the_preview_set_says_how_many_examples_a_query_set_has(tmp_path, preview_set, expected):
    assert examples_of_a_query_set(tmp_path / "m", Tagger(), TOKENS, previews=preview_set) == 8
    manifest = Manifest.read(tmp_path / "m")
    del manifest.query_sets["test"]["examples"]
    manifest.write(tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().query_sets[0].examples == expected


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_sparse_examples_are_cut_into_batches_as_they_are(tmp_path, layout):
    model, dense = nn.Linear(5, 3), batches(1)[0][0] * torch.tensor([0.0, 1, 0, 1, 1])
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append((args[0].layout, len(args[0]))))
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        with opened.recorder.step():
            model(dense).sum().backward()
        seen.clear()
        opened.recorder.query_set("test", dense.to_sparse(layout=layout), batch_size=3)
        with pytest.raises(BadInput, match=r"^inputs contain a nested tensor, which cannot be split into batches\."):
            opened.recorder.query_set("nested", torch.nested.nested_tensor([dense[:2], dense[2:]], layout=torch.jagged))
    assert seen == [(layout, 3), (layout, 3), (layout, 2)]
    assert np.array_equal(opened.sink.query_sets["test"][0][""], dense.numpy())


NO_NAMES = ["", "..", ".", "-x", "x" * 201, "é", "a%2Fb", "a\0b", "\ud800", None, 7, "test", "a/b"]


def test_a_refused_name_changes_nothing_and_the_memory_comes_to_its_end(tmp_path):
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder, x, runs = dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True), torch.randn(4, 5), []

    def train():
        with recorder.step(label=torch.arange(4)):
            learn(optimizer, model(x).square().mean())

    with pytest.raises(BadInput, match="query set") as refused, recorder:  # noqa: PT012  leaving it is what is tested
        train()
        recorder.query_set("test", x)
        model.register_forward_hook(
            lambda *_: runs.append("a model runs once its query set's name is known to be right")
        )
        for name in NO_NAMES:
            with pytest.raises(BadInput) as found:
                recorder.query_set(name, x)
            assert len(str(found.value)) < 600, name
        assert runs == []
        train()
        recorder.query_set("a/b", x)
    assert str(refused.value) == str(found.value)
    with dualform.open(tmp_path / "m") as memory:
        info = memory.info()
        assert (info.steps, info.cut_off, [query_set.name for query_set in info.query_sets]) == (2, "", ["test"])
        assert memory.verify()[""].exact


def test_a_name_refused_within_a_step_leaves_that_step_out(tmp_path):
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True)
    with pytest.raises(BadInput, match="cannot name a query set"), recorder:  # noqa: PT012  as above
        for _ in range(2):
            with recorder.step():
                model(torch.ones(4, 5)).sum().backward()
                optimizer.step()
                if recorder.steps:
                    recorder.query_set("a/b", torch.ones(1, 5))
    assert "cut off" in dualform.open(tmp_path / "m").info().cut_off


class OfTokens(nn.Module):
    """[L, n] tokens, or [n, L], each with outputs of its own."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).tanh())


@pytest.mark.parametrize(
    ("most", "batch_dim", "length", "batch_size"),
    [(1 << 20, 0, 5, 1), (100, 1, 5, 1), (1 << 20, 1, 7, 4), (100, 1, 4, 4), (1 << 20, 1, 4, 4), (100, 0, 4, 4)],
)
def test_labels_and_outputs_of_tokens_belong_together(tmp_path, monkeypatch, most, batch_dim, length, batch_size):
    """Also where the first batch has fewer tokens than outputs that are kept beside summaries."""
    monkeypatch.setattr("dualform.record.query_sets.MOST_BYTES", most)
    torch.manual_seed(0)
    model, texts, labels = OfTokens(), torch.randint(9, (4, length)), torch.randint(9, (4, length))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, label = (texts.T, labels.T) if batch_dim else (texts, labels)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step(sample=range(4), batch_dim=batch_dim):
            model(inputs).square().mean().backward()
            optimizer.step()
        recorder.query_set("test", inputs, label=label, batch_dim=batch_dim, batch_size=batch_size)
    with torch.no_grad():
        outputs = model(texts).flatten(0, 1)
    with dualform.open(tmp_path / "m") as memory:
        found = memory.query_set("test")
        assert memory.info().output_layer == "head"
    np.testing.assert_array_equal(found.labels, labels.flatten().numpy())
    if found.summary is None:
        np.testing.assert_allclose(found.outputs, outputs.numpy(), atol=1e-5)
        return
    np.testing.assert_array_equal(found.summary.largest[:, 0], outputs.argmax(dim=1).numpy())
    loss = nn.functional.cross_entropy(outputs, labels.flatten(), reduction="none")
    np.testing.assert_allclose(found.summary.loss, loss.numpy(), atol=1e-4)
