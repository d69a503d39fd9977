"""A rule of one's own that does not keep its promises is refused by name, and never ends a training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dualform
from dualform import rules
from dualform.errors import BadInput
from dualform.record.setup.optimizers import why_no_rule
from dualform.rules import Scale, State, UpdateRule, named, of_type, register, why_refused
from tests.record.listed import batches, small_net
from tests.rules.own import Sign, SignRule
from tests.trainings import learn


class Momentum(torch.optim.Optimizer):
    """m' = 0.9 m + g;  W - lr m'."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["momentum"] = 0.9 * state.get("momentum", torch.zeros_like(parameter)) + parameter.grad
            parameter -= self.param_groups[0]["lr"] * state["momentum"]


class MomentumRule(UpdateRule):
    name = "own_momentum"
    settings = {"lr": "DOUBLE"}  # noqa: RUF012
    buffers = ("momentum",)
    commutes_with = "entries"

    def scale(self, state, gradient, settings):
        return Scale(settings["lr"] * np.ones_like(gradient), {})

    def advance(self, state, gradient, settings, scale=None):
        momentum = 0.9 * state.buffers.get("momentum", 0.0) + gradient
        return State(state.weight - scale.factors * momentum, {"momentum": momentum})


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(rules, "_BY_TYPE", dict(rules._BY_TYPE))


def record(path, make=Momentum, before=0, steps=8):
    """Trains on, whatever the rule does; returns the status of a layer."""
    model = small_net()
    optimizer = make(model.parameters())

    def train(x, y):
        learn(optimizer, cross_entropy(model(x), y))

    for x, y in batches(before):
        train(x, y)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for x, y in batches(steps):
            with recorder.step(label=y):
                train(x, y)
    assert recorder.steps == steps
    with dualform.open(path) as memory:
        assert memory.topk("0", np.ones(5, np.float32), k=1).ids.shape == (1,)
        return memory.info().layers[0].status


def of(**changed):
    return type("Changed", (MomentumRule,), changed)()


def raises(*_, **__):
    raise ZeroDivisionError("a bug")


BROKEN = {
    "scale raises": ({"scale": raises}, "it raised ZeroDivisionError: a bug"),
    "advance raises": ({"advance": raises}, "it raised ZeroDivisionError: a bug"),
    "read raises": ({"read": raises}, "it raised ZeroDivisionError: a bug"),
    "refusal raises": ({"refusal": raises}, "it raised ZeroDivisionError: a bug"),
    "read gives a text": ({"read": lambda *_: {"lr": "abc"}, "refusal": lambda *_: ""}, "it raised ValueError"),
    "read gives too little": ({"read": lambda *_: {}}, "it raised KeyError: 'lr'"),
    "a weight of another shape": (
        {"advance": lambda self, s, g, *_: State(np.zeros(3), {"momentum": g})},
        "advance gives a weight of shape (3,)",
    ),
    "a number for a weight": (
        {"advance": lambda self, s, g, *_: State(0.0, {"momentum": g})}, "advance gives a weight that is float"
    ),
    "a buffer of another shape": (
        {"advance": lambda self, s, g, *_: State(s.weight, {"momentum": np.zeros(7)})},
        "it gives momentum of shape (7,)",
    ),
    "an unknown buffer": ({"advance": lambda self, s, g, *_: State(s.weight, {"other": g})}, "it gives 'other'"),
    "nothing": ({"advance": lambda *_: None}, "it raised AttributeError"),
    "no numbers": ({"scale": lambda self, s, g, *_: Scale(g * np.nan, {})}, "it makes NaN or infinity"),
    "a scale beside directions": ({"commutes_with": "directions"}, "it has a scale, so it does not commute"),
    "entries of a whole matrix": (
        {"scale": lambda self, s, g, settings: Scale(np.asarray(settings["lr"] / np.linalg.norm(g)), {})},
        "it does not commute with 'entries'",
    ),
    "a share that does not add up": (
        {"advance": lambda self, s, g, settings, scale=None: State(s.weight - settings["lr"] * np.sign(g))},
        "its advance is not linear: the weight of two shares",
    ),
    "writes into its state": (
        {"advance": lambda self, s, g, *_: State(s.weight.__isub__(g), {"momentum": g})}, "it raised ValueError"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_rule_that_breaks_its_promises_is_found_out(what):
    changed, reason = BROKEN[what]
    register(Momentum, of(**changed))
    assert f"cannot follow parameter group 0, for {reason}" in why_no_rule(Momentum(small_net().parameters()))


def test_a_rule_that_breaks_its_promises_gives_scores_only_and_one_that_keeps_them_is_exact(tmp_path):
    register(Momentum, of())
    assert record(tmp_path / "kept").name == "exact"
    changed, reason = BROKEN["scale raises"]
    register(Momentum, of(**changed))
    with pytest.warns(RuntimeWarning, match="cannot follow parameter group 0") as warned:
        status = record(tmp_path / "broken")
    assert len(warned) == 1
    assert status.name == "scores only"
    assert f"cannot follow parameter group 0, for {reason}" in status.reason


@pytest.mark.parametrize("kind", ["scale", "read"])
def test_a_rule_that_fails_later_is_not_known_to_be_exact_from_then_on(tmp_path, kind):
    calls = []
    inner = getattr(MomentumRule, kind)

    def later(self, *rest):
        calls.append(rest)
        if len(calls) > 60:
            raise ZeroDivisionError("a bug")
        return inner(self, *rest)

    register(Momentum, of(**{kind: later}))
    status = record(tmp_path / "m", steps=80)
    assert (status.name, status.error) == ("approximate", None)
    assert 0 < status.since < 80
    assert status.reason.startswith(
        f"update rule 'own_momentum' raised ZeroDivisionError at step {status.since}: a bug"
    )


class Counting(Momentum):
    """W - lr / t g, t being a number of Python's."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            parameter -= self.param_groups[0]["lr"] / state["step"] * parameter.grad


class CountingRule(UpdateRule):
    name = "counting"
    settings = {"lr": "DOUBLE"}  # noqa: RUF012
    statistics = ("step",)
    commutes_with = "entries"

    def scale(self, state, gradient, settings):
        step = state.buffers.get("step", 0.0) + 1.0  # a plain number at the first update
        return Scale(settings["lr"] / step, {"step": step})

    def advance(self, state, gradient, settings, scale=None):
        return State(state.weight - scale.factors * gradient)


@pytest.mark.parametrize("before", [0, 5])
def test_statistics_may_be_plain_numbers(tmp_path, before):
    register(Counting, CountingRule())
    assert record(tmp_path / "m", Counting, before).name == "exact"


def test_a_count_may_have_an_axis(tmp_path):
    def make(parameters):
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        optimizer.register_step_post_hook(
            lambda own, *_: [state.update(step=state["step"].reshape(1)) for state in own.state.values()] and None
        )
        return optimizer

    assert record(tmp_path / "m", make, before=3).name == "exact"


def test_an_optimizer_without_a_rule_is_told_of_once(tmp_path):
    with pytest.warns(RuntimeWarning, match="trained with Momentum, for which there is no update rule") as warned:
        assert record(tmp_path / "m", Momentum).name == "scores only"
    assert len(warned) == 1


def test_a_buffer_that_does_not_fit_gives_scores_only():
    model = small_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        optimizer.state[parameter] = {"exp_avg": torch.zeros(11)}
    assert "its exp_avg of shape (11,) does not fit a parameter of (7, 5)" in why_no_rule(optimizer)


DECLARED = {
    "settings": [{}, *({"lr": "DOUBLE", name: "DOUBLE"} for name in ("LR", "step", "Group", 'a"b'))],
    "settings['k']": [{"lr": "DOUBLE", "k": "VARCHAR"}],
    "settings['lr']": [{"lr": "FLOAT"}],
    "commutes_with": ["entry"],
    "precision": ["float16"],
    "buffers": ["momentum", ("a/b",)],
    "statistics": [("a/b",), [1]],
    "buffers and statistics": [("momentum", "momentum")],
    "name": [""],
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, all_of in DECLARED.items() for value in all_of])
def test_what_cannot_be_logged_is_refused_by_name(field, value):
    attribute = field.partition("[")[0].partition(" ")[0]
    with pytest.raises(BadInput) as refused:
        register(Momentum, of(**{attribute: value}))
    assert refused.value.field == field
    assert of_type(Momentum) is None


@pytest.mark.parametrize("rule", [MomentumRule, "momentum"])
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(BadInput, match="rule must be an UpdateRule"):
        register(Momentum, rule)
    with pytest.raises(BadInput, match="optimizer must be a type"):
        register(Momentum([torch.zeros(1)]), of())


def test_one_name_is_one_rules_own_and_one_optimizer_has_one_rule():
    class Scaled(SignRule):
        name = "scaled"

        def __init__(self, by):
            self.by = by

    register("some.One", Scaled(1.0))
    register("some.Two", Scaled(1.0))
    with pytest.raises(BadInput, match="another update rule is named 'scaled'"):
        register("some.Three", Scaled(2.0))
    with pytest.raises(BadInput, match=r"torch\.optim\.sgd\.SGD already has update rule 'sgd'"):
        register(torch.optim.SGD, Scaled(1.0))
    with pytest.raises(BadInput, match=r"torch\.optim\.adam\.Adam already has update rule 'adam'"):
        register("torch.optim.Adam", Scaled(1.0))
    assert named("sgd") is of_type(torch.optim.SGD)


def test_a_rule_that_is_registered_once_more_takes_the_place_of_the_first():
    first, second = SignRule(), SignRule()
    register(Sign, first)
    register("some.Other", second)
    assert named("sign") is of_type(Sign) is second


def test_an_optimizer_may_be_named_by_another_name_of_its_type():
    class Other(SignRule):
        name = "other"

    register("torch.optim.LBFGS", Other())
    assert of_type(torch.optim.LBFGS).name == "other"
    assert why_refused(torch.optim.LBFGS) == ""
