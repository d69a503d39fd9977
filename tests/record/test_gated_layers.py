"""Values of nn.LSTM and nn.GRU: error signals of an unrolled network, and weights rebuilt from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.query.weights.coefficients import coefficients
from dualform.record.recorder import Recorder
from dualform.store.reading.snapshot import Snapshot
from tests.cases import pairwise, some
from tests.rules.own import Unruled
from tests.trainings import learn, take_steps

from .listed import Opened, assert_rebuilt, snapshot


def watched(entering):
    """A sum whose gradient is kept."""
    if entering.is_leaf:
        entering.requires_grad_()
    entering.retain_grad()
    return entering


def products(own, hidden, token):
    of_hidden, of_input = hidden @ own["weight_hh"].T, token @ own["weight_ih"].T
    return of_hidden + own.get("bias_hh", 0.0), of_input + own.get("bias_ih", 0.0)


def lstm_token(own, token, hidden, cell):
    """What enters the gates of one token, the next hidden state and the next cell."""
    gates = watched(sum(products(own, hidden, token)))
    i, f, g, o = gates.chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return (gates,), torch.sigmoid(o) * torch.tanh(cell), cell


def gru_token(own, token, hidden):
    """What enters the gates, and the candidate's two products; the next hidden state."""
    of_hidden, of_input = products(own, hidden, token)
    size = 2 * hidden.shape[-1]
    gates, u, v = map(watched, ((of_hidden + of_input)[:, :size], of_input[:, size:], of_hidden[:, size:]))
    r, z = gates.sigmoid().chunk(2, -1)
    return (gates, u, v), (1 - z) * torch.tanh(u + r * v) + z * hidden


def lstm_outputs(own, keys, part):
    """float64[n, 4 H]: what an LSTM with these parameters makes of keys [h; x], before any sigmoid."""
    weight, bias = torch.cat([own["weight_hh"], own["weight_ih"]], 1), own["bias_hh"] + own["bias_ih"]
    return keys @ weight.T + bias


def gru_outputs(own, keys, part):
    """float64[n, d_out]: what a GRU with these parameters makes of keys of one of its layers."""
    rows = 2 * own["weight_hh"].shape[1]
    if part == ".gates":
        return lstm_outputs(own, keys, part)[:, :rows]
    side = "ih" if part == ".candidate_input" else "hh"
    return keys @ own[f"weight_{side}"][rows:].T + own[f"bias_{side}"][rows:]


@dataclass(frozen=True)
class Kind:
    layer: Any
    states: int
    parts: tuple[str, ...]
    """What the names of its layers have after that of the module."""
    token: Callable[..., Any]
    outputs: Callable[..., Any]


LSTM = Kind(nn.LSTM, 2, ("",), lstm_token, lstm_outputs)
GRU = Kind(nn.GRU, 1, (".gates", ".candidate_input", ".candidate_hidden"), gru_token, gru_outputs)
KINDS = pytest.mark.parametrize("kind", [LSTM, GRU], ids=["LSTM", "GRU"])


def unrolled_errors(kind, layer, x, state, loss):
    """The gradients of what enters each part, [B, L, d_out], by autograd in float64; x [B, L, X], states [B, H]."""
    own = {name.removesuffix("_l0"): value.detach().double() for name, value in layer.named_parameters()}
    sums, outputs = [], []
    for token in x.unbind(1):
        entering, *state = kind.token(own, token, *state)
        sums.append(entering)
        outputs.append(state[0])
    loss(torch.stack(outputs, 1), *state).backward()
    gradients = [[torch.zeros_like(own) if own.grad is None else own.grad for own in token] for token in sums]
    return [torch.stack(own, 1) for own in zip(*gradients, strict=True)]


@st.composite
def cases(draw, kind):
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    inputs, hidden = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    torch.manual_seed(draw(st.integers(0, 1000)))
    layout = draw(st.sampled_from(["batch first", "time first", "unbatched"]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    layer = kind.layer(inputs, hidden, bias=draw(st.booleans()), batch_first=layout == "batch first", dtype=dtype)
    rows = 1 if layout == "unbatched" else rows
    x = torch.randn(rows, length, inputs, generator=generator, dtype=torch.float64)
    state = torch.zeros(kind.states, rows, hidden, dtype=torch.float64)
    given = draw(st.booleans())
    if given:
        state = torch.randn(state.shape, generator=generator, dtype=torch.float64)
    through = draw(st.sets(st.sampled_from(["output", "hidden", "cell"][: 1 + kind.states]), min_size=1))
    along = torch.randn(length + kind.states, rows, hidden, generator=generator, dtype=torch.float64)
    return layer, layout, dtype, x, state, given, through, along


@KINDS
@settings(max_examples=26, deadline=None)
@given(data=st.data())
def test_values_are_the_gradients_of_an_unrolled_networks_sums(tmp_path_factory, kind, data):
    layer, layout, dtype, x, state, given_states, through, along = data.draw(cases(kind))
    length = x.shape[1]

    def loss(output, *states):
        """Of [B, L, H], and of [B, H] each."""
        terms = {"output": (output * output, along[:length].transpose(0, 1))}
        terms |= dict(zip(("hidden", "cell"), zip(states, along[length:], strict=True), strict=False))
        return sum((terms[name][0] * terms[name][1].to(output.dtype)).sum() for name in through)

    expected = unrolled_errors(kind, layer, x, state, loss)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path_factory.mktemp("m") / "m")
    laid = {"batch first": x, "time first": x.transpose(0, 1), "unbatched": x[0]}[layout].to(dtype)
    states = [own.to(dtype) if layout == "unbatched" else own[None].to(dtype) for own in state]
    before = None if not given_states else tuple(states) if kind is LSTM else states[0]
    with opened.recorder, opened.recorder.step():
        output, after = layer(laid, before)
        after = after if kind is LSTM else (after,)
        if layout == "unbatched":
            loss(output[None], *after).backward()
        else:
            loss(output if layer.batch_first else output.transpose(0, 1), *(own[0] for own in after)).backward()
        opened.optimizer.step()
    names = [part.removeprefix(".") for part in kind.parts]
    assert opened.sink.layer_names == names
    for name, errors in zip(names, expected, strict=True):
        found = opened.sink.values(name)
        np.testing.assert_allclose(found, errors.reshape(found.shape).numpy(), rtol=1e-4, atol=1e-5)
    assert opened.sink.defects == []
    # The candidate of a GRU has products that all but cancel.
    most = 1.0 if kind is LSTM else max(cancellation(opened.sink.keys(n), opened.sink.values(n)) for n in names)
    assert all(factor.residual < 1e-5 * most for factor in opened.sink.logs[0].factors)


def cancellation(keys, values):
    """How much larger the terms of a layer's gradients are than their sums: so much more does rounding count."""
    keys = np.column_stack([keys, np.ones(len(keys))]).astype(np.float64)
    sums, terms = values.T @ keys, np.abs(values).T @ np.abs(keys)
    norms = [(np.linalg.norm(terms[:, own]), np.linalg.norm(sums[:, own])) for own in (slice(-1), slice(-1, None))]
    return max(term / whole if whole else 1.0 for term, whole in norms)


class Tagger(nn.Module):
    """A recurrent layer between two linear layers; its state is carried on."""

    def __init__(self, kind, checkpointed=False):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.rnn, self.last = nn.Linear(5, 4), kind.layer(4, 6, batch_first=True), nn.Linear(6, 3)
        self.state, self.checkpointed = None, checkpointed

    def forward(self, x):
        given = (torch.relu(self.first(x)), self.state)
        output, state = checkpoint(self.rnn, *given, use_reentrant=False) if self.checkpointed else self.rnn(*given)
        self.state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        return self.last(output)


def batches(steps=8):
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(steps, 4, 5, 5, generator=generator), torch.randint(3, (steps, 4, 5), generator=generator)
    return list(zip(x, y, strict=True))


def step(model, optimizer, recorder, x, y):
    with recorder.step(dataset="made", label=y):
        learn(
            optimizer,
            cross_entropy(model(x).flatten(0, 1), y.flatten()),
            lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.2),
        )


def in_one_group(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01, nesterov=True)


def in_groups(model):
    """Every parameter of the recurrent layer under settings of its own."""
    rnn = [{"params": p, "lr": 2.0 - 0.4 * n, "momentum": 0.2 * n} for n, p in enumerate(model.rnn.parameters())]
    return torch.optim.SGD([*rnn, {"params": [*model.first.parameters(), *model.last.parameters()]}], lr=0.5)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize(
    ("kind", "optimizer", "checkpointed"), pairwise([LSTM, GRU], [in_one_group, in_groups], [False, True])
)
def test_every_parameter_is_rebuilt_as_of_every_step(tmp_path, kind, optimizer, checkpointed):
    model = Tagger(kind, checkpointed)
    made = optimizer(model)
    opened, snapshots = Opened(model, made, tmp_path / "m"), [snapshot(model)]
    with opened.recorder:
        for x, y in batches():
            step(model, made, opened.recorder, x, y)
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


RECORDED = {
    "LSTM, one group": (LSTM, in_one_group),
    "LSTM, groups": (LSTM, in_groups),
    "GRU, one group": (GRU, in_one_group),
    "GRU, Adam": (GRU, adam),
}


@pytest.fixture(scope="module", params=RECORDED)
def recorded(request, tmp_path_factory):
    """What was recorded of which kind, and the state of the network as of each step and at the end."""
    kind, optimizer = RECORDED[request.param]
    model, states = Tagger(kind), []
    made, path = optimizer(model), tmp_path_factory.mktemp("gated") / "m"
    with Recorder(model, made, path) as recorder:
        for x, y in batches():
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            step(model, made, recorder, x, y)
        model.state = None
        recorder.query_set("test", batches()[0][0])
    with dualform.open(path) as memory:
        yield kind, memory, [*states, model.state_dict()]


def outputs(kind, state, queries, part):
    names = ("weight_hh", "weight_ih", "bias_hh", "bias_ih")
    own = {name: state[f"rnn.{name}_l0"].double() for name in names}
    return kind.outputs(own, torch.from_numpy(queries).double(), part).numpy()


def test_the_reconstructions_outputs_and_weights(recorded):
    kind, memory, states = recorded
    reconstructions = memory.verify()
    assert all(own.exact and own.reconstruction_error < 1e-5 for own in reconstructions.values()), reconstructions
    for at_step in (None, 3, 0):
        state = states[-1 if at_step is None else at_step]
        for part in kind.parts:
            queries = memory.query_set("test", f"rnn{part}").queries
            found = memory.output(f"rnn{part}", queries, at_step=at_step)
            np.testing.assert_allclose(found, outputs(kind, state, queries, part), rtol=1e-5, atol=1e-5)
        rebuilt = memory.weights(at_step=at_step)
        assert set(rebuilt) == set(state)
        for name, value in state.items():
            np.testing.assert_allclose(rebuilt[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recorded", ["LSTM, one group", "LSTM, groups"], indirect=True)
def test_masks_and_their_cancellation_are_those_of_a_brute_force(recorded):
    kind, memory, _ = recorded
    stored = Snapshot.open(memory.path)
    layer, slots = stored.layer("rnn"), np.arange(stored.count("token"))
    keys = stored.keys("rnn").of_entries(slots).astype(np.float64)
    values = stored.values("rnn").take(slots).astype(np.float64)
    steps, labels = stored.column("token", "step"), stored.column("token", "label")
    masked, stays = memory.weights(where="label <> 1"), labels != 1
    moved, terms = 0.0, np.zeros(np.count_nonzero(~stays))
    for parameter in layer.parameters:
        found = coefficients(stored, parameter.name)
        own = values * found.per_step[steps][:, None]
        seen = np.column_stack([keys, np.ones(len(keys))])[:, parameter.start : parameter.stop]
        expected = (own[stays].T @ seen[stays]).reshape(masked[parameter.name].shape)
        expected = expected + found.initial * stored.initial()[parameter.name].astype(np.float64)
        np.testing.assert_allclose(masked[parameter.name].numpy(), expected, rtol=1e-6, atol=1e-6)
        if parameter in layer.weights:
            moved += np.linalg.norm(own[~stays].T @ seen[~stays]) ** 2
            terms += (np.linalg.norm(own[~stays], axis=1) * np.linalg.norm(seen[~stays], axis=1)) ** 2
    assert memory.cancellation("label <> 1")["rnn"] == pytest.approx(np.sqrt(terms).sum() / np.sqrt(moved))
    queries = memory.query_set("test", "rnn").queries
    found = memory.output("rnn", queries, where="label <> 1")
    np.testing.assert_allclose(found, outputs(kind, masked, queries, ""), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*no update rule:RuntimeWarning")
def test_an_optimizer_without_a_rule_keeps_the_scores_and_says_why_no_more(tmp_path):
    model = Tagger(LSTM)
    optimizer = Unruled(model.parameters(), lr=0.01)
    with Recorder(model, optimizer, tmp_path / "m", layers="rnn") as recorder:
        for x, y in batches(2):
            step(model, optimizer, recorder, x, y)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["rnn"].reason.startswith("the network was trained with Unruled")
        assert len(memory.topk("rnn", dualform.SlotKeys([0]), k=2).slots[0]) == 2


def test_one_of_the_layers_of_a_gru_alone(tmp_path):
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


def skip_without_bfloat16(layer=nn.LSTM):
    try:
        with torch.autocast("cpu", torch.bfloat16):
            layer(4, 3)(torch.randn(2, 5, 4))
    except RuntimeError as error:
        pytest.skip(f"torch runs no {layer.__name__} in bfloat16 on this processor: {error}")


@KINDS
def test_under_autocast_rounding_is_no_defect(tmp_path, kind):
    skip_without_bfloat16(kind.layer)
    torch.manual_seed(0)
    model, x = kind.layer(4, 3, batch_first=True), torch.randn(2, 5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder, opened.recorder.step(), torch.autocast("cpu", torch.bfloat16):
        model(x)[0].float().square().mean().backward()
        optimizer.step()
    assert opened.sink.defects == []
