"""What a model returns for each token of a query set is kept, example after example, and finds the output layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.record import query_sets
from dualform_proto.messages import QUERY_SET
from tests.cases import pairwise
from tests.trainings import take_steps

WORDS, PLACES, WIDTH = 13, 8, 12


class GPT(nn.Module):
    """One block of attention, whose head may be the table of words."""

    def __init__(self, tied=False, flat=False, result=lambda logits: logits):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm, self.mlp = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(WIDTH, WORDS, bias=not tied)
        self.flat, self.result = flat, result
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        x = self.dropout(x + self.mlp(self.norm(x)).relu())
        return self.result(self.head(x.flatten(0, 1) if self.flat else x))


class Held(GPT):
    """Holds a state for each of as many examples, and takes no fewer."""

    def __init__(self):
        super().__init__()
        self.state = torch.zeros(PLACES, 1, 1)

    def forward(self, tokens):
        return super().forward(tokens) + (0 if self.training else self.state)


class Classifier(nn.Module):
    """A class for each place of a sequence."""

    def __init__(self, batch_first):
        super().__init__()
        self.cell, self.head = nn.GRU(4, 6, batch_first=batch_first), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.cell(x)[0])


def hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=1, n_head=2, n_positions=PLACES)
    return transformers.GPT2LMHeadModel(config)


def tokens(examples=5, length=PLACES, seed=0):
    return torch.randint(WORDS, (examples, length), generator=torch.Generator().manual_seed(seed))


def trained(path, model, inputs, optimizer=torch.optim.SGD, lies=0, **given):
    """The memory of three steps on 5 examples of 8 tokens, which lie along an axis, and of the query set "test" of the
    inputs; and what the network returns for them in eval mode."""
    torch.manual_seed(1)
    updates = optimizer(model.parameters(), lr=0.01)
    seen = tokens() if inputs.dim() == 2 else torch.randn(5, PLACES, 4).movedim(0, lies)
    with dualform.Recorder(model, updates, path, quiet=True) as recorder:
        take_steps(recorder, updates, 3, lambda _: outputs_of(model(seen)).square().mean(), sample=torch.arange(5))
        recorder.query_set("test", inputs, **given)
    model.eval()
    with torch.no_grad():
        return dualform.open(path), outputs_of(model(inputs)).numpy()


def outputs_of(returned):
    found = getattr(returned, "logits", returned)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize(
    ("make", "head", "optimizer", "batch_size"),
    [
        (GPT, "head", torch.optim.SGD, 3),
        (GPT, "head", torch.optim.AdamW, 1),
        (lambda: GPT(tied=True), "head", torch.optim.SGD, 1),
        (lambda: GPT(tied=True), "head", torch.optim.AdamW, 1024),
        (lambda: GPT(result=lambda logits: (logits, None)), "head", torch.optim.AdamW, 3),
        (lambda: GPT(result=lambda logits: (logits.mean(), logits)[::-1]), "head", torch.optim.SGD, 1024),
        (hugging_face, "lm_head", torch.optim.AdamW, 3),
    ],
    ids=["torch", "torch by AdamW", "tied", "tied by AdamW", "with no loss", "with a loss", "transformers"],
)
def test_a_language_model_has_outputs_for_each_token(tmp_path, make, head, optimizer, batch_size):
    torch.manual_seed(0)
    inputs = tokens()
    labels = inputs.roll(-1, dims=1)
    labels[:, -1] = -1
    memory, expected = trained(tmp_path / "m", make(), inputs, optimizer, label=labels, batch_size=batch_size)
    with memory:
        query_set = memory.query_set("test", head)
        assert (query_set.examples, query_set.outputs.dtype) == (5, np.float32)
        assert query_set.outputs.shape == (5 * PLACES, WORDS)
        if batch_size == 1024:
            np.testing.assert_array_equal(query_set.outputs, expected.reshape(-1, WORDS))
        np.testing.assert_allclose(query_set.outputs, expected.reshape(-1, WORDS), rtol=1e-5, atol=1e-6)
        assert query_set.labels.tolist() == labels.flatten().tolist()
        assert memory.info().output_layer == head
        # The queries of the layer that is found stand in the same order.
        found = memory.output(queries="test", allow_inexact=True)
        np.testing.assert_allclose(found, query_set.outputs, atol=2e-5)
        np.testing.assert_allclose(memory.output(queries="test/3:2", allow_inexact=True)[0], expected[3, 2], atol=2e-5)
        placebo = memory.placebo(queries="test/1:0,4:3", where="step <> 1", allow_inexact=True)
        assert placebo.predicted.shape[0] == 2


@pytest.mark.parametrize(("batch_first", "length", "batch_size"), pairwise([True, False], [6, 4], [2, 1024]))
def test_outputs_of_a_recurrent_network_are_put_in_the_order_of_its_queries(tmp_path, batch_first, length, batch_size):
    torch.manual_seed(0)
    x = torch.randn(4, length, 4)
    axis = 0 if batch_first else 1
    memory, expected = trained(tmp_path / "m", Classifier(batch_first), x.movedim(0, axis), lies=axis,
                               batch_dim=axis, batch_size=batch_size)  # fmt: skip
    with memory:
        query_set = memory.query_set("test", "head")
        np.testing.assert_allclose(
            query_set.outputs, np.moveaxis(expected, axis, 0).reshape(-1, 5), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(memory.output("head", "test"), query_set.outputs, atol=2e-5)
        assert memory.info().output_layer == "head"


@pytest.mark.parametrize("examples", [1, 8])
def test_as_many_tokens_as_examples_are_told_apart_by_one_example_less(tmp_path, examples):
    model, inputs = GPT(), tokens(examples, length=examples)
    seen = []
    model.register_forward_hook(lambda _, args, made: seen.append((model.training, *args[0].shape)))
    memory, expected = trained(tmp_path / "m", model, inputs)
    with memory:
        np.testing.assert_array_equal(memory.query_set("test").outputs, expected.reshape(-1, WORDS))
        assert len(memory.query_set("test", "head").queries) == examples**2
    of_query_set = [shape for training, *shape in seen if not training][:-1]
    assert of_query_set == ([[1, 1]] if examples == 1 else [[8, 8], [7, 8]])


class Fixed(GPT):
    """Returns as many rows whatever it is given."""

    def forward(self, tokens):
        found = super().forward(tokens)
        return torch.cat([found, found])[:8]


def channels_first(logits):
    return logits.movedim(-1, 1)


@pytest.mark.parametrize(
    ("model", "inputs", "lies", "why"),
    [
        (Fixed(), tokens(8), 0, "examples and tokens are as many, and cannot be told apart"),
        (Fixed(), tokens(4), 0, "they are [8, 8, 13] for 4 examples, which are along none of their axes"),
        (Held(), tokens(PLACES), 0, "cannot be told apart"),
        (GPT(result=channels_first), tokens(5), 0, "no layer takes 13 tokens of an example"),
        (GPT(result=lambda found: found[:, 1:]), tokens(5), 0, "no layer takes 7 tokens of an example"),
        (Classifier(False), torch.randn(6, 8, 4), 1, "which axis of its inputs is the batch cannot be told"),
    ],
    ids=["square", "other rows", "held", "channels first", "cut", "axis"],
)
def test_where_tokens_cannot_be_told_nothing_is_kept_and_a_warning_says_why(tmp_path, model, inputs, lies, why):
    with pytest.warns(RuntimeWarning, match="query set 'test' is stored without the model's outputs") as told:
        memory, _ = trained(tmp_path / "m", model, inputs, lies=lies)
    assert any(why in str(warning.message) for warning in told)
    with memory:
        assert memory.query_set("test").outputs is None
        assert memory.query_set("test", "head").queries is not None


@pytest.mark.parametrize(
    ("make", "labelled", "batch_size"), pairwise([GPT, lambda: Classifier(False)], [True, False], [2, 1024])
)
def test_outputs_that_take_too_much_are_summarized(tmp_path, monkeypatch, make, labelled, batch_size):
    torch.manual_seed(0)
    model = make()
    words = isinstance(model, GPT)
    width, axis = (WORDS, 0) if words else (5, 1)
    inputs = tokens() if words else torch.randn(PLACES, 5, 4)
    labels = torch.randint(-1, width, (5, PLACES)) if labelled else None
    size = 5 * PLACES * width * 4
    for most in (size, size - 1):
        monkeypatch.setattr(query_sets, "MOST_BYTES", most)
        path = tmp_path / str(most)
        memory, expected = trained(path, make(), inputs, lies=axis, batch_dim=axis, batch_size=batch_size, label=labels)
        rows = np.moveaxis(expected, axis, 0).reshape(-1, width)
        with memory:
            query_set = memory.query_set("test")
            assert memory.info().output_layer == "head"
            assert (query_set.outputs is None, query_set.summary is None) == (most < size, most == size)
            if most < size:
                break
            np.testing.assert_allclose(query_set.outputs, rows, rtol=1e-5, atol=1e-6)
    summary = QUERY_SET.decode(QUERY_SET.encode(query_set)).summary
    order = np.argsort(-rows, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(summary.largest, order)
    np.testing.assert_allclose(summary.values, np.take_along_axis(rows, order, axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(summary.logsumexp, torch.tensor(rows).logsumexp(1), rtol=1e-5)
    flat = np.full(len(rows), -1) if labels is None else labels.flatten().numpy()
    chosen = np.where(flat >= 0, rows[np.arange(len(rows)), flat], np.nan)
    np.testing.assert_allclose(summary.label, chosen, rtol=1e-5, atol=1e-6)
    assert summary.width == width
    columns, count = query_set.shown(3)
    assert count == 5 * PLACES
    assert columns["largest output"].tolist() == order[:3, 0].tolist()


def test_outputs_of_tokens_give_way_to_a_budget(tmp_path):
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS, 2), nn.Linear(2, 10_000)

        def forward(self, tokens):
            return self.head(self.words(tokens))

    torch.manual_seed(0)
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(
        model, optimizer, tmp_path / "m", layers=["words"], budget="32 MB", steps=3, quiet=True
    ) as recorder:
        take_steps(recorder, optimizer, 2, lambda _: model(tokens()).square().mean())
        with pytest.warns(RuntimeWarning, match="they exceed what is left of the budget"):
            recorder.query_set("test", tokens(100))
    with dualform.open(tmp_path / "m") as memory:
        assert memory.query_set("test").outputs is None
        assert len(memory.query_set("test", "words").queries) == 100 * PLACES


def test_labels_of_examples_and_outputs_of_tokens_are_shown_and_sent_together(tmp_path):
    memory, _ = trained(tmp_path / "m", GPT(), tokens(3), label=torch.tensor([4, -1, 6]))
    with memory:
        query_set = memory.query_set("test", "places")
    sent = QUERY_SET.decode(QUERY_SET.encode(query_set))
    np.testing.assert_array_equal(sent.outputs, query_set.outputs)
    assert (len(sent.labels), len(sent.outputs), sent.examples) == (3, 3 * PLACES, 3)
    columns, rows = sent.shown(PLACES + 1)
    assert rows == 3 * PLACES
    assert columns["example"].tolist() == [0] * PLACES + [1]
    assert columns["token"].tolist() == [*range(PLACES), 0]
    assert np.ma.getmaskarray(columns["label"]).tolist() == [False] * PLACES + [True]
    assert columns["largest output"].tolist() == query_set.outputs[: PLACES + 1].argmax(axis=1).tolist()
