"""nn.LSTM and nn.GRU: recorded keys are those of an unrolled cell, and the training is untouched."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tests.cases import pairwise
from tests.trainings import learn

from .listed import Opened

KINDS = {"lstm": (nn.LSTM, nn.LSTMCell), "gru": (nn.GRU, nn.GRUCell)}
TOKENS = {"lstm": "layer", "gru": "layer.gates"}
"""The recorded layer whose keys are [h_(t-1); x_t]."""


def states(state):
    return state if isinstance(state, tuple) else (state,)


def unrolled_keys(layer, cell_type, x, state=None):
    """[h_(t-1); x_t] by one cell call a token; laid out as `x`, [B, L, X], [L, B, X] or [L, X]."""
    cell = cell_type(layer.input_size, layer.hidden_size, bias=layer.bias, dtype=x.dtype)
    own = {name.removesuffix("_l0"): value for name, value in layer.state_dict().items()}
    cell.load_state_dict({name: value.to(x.dtype) for name, value in own.items()})
    time = 1 if x.dim() == 3 and layer.batch_first else 0
    if state is None:
        now = tuple(x.new_zeros(*x.select(time, 0).shape[:-1], layer.hidden_size) for _ in range(2))
    else:
        now = tuple(part.detach().to(x.dtype).squeeze(0) for part in states(state))
    keys = []
    with torch.no_grad():
        for token in x.unbind(time):
            keys.append(torch.cat([now[0], token], -1))
            now = states(cell(token, now if cell_type is nn.LSTMCell else now[0]))
    return torch.stack(keys, time), now


def rowwise(layer, tokens):
    """[n, width], an example's tokens after one another, of what lies as the layer's input does."""
    moved = tokens if layer.batch_first or tokens.dim() == 2 else tokens.transpose(0, 1)
    return moved.reshape(-1, tokens.shape[-1])


@st.composite
def calls(draw):
    """A layer, an input of its and an initial state or none."""
    kind = draw(st.sampled_from(list(KINDS)))
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    inputs, hidden = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    batch_first, batched, start = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    torch.manual_seed(draw(st.integers(0, 1000)))
    layer_type, cell_type = KINDS[kind]
    layer = layer_type(inputs, hidden, bias=draw(st.booleans()), batch_first=batch_first, dtype=dtype)
    shape = (length,) if not batched else (rows, length) if batch_first else (length, rows)
    x = torch.randn(*shape, inputs, dtype=dtype)
    state = tuple(torch.randn(*((1, rows) if batched else (1,)), hidden, dtype=dtype) for _ in range(2))
    return layer, cell_type, x, (state if kind == "lstm" else state[0]) if start else None


class Fed(nn.Module):
    """Feeds a layer its input and initial state, by position or by name."""

    def __init__(self, layer, state):
        super().__init__()
        self.layer, self.state = layer, state

    def forward(self, x):
        return self.layer(input=x, hx=self.state) if self.training else self.layer(x, self.state)


@pytest.mark.filterwarnings("ignore:query set 'same' is stored without the model's outputs")  # of a square batch
@settings(max_examples=20, deadline=None)
@given(calls())
def test_keys_and_queries_are_those_of_an_unrolled_cell(tmp_path_factory, call):
    layer, cell_type, x, state = call
    expected = rowwise(layer, unrolled_keys(layer, cell_type, x.double(), state)[0])
    model = Fed(layer, state)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path_factory.mktemp("m") / "m")
    with opened.recorder:
        with opened.recorder.step():
            model(x)[0].square().sum().backward()
        opened.recorder.query_set(
            "same", x, batch_size=1000, batch_dim=1 if x.dim() == 3 and not layer.batch_first else 0
        )
    sink = opened.sink
    hidden, whole = layer.hidden_size, "layer" if cell_type is nn.LSTMCell else "layer.gates"
    if cell_type is nn.GRUCell:
        assert sink.layer_names == ["layer.gates", "layer.candidate_input", "layer.candidate_hidden"]
        np.testing.assert_array_equal(sink.keys("layer.candidate_input"), sink.keys(whole)[:, hidden:])
        np.testing.assert_array_equal(sink.keys("layer.candidate_hidden"), sink.keys(whole)[:, :hidden])
    np.testing.assert_allclose(sink.keys(whole), expected.numpy(), rtol=1e-5, atol=1e-6)
    # torch computes inference by other loops than training, so these are not the keys to the bit.
    np.testing.assert_allclose(sink.query_sets["same"][0][whole], expected.numpy(), rtol=1e-5, atol=1e-6)
    tokens = list(np.ndindex(*(x.shape[:-1] if layer.batch_first or x.dim() == 2 else (x.shape[1], x.shape[0]))))
    space = "token" if x.dim() == 3 else "sample"
    assert sink.header.layers[0].space == space
    assert not sink.header.layers[0].repeats
    assert sink.column("row", space) == [token[0] for token in tokens]
    if space == "token":
        assert sink.column("position", space) == [token[1] for token in tokens]
    # Inputs are the key's last columns to the bit: they were copied, not computed.
    np.testing.assert_array_equal(sink.keys(whole)[:, hidden:], rowwise(layer, x.float()))


class Words(nn.Module):
    """A small language model whose state is carried from chunk to chunk."""

    def __init__(self, kind, batch_first=True, checkpointed=False):
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(6, 11)
        self.layer = KINDS[kind][0](4, 6, batch_first=batch_first)
        self.state, self.checkpointed = None, checkpointed

    def forward(self, tokens):
        x = nn.functional.dropout(self.embed(tokens), 0.2, self.training)
        if self.checkpointed:
            output, state = checkpoint(self.layer, x, self.state, use_reentrant=False)
        else:
            output, state = self.layer(x, self.state)
        self.state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        return self.head(output), state


def chunks(count=5):
    generator = torch.Generator().manual_seed(5)
    return torch.randint(11, (count, 3, 7), generator=generator)


LOSSES = {
    "output": lambda logits, state, tokens: cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()),
    "state": lambda logits, state, tokens: sum(part.square().sum() for part in states(state)),
    "last state": lambda logits, state, tokens: states(state)[-1].square().sum(),
    "both": lambda logits, state, tokens: logits.square().mean() + sum(part.sum() for part in states(state)),
}


def weights_after(model, loss, tmp_path=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opened = None if tmp_path is None else Opened(model, optimizer, tmp_path / "m", layers=["layer*"])
    torch.manual_seed(7)

    def one(tokens):
        learn(optimizer, loss(*model(tokens), tokens))

    if opened is None:
        for tokens in chunks():
            one(tokens)
    else:
        with opened.recorder:
            for tokens in chunks():
                with opened.recorder.step(word=tokens):
                    one(tokens)
    return [p.detach().clone() for p in model.parameters()], torch.get_rng_state(), opened


@pytest.mark.parametrize(("kind", "loss", "checkpointed"), pairwise([*KINDS], [*LOSSES.values()], [False, True]))
def test_same_bits_as_without_wherever_gradients_come_from(tmp_path, kind, loss, checkpointed):
    plain, plain_rng, _ = weights_after(Words(kind, checkpointed=checkpointed), loss)
    recorded, rng, opened = weights_after(Words(kind, checkpointed=checkpointed), loss, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert torch.equal(plain_rng, rng)
    assert len(opened.sink.keys(TOKENS[kind])) == chunks().numel()
    assert opened.sink.column("word", "token") == chunks().flatten().tolist()
    assert opened.sink.defects == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_carried_from_chunk_to_chunk(tmp_path, kind):
    model, data = Words(kind), chunks(3)
    model.embed.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    opened = Opened(model, optimizer, tmp_path / "m", layers="layer*")
    with opened.recorder:
        for tokens in data:
            with opened.recorder.step():
                torch.manual_seed(0)
                model(tokens)[0].sum().backward()
    state, expected = None, []
    for tokens in data:
        torch.manual_seed(0)
        x = nn.functional.dropout(model.embed(tokens), 0.2).double()
        keys, now = unrolled_keys(model.layer, KINDS[kind][1], x, state)
        state = tuple(part[None] for part in now)
        expected.append(keys.flatten(0, 1))
    np.testing.assert_allclose(opened.sink.keys(TOKENS[kind]), torch.cat(expected).numpy(), rtol=1e-5, atol=1e-6)


def test_an_output_written_over_before_backward(tmp_path):
    layer = nn.LSTM(3, 4, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    gradients = []
    for recorded in (False, True):
        opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / str(recorded))
        layer.zero_grad()
        if recorded:
            with opened.recorder, opened.recorder.step():
                layer(x)[0].mul_(2).relu_().sum().backward()
        else:
            layer(x)[0].mul_(2).relu_().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    expected = unrolled_keys(layer, nn.LSTMCell, x)[0].reshape(10, 7)
    np.testing.assert_allclose(opened.sink.keys(""), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_padded_sequences_with_a_mask(tmp_path):
    layer = nn.GRU(2, 3, batch_first=True)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "m")
    x, mask = torch.randn(2, 4, 2), torch.tensor([[True] * 4, [True, True, False, False]])
    with opened.recorder, opened.recorder.step(mask=mask):
        (layer(x)[0] * mask[..., None]).sum().backward()
    expected = unrolled_keys(layer, nn.GRUCell, x)[0][mask]
    np.testing.assert_allclose(opened.sink.keys("gates"), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert opened.sink.column("position", "token") == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_without_values_there_are_keys_all_the_same(tmp_path, kind):
    model = Words(kind)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", values=False)
    with opened.recorder, opened.recorder.step():
        model(chunks(1)[0])[0].sum().backward()
    assert TOKENS[kind] in opened.sink.layer_names
    assert not any(layer.values for layer in opened.sink.header.layers)
    assert all(rows.values is None for (rows,) in opened.sink.batches[0].layers.values())
    assert opened.sink.keys(TOKENS[kind]).shape == (21, 10)
