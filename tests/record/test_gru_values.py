"""nn.GRU's values: error signals of an unrolled network for each of its three layers, and weights rebuilt from them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.record.recorder import Recorder
from tests.cases import some
from tests.trainings import take_steps

from .listed import Opened, assert_rebuilt, snapshot
from .test_lstm_values import data, in_one_group, step

PARTS = ("gates", "candidate_input", "candidate_hidden")


def unrolled_errors(layer, x, hidden, loss):
    """The gradients, [B, L, H] or [B, L, 2 H], of what enters the gates and of the candidate's two products, by
    autograd in float64; x [B, L, X], hidden [B, H].
    """
    own = {name: value.detach().double() for name, value in layer.named_parameters()}
    size, sums, outputs = layer.hidden_size, [], []
    for token in x.unbind(1):
        of_hidden, of_input = hidden @ own["weight_hh_l0"].T, token @ own["weight_ih_l0"].T
        if layer.bias:
            of_hidden, of_input = of_hidden + own["bias_hh_l0"], of_input + own["bias_ih_l0"]
        gates, u, v = (of_hidden + of_input)[:, : 2 * size], of_input[:, 2 * size :], of_hidden[:, 2 * size :]
        for entering in (gates, u, v):
            entering.requires_grad_() if entering.is_leaf else entering.retain_grad()
        sums.append((gates, u, v))
        r, z = gates.sigmoid().chunk(2, -1)
        n = torch.tanh(u + r * v)
        hidden = (1 - z) * n + z * hidden
        outputs.append(hidden)
    loss(torch.stack(outputs, 1), hidden).backward()
    gradients = [[torch.zeros_like(own) if own.grad is None else own.grad for own in token] for token in sums]
    return [torch.stack(own, 1) for own in zip(*gradients, strict=True)]


@st.composite
def cases(draw):
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    inputs, hidden = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    torch.manual_seed(draw(st.integers(0, 1000)))
    layout = draw(st.sampled_from(["batch first", "time first", "unbatched"]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    layer = nn.GRU(inputs, hidden, bias=draw(st.booleans()), batch_first=layout == "batch first", dtype=dtype)
    rows = 1 if layout == "unbatched" else rows
    x = torch.randn(rows, length, inputs, generator=generator, dtype=torch.float64)
    state = torch.randn(1, rows, hidden, generator=generator, dtype=torch.float64) if draw(st.booleans()) else None
    through = draw(st.sets(st.sampled_from(["output", "state"]), min_size=1))
    along = torch.randn(length + 1, rows, hidden, generator=generator, dtype=torch.float64)
    return layer, layout, dtype, x, state, through, along


@settings(max_examples=26, deadline=None)
@given(cases())
def test_values_are_the_gradients_of_an_unrolled_networks_products(tmp_path_factory, case):
    layer, layout, dtype, x, state, through, along = case

    def loss(output, hidden):
        """Of [B, L, H] and [B, H]."""
        total = torch.zeros((), dtype=output.dtype)
        if "output" in through:
            total = total + (output * output * along[:-1].transpose(0, 1).to(output.dtype)).sum()
        if "state" in through:
            total = total + (hidden * along[-1].to(output.dtype)).sum()
        return total

    zero = torch.zeros(len(x), layer.hidden_size, dtype=torch.float64)
    expected = unrolled_errors(layer, x, zero if state is None else state[0], loss)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path_factory.mktemp("m") / "m")
    laid = {"batch first": x, "time first": x.transpose(0, 1), "unbatched": x[0]}[layout].to(dtype)
    given = None if state is None else state.to(dtype)
    given = given[:, 0] if given is not None and layout == "unbatched" else given
    with opened.recorder, opened.recorder.step():
        output, hidden = layer(laid, given)
        if layout == "unbatched":
            loss(output[None], hidden).backward()
        else:
            loss(output if layer.batch_first else output.transpose(0, 1), hidden[0]).backward()
        opened.optimizer.step()
    assert tuple(opened.sink.layer_names) == PARTS
    for part, errors in zip(PARTS, expected, strict=True):
        found = opened.sink.values(part)
        np.testing.assert_allclose(found, errors.reshape(found.shape).numpy(), rtol=1e-4, atol=1e-5)
    assert opened.sink.defects == []
    most = max(cancellation(opened.sink.keys(part), opened.sink.values(part)) for part in PARTS)
    assert all(factor.residual < 1e-5 * most for factor in opened.sink.logs[0].factors)


def cancellation(keys, values):
    """How much larger the terms of a layer's gradients are than their sums: so much more does rounding count."""
    keys = np.column_stack([keys, np.ones(len(keys))]).astype(np.float64)
    sums, terms = values.T @ keys, np.abs(values).T @ np.abs(keys)
    norms = [(np.linalg.norm(terms[:, own]), np.linalg.norm(sums[:, own])) for own in (slice(-1), slice(-1, None))]
    return max(term / whole if whole else 1.0 for term, whole in norms)


class Tagger(nn.Module):
    """A GRU between two linear layers; its state is carried on."""

    def __init__(self, checkpointed=False):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.gru, self.last = nn.Linear(5, 4), nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)
        self.state, self.checkpointed = None, checkpointed

    def forward(self, x):
        given = (torch.relu(self.first(x)), self.state)
        output, state = checkpoint(self.gru, *given, use_reentrant=False) if self.checkpointed else self.gru(*given)
        self.state = state.detach()
        return self.last(output)


def in_groups(model):
    """Every parameter of the GRU under settings of its own."""
    gru = [{"params": p, "lr": 2.0 - 0.4 * n, "momentum": 0.2 * n} for n, p in enumerate(model.gru.parameters())]
    return torch.optim.SGD([*gru, {"params": [*model.first.parameters(), *model.last.parameters()]}], lr=0.5)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


SETTINGS = {"one group": in_one_group, "groups": in_groups}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("optimizer", SETTINGS.values(), ids=SETTINGS)
def test_every_parameter_is_rebuilt_as_of_every_step(tmp_path, optimizer, checkpointed):
    model = Tagger(checkpointed)
    made = optimizer(model)
    opened, snapshots = Opened(model, made, tmp_path / "m"), [snapshot(model)]
    with opened.recorder:
        for x, y in data():
            step(model, made, opened.recorder, x, y)
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


def products(state, queries, part):
    """float64[n, d_out]: what a GRU with these parameters makes of keys of one of its layers."""
    own = {name: state[f"gru.{name}_l0"].double() for name in ("weight_hh", "weight_ih", "bias_hh", "bias_ih")}
    hidden, keys = own["weight_hh"].shape[1], torch.from_numpy(queries).double()
    of_candidate, of_gates = slice(2 * hidden, None), slice(0, 2 * hidden)
    if part == "candidate_input":
        found = keys @ own["weight_ih"][of_candidate].T + own["bias_ih"][of_candidate]
    elif part == "candidate_hidden":
        found = keys @ own["weight_hh"][of_candidate].T + own["bias_hh"][of_candidate]
    else:
        weight = torch.cat([own["weight_hh"], own["weight_ih"]], 1)
        found = keys @ weight[of_gates].T + (own["bias_hh"] + own["bias_ih"])[of_gates]
    return found.numpy()


@pytest.mark.parametrize("optimizer", [in_one_group, adam])
def test_the_reconstructions_outputs_and_weights(tmp_path, optimizer):
    model, states = Tagger(), []
    made = optimizer(model)
    with Recorder(model, made, tmp_path / "m") as recorder:
        for x, y in data():
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            step(model, made, recorder, x, y)
        model.state = None
        recorder.query_set("test", data()[0][0])
    with dualform.open(tmp_path / "m") as memory:
        assert all(own.exact and own.reconstruction_error < 1e-5 for own in memory.verify().values())
        for at_step, state in ((None, model.state_dict()), (3, states[3]), (0, states[0])):
            for part in PARTS:
                queries = memory.query_set("test", f"gru.{part}").queries
                found = memory.output(f"gru.{part}", queries, at_step=at_step)
                np.testing.assert_allclose(found, products(state, queries, part), rtol=1e-5, atol=1e-5)
            rebuilt = memory.weights(at_step=at_step)
            for name, value in state.items():
                np.testing.assert_allclose(rebuilt[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-5)


def test_one_of_its_layers_alone(tmp_path):
    model, x = nn.GRU(3, 4), torch.randn(5, 2, 3)
    opened = Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", layers="candidate_hidden")
    with opened.recorder:
        take_steps(opened.recorder, opened.optimizer, 2, lambda _: model(x)[0].square().sum())
    assert opened.sink.layer_names == ["candidate_hidden"]
    assert opened.sink.keys("candidate_hidden").shape == opened.sink.values("candidate_hidden").shape == (20, 4)
    assert all(factor.residual < 1e-5 for log in opened.sink.logs.values() for factor in log.factors)


def test_two_backward_passes_of_one_call_from_the_same_place_are_told_apart(tmp_path):
    """Gradients of one call that lie in the same memory are not taken for one another."""
    torch.manual_seed(0)
    model, x, gradient = nn.GRU(3, 4, batch_first=True), torch.randn(2, 5, 3), torch.ones(2, 5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for together in (False, True):
        opened = Opened(model, optimizer, tmp_path / str(together), layers=["gates", "candidate_input"])
        with opened.recorder, opened.recorder.step():
            output = model(x)[0]
            if together:
                output.backward(gradient * 3)
            else:
                output.backward(gradient, retain_graph=True)
                output.backward(gradient.mul_(2))
                gradient.div_(2)
        values.append({part: opened.sink.values(part) for part in ("gates", "candidate_input")})
    for part, expected in some(values[1].items()):
        found = values[0][part]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_under_autocast_rounding_is_no_defect(tmp_path):
    model = nn.GRU(4, 3, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder, opened.recorder.step(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 5, 4))[0].float().square().mean().backward()
        optimizer.step()
    assert opened.sink.defects == []
