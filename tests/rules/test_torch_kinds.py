"""Each rule against torch's own optimizer: the whole, the shares of a partition, and their derivative by autograd."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.optim._adafactor import _single_tensor_adafactor
from torch.overrides import TorchFunctionMode

from dualform.rules import State, advanced, left_of, named, of_type, updated
from dualform.rules.rounding import NEGLIGIBLE, correction

SINGLE, FOREACH, FUSED = {"foreach": False}, {"foreach": True}, {"fused": True}
DIFFERENTIABLE = {"differentiable": True}
_RATE = st.sampled_from([1e-3, 0.1])
_BETAS = st.sampled_from([(0.9, 0.999), (0.0, 0.9), (0.5, 0.0)])
_EPS = st.sampled_from([1e-8, 1e-2])
_DECAY = st.sampled_from([0.0, 0.1])


@dataclass(frozen=True)
class Kind:
    type: type[torch.optim.Optimizer]
    made: dict[str, Any] = field(default_factory=dict)
    """Settings that stay, by strategy."""
    history: dict[str, Any] = field(default_factory=dict)
    """Settings that may change from update to update, by strategy."""
    variants: dict[str, dict[str, bool]] = field(default_factory=lambda: {"single": SINGLE, "foreach": FOREACH})

    def strategies(self):
        """What it is made with, and what it is set to before each update."""
        set_to = st.fixed_dictionaries({"weight_decay": _DECAY, "maximize": st.booleans(), **self.history})
        return st.fixed_dictionaries(self.made), st.lists(set_to, min_size=1, max_size=7)


_ADAM = {"lr": _RATE, "betas": _BETAS, "eps": _EPS}
_COUPLED = {"decoupled_weight_decay": st.booleans()}
_FUSED = {"single": SINGLE, "foreach": FOREACH, "fused": FUSED}
KINDS = {
    "adam": Kind(torch.optim.Adam, {"amsgrad": st.booleans()}, _ADAM, _FUSED),
    "adamw": Kind(torch.optim.AdamW, {"amsgrad": st.booleans()}, _ADAM, _FUSED),
    "nadam": Kind(torch.optim.NAdam, {}, {**_ADAM, **_COUPLED, "momentum_decay": st.sampled_from([4e-3, 0.5])}),
    "radam": Kind(torch.optim.RAdam, {}, {**_ADAM, **_COUPLED}),
    "adamax": Kind(torch.optim.Adamax, {}, _ADAM),
    "rmsprop": Kind(
        torch.optim.RMSprop,
        {"momentum": st.sampled_from([0.0, 0.9]), "centered": st.booleans()},
        {"lr": _RATE, "alpha": st.sampled_from([0.99, 0.5]), "eps": _EPS},
    ),
    "adagrad": Kind(
        torch.optim.Adagrad,
        {"initial_accumulator_value": st.sampled_from([0.0, 0.3])},
        {"lr": _RATE, "lr_decay": st.sampled_from([0.0, 0.2]), "eps": _EPS},
        _FUSED,
    ),
    "adadelta": Kind(torch.optim.Adadelta, {}, {"lr": _RATE, "rho": st.sampled_from([0.9, 0.5]), "eps": _EPS}),
    "asgd": Kind(
        torch.optim.ASGD,
        {"lr": _RATE},
        {"lr": _RATE, "lambd": st.sampled_from([1e-4, 0.1]), "alpha": st.sampled_from([0.75, 2.0])},
    ),
    "rprop": Kind(
        torch.optim.Rprop,
        {"lr": _RATE},
        {"etas": st.sampled_from([(0.5, 1.2), (0.9, 3.0)]), "step_sizes": st.sampled_from([(1e-6, 50), (1e-3, 0.2)])},
    ),
    "adafactor": Kind(
        torch.optim.Adafactor,
        {},
        {
            "lr": _RATE,
            "beta2_decay": st.sampled_from([-0.8, -0.1]),
            "eps": st.sampled_from([(None, 1e-3), (1e-3, 1.0)]),
            "d": st.sampled_from([1.0, 3.0]),
        },
    ),
}
OF_EACH = [(name, [*kind.variants][number % len(kind.variants)]) for number, (name, kind) in enumerate(KINDS.items())]
OF_EACH += [("adam", "fused"), ("asgd", "foreach")]
SHAPE = (3, 4)


def state_of(optimizer, weight, rule):
    """The parameter as it stands, and what the rule keeps of it; copied."""
    held = optimizer.state.get(weight, {})
    kept = {kind: held[kind].double().numpy().copy() for kind in (*rule.buffers, *rule.statistics) if kind in held}
    return State(weight.detach().double().numpy().copy(), kept)


def taken(optimizer, weight, gradient):
    weight.grad = torch.tensor(gradient, dtype=weight.dtype)
    optimizer.step()


@pytest.mark.parametrize(("name", "variant"), OF_EACH)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), before=st.integers(0, 2), seed=st.integers(0, 99))
def test_every_history_of_settings_gives_what_torch_gives(name, variant, data, before, seed):
    # torch keeps counts and products of all numbers in its default type, and ASGD's rate, which the rule rounds alike.
    # Where it takes all tensors at once, it makes that rate in float32.
    rtol, atol = (1e-6, 1e-6) if (name, variant) == ("asgd", "foreach") else (1e-9, 1e-12)
    with default_dtype(torch.float32 if name == "asgd" else torch.float64):
        check_history(name, variant, data, before, seed, rtol, atol)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def check_history(name, variant, data, before, seed, rtol, atol):
    kind, generator = KINDS[name], np.random.default_rng(seed)
    made, history = (data.draw(strategy) for strategy in kind.strategies())
    gradients = generator.normal(size=(len(history), *SHAPE)) * generator.choice([1e-6, 1.0], SHAPE)
    weight = nn.Parameter(torch.tensor(generator.normal(size=SHAPE)))
    optimizer = kind.type([weight], **made, **kind.variants[variant])
    for _ in range(before):
        taken(optimizer, weight, generator.normal(size=SHAPE))
    rule, (group,) = of_type(kind.type), optimizer.param_groups
    state = state_of(optimizer, weight, rule)
    for gradient, options in zip(gradients, history, strict=True):
        group.update(options)
        taken(optimizer, weight, gradient)
        state, _ = updated(rule, state, gradient, rule.read(group))
        np.testing.assert_allclose(state.weight, weight.detach().numpy(), rtol=rtol, atol=atol)
    expected = state_of(optimizer, weight, rule).buffers
    assert state.buffers.keys() == expected.keys()
    for own, value in expected.items():
        np.testing.assert_allclose(state.buffers[own], value, rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("name", [*KINDS, "muon"])
@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_shares_add_up_to_the_whole(name, data, seed):
    generator, rule = np.random.default_rng(seed), named(name)
    groups = [{**torch.optim.Muon([nn.Parameter(torch.zeros(SHAPE))]).param_groups[0]}] * 4
    if name != "muon":
        made, history = (data.draw(strategy) for strategy in KINDS[name].strategies())
        (group,) = KINDS[name].type([nn.Parameter(torch.zeros(1))], **made).param_groups
        groups = [{**group, **options} for options in history]
    shares = generator.normal(size=(3, len(groups), *SHAPE))  # of three masks
    start = generator.normal(size=SHAPE)
    whole, unrecorded_change, parts = State(start), State(start), [State(np.zeros(SHAPE)) for _ in range(3)]
    for number, group in enumerate(groups):
        read = rule.read(group)
        whole, scale = updated(rule, whole, shares[:, number].sum(0), read)
        # What no slot brought, the decay of W_0, takes no gradient.
        unrecorded_change = advanced(rule, unrecorded_change, np.zeros(SHAPE), read, scale)
        parts = [advanced(rule, part, own[number], read, scale) for part, own in zip(parts, shares, strict=True)]
    together = unrecorded_change.weight + sum(part.weight for part in parts)
    np.testing.assert_allclose(together, whole.weight, rtol=1e-9, atol=1e-9 * np.abs(whole.weight).max())
    assert all(np.abs(part.weight).max() > 0 for part in parts)


class FrozenStatistics(TorchFunctionMode):
    """What an update writes to a statistic comes without a derivative; a sign's is that of x / |x|, |x| being held."""

    def __init__(self, statistics):
        super().__init__()
        self._statistics = statistics
        """Gives those that there are."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.sign:
            size = args[0].detach().abs()
            return torch.where(size > 0, args[0] / size.where(size > 0, torch.ones_like(size)), 0.0)
        writes = func.__name__ in ("__iadd__", "__imul__") or func.__name__.rstrip("_") + "_" == func.__name__
        held = self._statistics()
        if writes and any(args[0] is own for own in held):
            func(*(own.detach() if isinstance(own, torch.Tensor) else own for own in args), **kwargs)
            return args[0]
        # The next update writes to what the derivative of this one takes.
        return func(
            *(arg.clone() if any(arg is own for own in held if own is not None) else arg for arg in args), **kwargs
        )


def derivative(name, made, history, gradients, shares, start):
    """d(weight) / d(amount of the share in every gradient), number by number, with all statistics held."""
    kind, rule = KINDS[name], named(name)
    amount = torch.zeros(SHAPE, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor(start, requires_grad=True).clone()
    adafactor = name == "adafactor"  # whose class has no differentiable=True, so that torch's own function is called
    optimizer = kind.type([weight.detach() if adafactor else weight], **made, **({} if adafactor else DIFFERENTIABLE))
    (group,), before = optimizer.param_groups, state_of(optimizer, weight, rule)
    count, read = torch.tensor(0.0), []
    means = [torch.zeros(shape, dtype=torch.float64) for shape in ((SHAPE[0], 1), (1, SHAPE[1]))]
    with FrozenStatistics(
        lambda: means if adafactor else [optimizer.state[weight].get(own) for own in rule.statistics]
    ):
        for gradient, share, options in zip(gradients, shares, history, strict=True):
            group.update(options)
            read.append(rule.read(group))
            mixed = torch.tensor(gradient) + amount * torch.tensor(share)
            if not adafactor:
                weight.grad = mixed
                optimizer.step()
                continue
            eps1, eps2 = options["eps"]
            given_ = {own: options[own] for own in ("d", "lr", "beta2_decay", "weight_decay", "maximize")}
            _single_tensor_adafactor(
                [weight], [mixed], *([mean] for mean in means), [None], [count], None, None,
                eps1=eps1, eps2=eps2, has_complex=False, **given_,
            )  # fmt: skip
    return torch.autograd.grad(weight.sum(), amount)[0].numpy(), read, before


def part_of(rule, read, gradients, shares, whole):
    part = State(np.zeros(SHAPE))
    for gradient, share, own in zip(gradients, shares, read, strict=True):
        whole, scale = updated(rule, whole, gradient, own)
        part = advanced(rule, part, share, own, scale)
    return part.weight


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_a_share_is_the_derivative_that_autograd_takes_through_the_update(name, data, seed):
    kind, generator = KINDS[name], np.random.default_rng(seed)
    made, history = (data.draw(strategy) for strategy in kind.strategies())
    gradients, shares = generator.normal(size=(2, len(history), *SHAPE))
    start = generator.normal(size=SHAPE)
    expected, read, before = derivative(name, made, history, gradients, shares, start)
    found = part_of(named(name), read, gradients, shares, before)
    rtol, atol = (1e-9, 1e-12) if name == "adafactor" else (1e-5, 1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


FAR = {"adam": {"amsgrad": True}, "adamw": {"amsgrad": True}, "rmsprop": {"centered": True, "momentum": 0.9}}
FAR |= {"nadam": {"weight_decay": 0.01, "decoupled_weight_decay": True}, "adafactor": {"weight_decay": 0.01}}
RATES = {"adagrad": 1e-2, "adadelta": 1.0, "asgd": 1e-2, "radam": 1e-2, "adafactor": 1e-2}


def followed(name, options, gradients):
    """The weight by the rule, by torch in float32, and where both began."""
    weight, rule = nn.Parameter(0.1 * torch.randn(24, 16)), named(name)
    optimizer = KINDS[name].type([weight], **options)
    state, read = state_of(optimizer, weight, rule), rule.read(optimizer.param_groups[0])
    start = state.weight.copy()
    for gradient in gradients:
        taken(optimizer, weight, gradient)
        state, _ = updated(rule, state, weight.grad.double().numpy(), read)
    return state.weight, weight.detach().double().numpy(), start


@pytest.mark.parametrize(("name", "variant"), OF_EACH)
def test_float32_weights_are_followed_over_many_updates(name, variant):
    torch.manual_seed(0)
    drift, spread = 0.05 * torch.randn(24, 16), torch.logspace(-6, 0, 24)[:, None]
    gradients = (
        (((drift if number < 150 else -drift) + 0.1 * torch.randn(24, 16)) * spread * (1 + number % 7)).double().numpy()
        for number in range(300)
    )
    options = {"lr": RATES.get(name, 1e-3), **FAR.get(name, {}), **KINDS[name].variants[variant]}
    found, now, start = followed(name, options, gradients)
    assert np.linalg.norm(found - now) < 1e-5 * np.linalg.norm(now - start)


@pytest.mark.parametrize("variant", KINDS["adamw"].variants)
@pytest.mark.parametrize("decay", [0.01, 0.1])
def test_decay_of_a_last_place_is_rounded_as_torch_rounds_it(variant, decay):
    """As of fine-tuning: 2e-5 times 0.01 is three units in the last place of 1, and one or two of a weight."""
    torch.manual_seed(0)
    drift = torch.randn(24, 16).numpy()
    gradients = (drift + torch.randn(24, 16).numpy() for _ in range(300))
    options = {"lr": 2e-5, "weight_decay": decay, **KINDS["adamw"].variants[variant]}
    found, now, start = followed("adamw", options, gradients)
    floor = 2.0**-24 * np.sqrt(300 / 3) * np.linalg.norm(now)
    assert np.linalg.norm(found - now) < 3 * floor < 1e-4 * np.linalg.norm(now - start)


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20), st.sampled_from([1 - 2e-7, 1 - 1e-5, 0.9, 1.0])
)
def test_what_is_left_of_a_weight_is_what_torch_makes_of_it(numbers, number):
    weight = torch.tensor(numbers, dtype=torch.float32)
    own = weight.double().numpy()
    np.testing.assert_allclose(left_of(own, number) * own, weight.mul_(number).double().numpy(), rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", [*KINDS, "muon"])
def test_a_rate_may_be_a_tensor(name):
    kind = torch.optim.Muon if name == "muon" else KINDS[name].type
    (group,) = kind([nn.Parameter(torch.zeros(SHAPE))], lr=torch.tensor(0.25)).param_groups
    assert named(name).read(group)["lr"] == 0.25
    assert all(isinstance(value, float | bool) for value in named(name).read(group).values())


@pytest.mark.parametrize(("name", "kind"), [("rprop", "step_size"), ("asgd", "eta"), ("nadam", "mu_product")])
def test_what_the_optimizer_does_not_have_begins_as_torch_begins_it(name, kind):
    """Not with zeros."""
    gradient, rule = np.ones(SHAPE), named(name)
    (group,) = KINDS[name].type([nn.Parameter(torch.zeros(1))], lr=0.5).param_groups
    first, _ = updated(rule, State(np.zeros(SHAPE)), gradient, rule.read(group))
    assert set(first.buffers) == {*rule.buffers, *rule.statistics}
    without = {own: 0 * array for own, array in first.buffers.items() if own != kind}
    again, _ = updated(rule, State(np.zeros(SHAPE), without), gradient, rule.read(group))
    np.testing.assert_array_equal(again.weight, first.weight)
    assert np.abs(again.weight).max() > 0


def test_a_buffer_that_an_update_leaves_alone_stays():
    rule, start = named("rmsprop"), State(np.zeros(SHAPE), {"momentum_buffer": np.ones(SHAPE)})
    (group,) = torch.optim.RMSprop([nn.Parameter(torch.zeros(1))], momentum=0.0).param_groups
    after, scale = updated(rule, start, np.ones(SHAPE), rule.read(group))
    np.testing.assert_array_equal(after.buffers["momentum_buffer"], np.ones(SHAPE))
    kept = advanced(rule, start, np.zeros(SHAPE), rule.read(group), scale)
    np.testing.assert_array_equal(kept.buffers["momentum_buffer"], np.ones(SHAPE))


@pytest.mark.parametrize("name", ["adam", "adamw", "nadam", "radam", "adamax"])
def test_where_the_count_of_updates_is_a_tensor_is_read(name):
    """On CUDA alone."""
    for options, counted in (({}, False), ({"capturable": True}, True), ({"capturable": True, "fused": True}, False)):
        (group,) = KINDS[name].type([nn.Parameter(torch.zeros(1))]).param_groups
        assert named(name).read({**group, **options})["float32_corrections"] is counted


def test_corrections_are_made_in_float32_where_torch_does():
    """0.999 in float32 is off by 1e-8, and 1 - 0.999 by 1e-5."""
    gradient, rule = np.random.default_rng(0).normal(size=SHAPE), named("adam")
    weight = torch.zeros(SHAPE, dtype=torch.float64, requires_grad=True).clone()
    optimizer = torch.optim.Adam([weight], differentiable=True)
    read = rule.read(optimizer.param_groups[0])
    taken(optimizer, weight, gradient)
    now = weight.detach().numpy()
    errors = {
        rounded: np.abs(updated(rule, State(np.zeros(SHAPE)), gradient, own)[0].weight / now - 1).max()
        for rounded, own in ((True, read), (False, {**read, "float32_corrections": False}))
    }
    assert errors[True] < 1e-6
    assert errors[False] > 3e-6


def test_a_memory_that_says_nothing_of_newer_settings_is_run_as_it_was():
    """What stands in the log of a training that Adam was recorded of before AMSGrad had a rule."""
    old = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "decoupled_weight_decay": True}
    old |= {"maximize": False, "rounds_factors": True}
    new = {**old, "amsgrad": False, "float32_corrections": False}
    gradient = np.random.default_rng(0).normal(size=SHAPE)
    for absent in ({}, {"amsgrad": None, "float32_corrections": None}):  # None, beside a run that says them
        one, other = (
            updated(named("adam"), State(np.ones(SHAPE)), gradient, own)[0] for own in ({**old, **absent}, new)
        )
        np.testing.assert_array_equal(one.weight, other.weight)
        assert one.buffers.keys() == other.buffers.keys() == {"exp_avg", "exp_avg_sq", "step"}


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}
COUNTS = np.concatenate([np.arange(1.0, 9000.0), [1e5, 7e5, 7.2e5, 1e6, 1e9]])


@pytest.mark.parametrize("beta", [0.0, 1e-8, 0.5, 0.9, 0.999, 0.99999, 1.0])
@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_corrections_are_those_of_the_whole_power(beta, number):
    with np.errstate(under="ignore"):
        expected = (number(1) - np.power(number(beta), COUNTS.astype(number))).astype(np.float64)
    with np.errstate(under="raise"):
        found = correction(beta, COUNTS, {"float32_corrections": number is np.float32})
    np.testing.assert_array_equal(found, expected)
    assert np.float32(1) - np.float32(NEGLIGIBLE) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("count", [6_999.0, 999_999.0])
def test_an_update_late_in_a_training_does_not_underflow(name, count):
    """0.9 to the power of 6,724 does, and 0.999 to that of 707,000."""
    (group,) = OPTIMIZERS[name]([nn.Parameter(torch.zeros(3))]).param_groups
    rule, ones = named(name), np.ones(3)
    kept = {kind: ones for kind in (*rule.buffers, *rule.statistics) if kind != "max_exp_avg_sq"}
    with np.errstate(under="raise"):
        after, _ = updated(rule, State(ones, kept | {"step": ones * count}), ones, rule.read(group))
    assert np.isfinite(after.weight).all()
