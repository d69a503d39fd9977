"""A softmax over the slots that stay weighs the values that the inner product weighs, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import Inexact
from dualform.query.score.canonical import canonical_scores
from dualform.query.weights import softmax
from tests.query import arrays
from tests.query.plain_case import BATCH, LR, STEPS, Case
from tests.record.listed import skip_without_bfloat16
from tests.trainings import record_steps


def weights_of(case: Case, query: np.ndarray, stays: np.ndarray, temperature: float) -> np.ndarray:
    """p over the slots that stay, float64."""
    scores = canonical_scores(case.keys[stays], query)
    with np.errstate(over="ignore", under="ignore"):
        powers = np.exp((scores - scores.max(initial=-np.inf)) / temperature)
    return powers / powers.sum()


def expected(case: Case, stays: np.ndarray, at_step: int, temperature: float, initial: bool) -> np.ndarray:
    attending = stays & (case.steps < at_step)
    values = -LR * case.values[attending].astype(float)
    sums = np.array([weights_of(case, query, attending, temperature) @ values for query in case.queries])
    return sums + (case.queries.astype(float) @ case.weight.T + case.rebuilt(stays, at_step)[1] if initial else 0.0)


@pytest.mark.parametrize("block", [16, 4096])
def test_the_bits_of_an_output_depend_on_no_other_query(monkeypatch, block):
    monkeypatch.setattr(softmax, "block_size", lambda width: block)
    monkeypatch.setattr(softmax, "_BATCH", 3)
    case, how = Case(repeats=True), {"kernel": "softmax", "temperature": 0.5}
    found = case.engine.output("fc", case.queries, **how)
    alone = [case.engine.output("fc", query, **how) for query in case.queries]
    assert np.concatenate([one.values for one in alone]).tobytes() == found.values.tobytes()
    assert np.concatenate([one.effective_slots for one in alone]).tobytes() == found.effective_slots.tobytes()
    wanted = expected(case, np.ones(STEPS * BATCH, dtype=bool), STEPS, 0.5, True)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_part_of_an_answer_has_its_own_effective_slots():
    case = Case()
    found = case.engine.output("fc", case.queries, kernel="softmax")
    part = found.part(1, 3)
    assert part.effective_slots.tolist() == found.effective_slots[1:3].tolist()
    assert found.nbytes == found.values.nbytes + found.effective_slots.nbytes
    assert case.engine.output("fc", case.queries).effective_slots is None


def test_huge_scores_give_numbers(rng):
    keys = (rng.choice([-1, 1], (40, 6)) * 3e38).astype(np.float32)
    values = rng.normal(size=(40, 2)).astype(np.float32)
    initial = {"fc.weight": np.zeros((2, 6), np.float32), "fc.bias": np.zeros(2, np.float32)}
    engine = arrays.engine(
        arrays.memory({"fc": keys}, {"step": [0] * 40}, values={"fc": values}, initial=initial, final=initial)
    )
    found = engine.output("fc", keys[:3], kernel="softmax", temperature=1e-300, initial=False, allow_inexact=True)
    same = (keys[:3, None] == keys).all(axis=2)
    np.testing.assert_allclose(found, [-LR * values[own].astype(float).mean(axis=0) for own in same], rtol=1e-5)
    assert found.effective_slots.tolist() == same.sum(axis=1).tolist()


def test_steps_of_a_learning_rate_of_zero_attend_and_those_without_an_update_do_not(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with dualform.Recorder(model, optimizer, tmp_path / "run") as recorder:
        for step in range(4):
            optimizer.param_groups[0]["lr"] = 0.1 if step == 1 else 0.0
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(5, 3)).square().sum().backward()
                if step != 2:
                    optimizer.step()
    with dualform.open(tmp_path / "run") as memory:
        query = np.zeros(3, np.float32)  # weighs all slots alike
        (layer,) = memory.info().layers
        assert memory.output(layer.name, query, kernel="softmax").effective_slots == [15]  # of steps 0, 1 and 3
        assert memory.output(layer.name, query, None, 1, kernel="softmax").effective_slots == [5]


def test_what_moved_outside_the_record_stands_beside_the_softmax():
    case = Case(watch={6: (0.2, 0.2)})
    moved = {name: array + np.float32(0.25) for name, array in case.memory.end.items()}
    case.memory.end = moved
    with pytest.raises(Inexact):
        case.engine.output("fc", case.queries, kernel="softmax")
    found = case.engine.output("fc", case.queries, kernel="softmax", allow_inexact=True)
    wanted = expected(case, np.ones(STEPS * BATCH, dtype=bool), STEPS, 1.0, True)
    wanted += 0.25 * case.queries.astype(float).sum(axis=1)[:, None] + 0.25
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.unrecorded_change > 0
    alone = case.engine.output("fc", case.queries, kernel="softmax", allow_inexact=True, initial=False)
    np.testing.assert_allclose(
        alone, expected(case, np.ones(STEPS * BATCH, dtype=bool), STEPS, 1.0, False), rtol=1e-6, atol=1e-6
    )
    assert alone.unrecorded_change == 0.0


def trained_on(model: nn.Module, optimizer: torch.optim.Optimizer, path, inputs):
    def loss(_):
        found = model(inputs())
        return (found[0] if isinstance(found, tuple) else found).square().sum()

    record_steps(dualform.Recorder(model, optimizer, path), optimizer, 3, loss)
    return dualform.open(path)


LSTM = ("0.weight_hh_l0", "0.weight_ih_l0")


def lstm_memory(path, *, length=4, steps=3, halved=LSTM, rates=None, autocast=False):
    """A tiny LSTM; the gradients of the `halved` parts count half. `rates`: of each step, for weights of the state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LSTM(3, 2, batch_first=True))
    named = dict(model.named_parameters())
    state = [{"params": [p]} for name, p in named.items() if "weight_hh" in name]
    other = [{"params": [p for name, p in named.items() if "weight_hh" not in name]}]
    optimizer = torch.optim.SGD(state + other, lr=0.1)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rates[step] if rates else 0.1
            with recorder.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    found = model(torch.randn(5, length, 3))[0]
                found.float().square().sum().backward()
                for name in halved:
                    named[name].grad.mul_(0.5)
                optimizer.step()
    return dualform.open(path)


def assert_mean_of_values(memory, coefficient, where=None, rtol=1e-4):
    """A query of zeros weighs all slots alike."""
    slots = memory.sql(f"SELECT slot FROM slots WHERE {where or 'true'} ORDER BY slot")["slot"]
    wanted = coefficient * memory.values("0", slots).mean(axis=0)
    found = memory.output("0", np.zeros(5, np.float32), where, kernel="softmax", initial=False)
    np.testing.assert_allclose(found[0], wanted, rtol=rtol, atol=1e-8)
    assert found.effective_slots[0] == pytest.approx(len(slots))


def test_parts_whose_factors_bfloat16_rounds_have_one_value(tmp_path):
    skip_without_bfloat16()
    with lstm_memory(tmp_path / "run", autocast=True) as memory:
        assert str(memory.info().layers[0].status) == "exact to bfloat16"
        assert_mean_of_values(memory, -0.05, rtol=2.0**-7)


def test_a_part_without_a_gradient_says_nothing_of_the_value(tmp_path):
    """Of sequences of length 1 the state is zero, and so is the gradient of its weight: no factor shows in it."""
    with lstm_memory(tmp_path / "run", length=1) as memory:
        assert_mean_of_values(memory, -0.05)


def test_only_steps_whose_slots_attend_are_compared(tmp_path):
    with lstm_memory(tmp_path / "run", rates=(0.1, 0.1, 0.2)) as memory:
        assert_mean_of_values(memory, -0.05, where="step < 2")
        with pytest.raises(Inexact, match=r"moved differently"):
            memory.output("0", np.zeros(5), kernel="softmax")


@pytest.mark.parametrize(
    "apart", [{"rates": (0.1, 0.1 * (1 + 1e-7), 0.1)}, {"halved": LSTM[:1]}], ids=["a learning rate", "a factor"]
)
def test_settings_are_compared_exactly_and_factors_as_the_status_allows(tmp_path, apart):
    with (
        lstm_memory(tmp_path / "run", **apart) as memory,
        pytest.raises(
            Inexact,
            match=r"^Contributions of single slots are not defined for layer '0': the parts of its "
            r"weight, 0\.weight_hh_l0, 0\.weight_ih_l0, moved differently\.",
        ),
    ):
        memory.output("0", np.zeros(5), kernel="softmax")


def test_adam_is_refused_by_name_but_its_sum_alone_is_not(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    start = model[0].weight.detach().numpy().astype(float)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with trained_on(model, optimizer, tmp_path / "run", lambda: torch.randn(5, 3)) as memory:
        with pytest.raises(Inexact, match=r"^Single slots have no term of their own in layer .* with Adam") as refused:
            memory.output("0", np.ones(3), kernel="softmax")
        assert (refused.value.hint, refused.value.field) == ('Pass kernel="linear".', "kernel")
        moved = model[0].weight.detach().numpy().astype(float) - start
        np.testing.assert_allclose(memory.output("0", np.ones(3), initial=False)[0], moved.sum(axis=1), rtol=1e-4)


class Tied(nn.Module):
    def __init__(self, kind="weight"):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        setattr(self.other, kind, getattr(self.one, kind))

    def forward(self, inputs):
        return self.other(self.one(inputs))


def test_a_shared_weight_is_refused_by_name_but_its_sum_alone_is_not(tmp_path):
    torch.manual_seed(0)
    model = Tied()
    start = model.one.weight.detach().numpy().astype(float)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trained_on(model, optimizer, tmp_path / "run", lambda: torch.randn(5, 3)) as memory:
        with pytest.raises(
            Inexact,
            match=r"^Contributions of single slots are not defined for layer 'one': it shares a "
            r"parameter with layer 'other', whose slots are others\.",
        ):
            memory.output("one", np.ones(3), kernel="softmax")
        moved = model.one.weight.detach().numpy().astype(float) - start
        np.testing.assert_allclose(memory.output("one", np.ones(3), initial=False)[0], moved.sum(axis=1), rtol=1e-4)


def test_a_shared_bias_is_the_sum_over_the_slots_of_both(tmp_path):
    torch.manual_seed(0)
    model = Tied("bias")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trained_on(model, optimizer, tmp_path / "run", lambda: torch.randn(5, 3)) as memory:
        ask = lambda where, **of: memory.output("one", np.ones(3), where, **of).values  # noqa: E731
        for where in (None, "step <> 1"):
            beside = ask(where, kernel="softmax") - ask(where, kernel="softmax", initial=False)
            np.testing.assert_allclose(beside, ask(where) - ask(where, initial=False), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["convolution", "embedding", "LSTM"])
def test_patches_and_tokens_attend_each_for_itself(tmp_path, kind):
    torch.manual_seed(0)
    if kind == "convolution":
        model, inputs = nn.Sequential(nn.Conv2d(2, 3, 2)), lambda: torch.randn(2, 2, 4, 4)
    elif kind == "LSTM":
        model, inputs = nn.Sequential(nn.LSTM(3, 2, batch_first=True)), lambda: torch.randn(4, 5, 3)
    else:
        model, inputs = nn.Sequential(nn.Embedding(7, 3)), lambda: torch.randint(0, 7, (4, 5))
    with trained_on(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", inputs) as memory:
        layer = memory.info().layers[0]
        query = np.linspace(-1, 1, layer.d_in).astype(np.float32)
        keys = memory.keys(layer.name).astype(float)
        assert len(keys) == layer.slots
        weights = np.exp(keys @ query) / np.exp(keys @ query).sum()
        values = memory.coefficients(layer.name, np.arange(layer.slots))[:, None] * memory.values(layer.name)
        found = memory.output(layer.name, query, kernel="softmax", initial=False)
        np.testing.assert_allclose(found[0], weights @ values, rtol=1e-5, atol=1e-7)
        assert found.effective_slots[0] == pytest.approx(1 / np.square(weights).sum())
