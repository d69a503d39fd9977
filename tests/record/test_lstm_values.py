"""nn.LSTM's values: error signals of an unrolled network, and weights rebuilt from them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.query.weights.coefficients import coefficients
from dualform.record.recorder import Recorder
from dualform.store.snapshot import Snapshot
from tests.rules.own import Unruled
from tests.trainings import learn

from .listed import Opened, assert_rebuilt, snapshot


def unrolled_errors(layer, x, state, loss):
    """The gradients of every gate's sum before its sigmoid, [B, L, 4 H], by autograd in float64; x [B, L, X]."""
    own = {name: value.detach().double() for name, value in layer.named_parameters()}
    hidden, cell = state
    gates, outputs = [], []
    for token in x.unbind(1):
        summed = hidden @ own["weight_hh_l0"].T + token @ own["weight_ih_l0"].T
        if layer.bias:
            summed = summed + own["bias_hh_l0"] + own["bias_ih_l0"]
        gates.append(summed.requires_grad_() if summed.is_leaf else summed)
        gates[-1].retain_grad()
        i, f, g, o = gates[-1].chunk(4, -1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        outputs.append(hidden)
    loss(torch.stack(outputs, 1), hidden, cell).backward()
    return torch.stack([torch.zeros_like(gate) if gate.grad is None else gate.grad for gate in gates], 1)


@st.composite
def cases(draw):
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    inputs, hidden = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    torch.manual_seed(draw(st.integers(0, 1000)))
    layout = draw(st.sampled_from(["batch first", "time first", "unbatched"]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    layer = nn.LSTM(inputs, hidden, bias=draw(st.booleans()), batch_first=layout == "batch first", dtype=dtype)
    rows = 1 if layout == "unbatched" else rows
    x = torch.randn(rows, length, inputs, generator=generator, dtype=torch.float64)
    state = None
    if draw(st.booleans()):
        state = torch.randn(2, 1, rows, hidden, generator=generator, dtype=torch.float64)
    through = draw(st.sets(st.sampled_from(["output", "hidden", "cell"]), min_size=1))
    along = torch.randn(length + 2, rows, hidden, generator=generator, dtype=torch.float64)
    return layer, layout, dtype, x, state, through, along


@settings(max_examples=26, deadline=None)
@given(cases())
def test_values_are_the_gradients_of_an_unrolled_networks_gates(tmp_path_factory, case):
    layer, layout, dtype, x, state, through, along = case

    def loss(output, hidden, cell):
        """Of [B, L, H], [B, H] and [B, H]."""
        total = torch.zeros((), dtype=output.dtype)
        if "output" in through:
            total = total + (output * output * along[:-2].transpose(0, 1).to(output.dtype)).sum()
        if "hidden" in through:
            total = total + (hidden * along[-2].to(output.dtype)).sum()
        if "cell" in through:
            total = total + (cell * along[-1].to(output.dtype)).sum()
        return total

    zero = torch.zeros(2, len(x), layer.hidden_size, dtype=torch.float64)
    expected = unrolled_errors(layer, x, zero if state is None else state[:, 0], loss)
    opened = Opened(layer, torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path_factory.mktemp("m") / "m")
    laid = {"batch first": x, "time first": x.transpose(0, 1), "unbatched": x[0]}[layout].to(dtype)
    given = None if state is None else state.to(dtype)
    if given is not None:
        given = given[:, :, 0] if layout == "unbatched" else given
        given = (given[0], given[1])
    with opened.recorder, opened.recorder.step():
        output, (hidden, cell) = layer(laid, given)
        if layout == "unbatched":
            loss(output[None], hidden, cell).backward()
        else:
            loss(output if layer.batch_first else output.transpose(0, 1), hidden[0], cell[0]).backward()
        opened.optimizer.step()
    found = opened.sink.values("")
    np.testing.assert_allclose(found, expected.reshape(found.shape).numpy(), rtol=1e-4, atol=1e-5)
    assert opened.sink.defects == []
    assert all(factor.residual < 1e-5 for factor in opened.sink.logs[0].factors)


class Tagger(nn.Module):
    """An LSTM between two linear layers; its state is carried on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.lstm, self.last = nn.Linear(5, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)
        self.state = None

    def forward(self, x):
        output, state = self.lstm(torch.relu(self.first(x)), self.state)
        self.state = tuple(part.detach() for part in state)
        return self.last(output)


def data(steps=8):
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
    """Every parameter of the LSTM under settings of its own."""
    lstm = [{"params": p, "lr": 2.0 - 0.4 * n, "momentum": 0.2 * n} for n, p in enumerate(model.lstm.parameters())]
    return torch.optim.SGD([*lstm, {"params": [*model.first.parameters(), *model.last.parameters()]}], lr=0.5)


OPTIMIZERS = {"one group": in_one_group, "groups": in_groups}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_parameter_is_rebuilt_as_of_every_step(tmp_path, optimizer):
    model = Tagger()
    made = optimizer(model)
    opened, snapshots = Opened(model, made, tmp_path / "m"), [snapshot(model)]
    with opened.recorder:
        for x, y in data():
            step(model, made, opened.recorder, x, y)
            snapshots.append(snapshot(model))
    assert opened.sink.defects == []
    assert_rebuilt(opened.sink, snapshots)


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS)
def recorded(request, tmp_path):
    """An open memory, the network at the end, and a network's state as of each step."""
    model, states = Tagger(), []
    optimizer = request.param(model)
    with Recorder(model, optimizer, tmp_path / "m") as recorder:
        for x, y in data():
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            step(model, optimizer, recorder, x, y)
        model.state = None
        recorder.query_set("test", data()[0][0])
    return dualform.open(tmp_path / "m"), model, states


def gates(state, queries):
    """float64[n, 4 H]: what an LSTM with these parameters makes of keys [h; x], before any sigmoid."""
    own = {name: state[f"lstm.{name}_l0"].double() for name in ("weight_hh", "weight_ih", "bias_hh", "bias_ih")}
    weight, bias = torch.cat([own["weight_hh"], own["weight_ih"]], 1), own["bias_hh"] + own["bias_ih"]
    return (torch.from_numpy(queries).double() @ weight.T + bias).numpy()


def test_the_reconstruction_outputs_and_weights(recorded):
    memory, model, states = recorded
    reconstructions = memory.verify()
    assert all(c.exact and c.reconstruction_error < 1e-5 for c in reconstructions.values()), reconstructions
    queries = memory.query_set("test", "lstm").queries
    for at_step, state in ((None, model.state_dict()), (3, states[3]), (0, states[0])):
        found = memory.output("lstm", queries, at_step=at_step)
        np.testing.assert_allclose(found, gates(state, queries), rtol=1e-5, atol=1e-5)
        rebuilt = memory.weights(at_step=at_step)
        assert set(rebuilt) == set(state)
        for name, value in state.items():
            np.testing.assert_allclose(rebuilt[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-5)


def test_masks_and_their_cancellation_are_those_of_a_brute_force(recorded):
    memory, _, _ = recorded
    stored = Snapshot.open(memory.path)
    layer, slots = stored.layer("lstm"), np.arange(stored.count("token"))
    keys = stored.keys("lstm").of_entries(slots).astype(np.float64)
    values = stored.values("lstm").take(slots).astype(np.float64)
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
    assert memory.cancellation("label <> 1")["lstm"] == pytest.approx(np.sqrt(terms).sum() / np.sqrt(moved))
    queries = memory.query_set("test", "lstm").queries
    found = memory.output("lstm", queries, where="label <> 1")
    np.testing.assert_allclose(found, gates(masked, queries), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*no update rule:RuntimeWarning")
def test_an_optimizer_without_a_rule_keeps_the_scores_and_says_why_no_more(tmp_path):
    model = Tagger()
    optimizer = Unruled(model.parameters(), lr=0.01)
    with Recorder(model, optimizer, tmp_path / "m", layers="lstm") as recorder:
        for x, y in data(2):
            step(model, optimizer, recorder, x, y)
    memory = dualform.open(tmp_path / "m")
    assert memory.verify()["lstm"].reason.startswith("the network was trained with Unruled")
    assert len(memory.topk("lstm", dualform.SlotKeys([0]), k=2).slots[0]) == 2


def skip_without_bfloat16():
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(4, 3)(torch.randn(2, 5, 4))
    except RuntimeError as error:
        pytest.skip(f"torch runs no LSTM in bfloat16 on this processor: {error}")


def test_under_autocast_rounding_is_no_defect(tmp_path):
    skip_without_bfloat16()
    model = nn.LSTM(4, 3, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opened = Opened(model, optimizer, tmp_path / "m")
    with opened.recorder, opened.recorder.step(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 5, 4))[0].float().square().mean().backward()
        optimizer.step()
    assert opened.sink.defects == []
