"""Query sets: layer inputs and outputs of test examples and of their tokens, taken without touching the training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, RecordingError
from dualform.record import query_sets
from dualform.store.manifest import Manifest
from dualform_proto.messages import QUERY_SET
from tests.record.listed import Opened, batches, opened_on
from tests.trainings import learn, take_steps


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
    """Scores for each place of a sequence, or for the last one; [tokens, texts, 4] unless the batch comes first."""

    def __init__(self, last=False, batch_first=False):
        super().__init__()
        self.cell, self.head, self.last = nn.GRU(4, 6, batch_first=batch_first), nn.Linear(6, 5), last

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
    [{}, {"label": TOKENS[:, 0], "loss": lambda scores, label: scores[:, -1].square().mean(1) + 0 * label}],
    ids=["alone", "loss"],
)
def test_a_query_set_of_tokens_says_how_many_examples_it_has(tmp_path, given):
    assert examples_of_a_query_set(tmp_path / "m", Tagger(), TOKENS, **given) == 8


@pytest.mark.parametrize("labels", [47, 0])
def test_labels_that_are_not_one_for_each_example_or_token_are_refused(tmp_path, labels):
    with pytest.raises(BadInput) as refused:
        examples_of_a_query_set(tmp_path / "m", Tagger(), TOKENS, label=torch.arange(labels), batch_size=3)
    assert refused.value.field == "label"
    assert str(refused.value) == (
        f"label has {labels} numbers, but the query set has 8 examples along axis 0 of its inputs. "
        "Pass one label for each example, or for each token."
    )
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().query_sets == ()


@pytest.mark.filterwarnings("ignore:query set 'test' is stored without the model's outputs")
@pytest.mark.parametrize(
    ("last", "batch_dim", "texts", "expected"),
    [
        (False, 1, 8, 8),
        (True, 0, 8, None),
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
    [(True, 0, 16, None), (False, 1, 4, 8)],
)
def test_parts_of_a_query_set_that_are_square_do_not_pass_tokens_for_examples(
    tmp_path, last, batch_dim, tokens, expected
):
    inputs = torch.randn(tokens, 8, 4)
    size = 8 if tokens == 16 else 4
    assert examples_of_a_query_set(tmp_path / "m", Recurrent(last), inputs, batch_dim, batch_size=size) == expected


@pytest.mark.parametrize(("preview_set", "expected"), [(dualform.PreviewSet.texts(list("abcdefgh")), 8), (None, None)])
def test_of_an_older_record_the_preview_set_says_how_many_examples_a_query_set_has(tmp_path, preview_set, expected):
    assert examples_of_a_query_set(tmp_path / "m", Tagger(), TOKENS, previews=preview_set) == 8
    manifest = Manifest.read(tmp_path / "m")
    del manifest.query_sets["test"]["examples"]
    manifest.write(tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().query_sets[0].examples == expected


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csc], ids=str)
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


def hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=1, n_head=2, n_positions=PLACES)
    return transformers.GPT2LMHeadModel(config)


def texts(examples=5, length=PLACES, seed=0):
    return torch.randint(WORDS, (examples, length), generator=torch.Generator().manual_seed(seed))


def trained(path, model, inputs, optimizer=torch.optim.SGD, lies=0, **given):
    """The memory of three steps on 5 examples of 8 tokens, which lie along an axis, and of the query set "test" of the
    inputs; and what the network returns for them in eval mode."""
    torch.manual_seed(1)
    updates = optimizer(model.parameters(), lr=0.01)
    seen = texts() if inputs.dim() == 2 else torch.randn(5, PLACES, 4).movedim(0, lies)
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
        (lambda: GPT(tied=True), "head", torch.optim.AdamW, 1024),
        (lambda: GPT(result=lambda logits: (logits.mean(), logits)[::-1]), "head", torch.optim.SGD, 1),
        (hugging_face, "lm_head", torch.optim.AdamW, 3),
    ],
    ids=["tied by AdamW", "with a loss", "transformers"],
)
def test_a_language_model_has_outputs_for_each_token(tmp_path, make, head, optimizer, batch_size):
    torch.manual_seed(0)
    inputs = texts()
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


@pytest.mark.parametrize(("batch_first", "length", "batch_size"), [(True, 6, 2), (False, 4, 1024)])
def test_outputs_of_a_recurrent_network_are_put_in_the_order_of_its_queries(tmp_path, batch_first, length, batch_size):
    torch.manual_seed(0)
    x = torch.randn(4, length, 4)
    axis = 0 if batch_first else 1
    memory, expected = trained(tmp_path / "m", Recurrent(batch_first=batch_first), x.movedim(0, axis), lies=axis,
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
    model, inputs = GPT(), texts(examples, length=examples)
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
        (Fixed(), texts(8), 0, "examples and tokens are as many, and cannot be told apart"),
        (Fixed(), texts(4), 0, "they are [8, 8, 13] for 4 examples, which are along none of their axes"),
        (Held(), texts(PLACES), 0, "cannot be told apart"),
        (GPT(result=channels_first), texts(5), 0, "no layer takes 13 tokens of an example"),
        (Recurrent(), torch.randn(6, 8, 4), 1, "which axis of its inputs is the batch cannot be told"),
    ],
    ids=["square", "other rows", "held", "channels first", "axis"],
)
def test_where_tokens_cannot_be_told_nothing_is_kept_and_a_warning_says_why(tmp_path, model, inputs, lies, why):
    with pytest.warns(RuntimeWarning, match="query set 'test' is stored without the model's outputs") as told:
        memory, _ = trained(tmp_path / "m", model, inputs, lies=lies)
    assert any(why in str(warning.message) for warning in told)
    with memory:
        assert memory.query_set("test").outputs is None
        assert memory.query_set("test", "head").queries is not None


@pytest.mark.parametrize(("make", "labelled", "batch_size"), [(GPT, True, 2), (Recurrent, False, 1024)])
def test_outputs_that_take_too_much_are_summarized(tmp_path, monkeypatch, make, labelled, batch_size):
    torch.manual_seed(0)
    model = make()
    words = isinstance(model, GPT)
    width, axis = (WORDS, 0) if words else (5, 1)
    inputs = texts() if words else torch.randn(PLACES, 5, 4)
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
        take_steps(recorder, optimizer, 2, lambda _: model(texts()).square().mean())
        with pytest.warns(RuntimeWarning, match="they exceed what is left of the budget"):
            recorder.query_set("test", texts(100))
    with dualform.open(tmp_path / "m") as memory:
        assert memory.query_set("test").outputs is None
        assert len(memory.query_set("test", "words").queries) == 100 * PLACES


def test_labels_of_examples_and_outputs_of_tokens_are_shown_and_sent_together(tmp_path):
    memory, _ = trained(tmp_path / "m", GPT(), texts(3), label=torch.tensor([4, -1, 6]))
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
