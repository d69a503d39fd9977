"""nn.LSTM and nn.GRU: keys and values of an unrolled network, the weights rebuilt of them, and what is refused."""

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
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import RecordingError
from dualform.query.weights.coefficients import coefficients
from dualform.record.recorder import Recorder
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.record.listed import Opened, skip_without_bfloat16
from tests.trainings import learn, take_steps


class Fed(nn.Module):
    """Feeds a layer its input and initial state, by position or by name."""

    def __init__(self, layer, state):
        super().__init__()
        self.layer, self.state = layer, state

    def forward(self, x):
        return self.layer(input=x, hx=self.state) if self.training else self.layer(x, self.state)


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
    expected = unrolled(LSTM, layer, x, torch.zeros(2, 2, 4, dtype=torch.float64)).flatten(0, 1)
    np.testing.assert_allclose(opened.sink.keys(""), expected.numpy(), rtol=1e-5, atol=1e-6)


REFUSED = {
    "layers": (
        nn.LSTM(2, 3, num_layers=2),
        "it stacks 2 layers and shows only the last one's states: use one nn.LSTM for each",
    ),
    "directions": (
        nn.GRU(2, 3, bidirectional=True),
        "it is bidirectional: use one nn.GRU for each direction, and flip the input of the second",
    ),
    "projection": (
        nn.LSTM(2, 3, proj_size=2),
        "it projects its states (proj_size): use one without it and an nn.Linear",
    ),
    "parametrized": (
        nn.utils.parametrizations.weight_norm(nn.GRU(2, 3), "weight_hh_l0"),
        "a weight of it is parametrized: the optimizer does not update the weight itself",
    ),
    "frozen": (nn.LSTM(2, 3).requires_grad_(False), "its weight is frozen"),
}


@pytest.mark.parametrize(("layer", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_tapped_says_what_to_do(tmp_path, layer, reason):
    model = nn.ModuleDict({"layer": layer, "head": nn.Linear(3, 2)})
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    assert recorder.skipped["layer"] == reason


def test_packed_sequences_are_refused_where_they_are_met(tmp_path):
    layer = nn.LSTM(2, 3, batch_first=True)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "m")
    packed = pack_padded_sequence(torch.randn(2, 4, 2), torch.tensor([4, 2]), batch_first=True)
    with opened.recorder:
        with pytest.raises(RecordingError) as caught, opened.recorder.step():
            layer(packed)
        layer(packed)  # outside a step it is nobody's business
    assert str(caught.value) == (
        "layer '' was given a PackedSequence, which cannot be recorded. Pass the padded "
        "tensor and recorder.step(mask=…), or leave the layer out with layers=."
    )


def test_a_packed_sequence_after_the_first_step_is_a_defect(tmp_path):
    layer = nn.LSTM(2, 3, batch_first=True)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "m")
    packed = pack_padded_sequence(torch.randn(2, 4, 2), torch.tensor([4, 2]), batch_first=True)
    with opened.recorder:
        for given in (torch.randn(2, 4, 2), packed):
            with opened.recorder.step():
                output = layer(given)[0]
                (output if isinstance(output, torch.Tensor) else output.data).sum().backward()
    assert [list(batch.layers) for batch in opened.sink.recorded] == [[""], []]
    assert opened.sink.defects == [("", 1, "layer '' was given a PackedSequence, which cannot be recorded")]


@pytest.mark.parametrize(("where", "values"), [("output", True), ("state", False)])
def test_a_step_with_nan_is_not_recorded(tmp_path, where, values):
    layer = nn.GRU(2, 3, batch_first=True)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "m", values=values)

    def step(weight):
        with opened.recorder.step():
            output, state = layer(torch.randn(2, 4, 2))
            (
                output.sum() * weight + state.sum() if where == "output" else output.sum() + state.sum() * weight
            ).backward()

    with opened.recorder:
        step(1.0)
        step(float("nan"))
    assert [batch.step for batch in opened.sink.recorded] == [0]
    assert opened.recorder.steps == 1


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

GATED = pytest.mark.parametrize("kind", [LSTM, GRU], ids=["LSTM", "GRU"])


def unrolled(kind, layer, x, state, loss=None):
    """float64 keys [B, L, H + X] of x [B, L, X] and states [B, H]; with a loss, by autograd, the gradients of what
    enters each part, [B, L, d_out] each.
    """
    own = {name.removesuffix("_l0"): value.detach().double() for name, value in layer.named_parameters()}
    keys, sums, outputs = [], [], []
    for token in x.unbind(1):
        keys.append(torch.cat([state[0].detach(), token], -1))
        entering, *state = kind.token(own, token, *state)
        sums.append(entering)
        outputs.append(state[0])
    keys = torch.stack(keys, 1)
    if loss is None:
        return keys
    loss(torch.stack(outputs, 1), *state).backward()
    gradients = [[torch.zeros_like(own) if own.grad is None else own.grad for own in token] for token in sums]
    return keys, [torch.stack(own, 1) for own in zip(*gradients, strict=True)]


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


@pytest.mark.filterwarnings("ignore:query set 'same' is stored without the model's outputs")  # of a square batch
@GATED
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_keys_queries_and_values_are_those_of_an_unrolled_network(tmp_path_factory, kind, data):
    layer, layout, dtype, x, state, given_states, through, along = data.draw(cases(kind))
    rows, length, _ = x.shape

    def loss(output, *states):
        """Of [B, L, H], and of [B, H] each."""
        terms = {"output": (output * output, along[:length].transpose(0, 1))}
        terms |= dict(zip(("hidden", "cell"), zip(states, along[length:], strict=True), strict=False))
        return sum((terms[name][0] * terms[name][1].to(output.dtype)).sum() for name in through)

    keys, errors = unrolled(kind, layer, x, state, loss)
    laid = {"batch first": x, "time first": x.transpose(0, 1), "unbatched": x[0]}[layout].to(dtype)
    states = [own.to(dtype) if layout == "unbatched" else own[None].to(dtype) for own in state]
    model = Fed(layer, None if not given_states else tuple(states) if kind is LSTM else states[0])
    still = torch.optim.SGD(model.parameters(), lr=0.0)  # so that queries are those of the same weights
    opened = Opened(model, still, tmp_path_factory.mktemp("m") / "m")
    with opened.recorder:
        with opened.recorder.step():
            output, after = model(laid)
            after = after if kind is LSTM else (after,)
            if layout == "unbatched":
                loss(output[None], *after).backward()
            else:
                loss(output if layer.batch_first else output.transpose(0, 1), *(own[0] for own in after)).backward()
            still.step()
        opened.recorder.query_set("same", laid, batch_size=1000, batch_dim=int(layout == "time first"))
    sink, hidden = opened.sink, layer.hidden_size
    names = [f"layer{part}" for part in kind.parts]
    assert sink.layer_names == names
    assert sink.defects == []
    expected, found = keys.flatten(0, 1).numpy(), sink.keys(names[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # Inputs are the key's last columns to the bit: they were copied, not computed.
    np.testing.assert_array_equal(found[:, hidden:], x.to(dtype).float().flatten(0, 1))
    # torch computes inference by other loops than training, so these are not the keys to the bit.
    np.testing.assert_allclose(sink.query_sets["same"][0][names[0]], expected, rtol=1e-5, atol=1e-6)
    if kind is GRU:
        np.testing.assert_array_equal(sink.keys(names[1]), found[:, hidden:])
        np.testing.assert_array_equal(sink.keys(names[2]), found[:, :hidden])
    space = "sample" if layout == "unbatched" else "token"
    assert (sink.header.layers[0].space, sink.header.layers[0].repeats) == (space, False)
    places = list(np.ndindex(rows, length))
    assert sink.column("row", space) == [place[space == "sample"] for place in places]
    assert sink.column("position", space) == [place[1] if space == "token" else None for place in places]
    for name, own in zip(names, errors, strict=True):
        np.testing.assert_allclose(sink.values(name), own.flatten(0, 1).numpy(), rtol=1e-4, atol=1e-5)
    # The candidate of a GRU has products that all but cancel.
    most = 1.0 if kind is LSTM else max(cancellation(sink.keys(n), sink.values(n)) for n in names)
    assert all(factor.residual < 1e-5 * most for factor in sink.logs[0].factors)


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


def batches(steps=6):
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


def in_groups(model):
    """Every parameter of the recurrent layer under settings of its own."""
    rnn = [{"params": p, "lr": 2.0 - 0.4 * n, "momentum": 0.2 * n} for n, p in enumerate(model.rnn.parameters())]
    return torch.optim.SGD([*rnn, {"params": [*model.first.parameters(), *model.last.parameters()]}], lr=0.5)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


RECORDED = {
    "LSTM, groups": (LSTM, in_groups),
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


@pytest.mark.parametrize("recorded", ["LSTM, groups"], indirect=True)
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


@GATED
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
