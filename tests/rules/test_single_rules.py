"""Adam's, Adafactor's and Muon's rules: what each reads, refuses and rounds, held against torch and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.optim._muon import _zeropower_via_newtonschulz

from dualform import kernels
from dualform.rules import State, advanced, named, of_type, updated
from tests.cases import pairwise, some

OPTIONS = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-3, 0.1]),
        "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.9), (0.5, 0.0)]),
        "eps": st.sampled_from([1e-8, 1e-2]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "maximize": st.booleans(),
    }
)
HISTORY = st.lists(OPTIONS, min_size=1, max_size=7)


def test_factors_are_rounded_as_torch_rounds_them():
    """Over a few thousand updates they decide more than all other rounding of float32."""
    errors = {}
    for rounded in (True, False):
        torch.manual_seed(0)
        weight = nn.Parameter(0.1 * torch.randn(200))
        start = weight.detach().double().numpy().copy()
        optimizer, rule, state = torch.optim.AdamW([weight], lr=1e-3), named("adamw"), State(start)
        setting = {**rule.read(optimizer.param_groups[0]), "rounds_factors": rounded}
        for _ in range(2000):
            weight.grad = torch.randn(200) + 0.3
            optimizer.step()
            state, _ = updated(rule, state, weight.grad.double().numpy(), setting)
        now = weight.detach().double().numpy()
        errors[rounded] = np.linalg.norm(state.weight - now) / np.linalg.norm(now - start)
    assert errors[True] < 2e-5
    assert errors[False] > 4 * errors[True]


def test_which_tensors_are_multiplied_by_rounded_factors():
    rule = named("adam")
    for dtype, rounded in ((torch.float32, True), (torch.bfloat16, True), (torch.float64, False)):
        (group,) = torch.optim.Adam([nn.Parameter(torch.zeros(1, dtype=dtype))]).param_groups
        assert rule.read(group)["rounds_factors"] is rounded


def test_what_the_rule_refuses():
    rule = of_type(torch.optim.AdamW)
    for options, reason in (
        ({"lr": torch.tensor(float("inf"))}, "its lr is inf"),
        ({}, ""),
    ):
        (group,) = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], **options).param_groups
        assert rule.refusal(group) == reason


def test_decoupled_decay_is_read_from_the_group_where_it_says():
    parameters = [nn.Parameter(torch.zeros(1))]
    for optimizer, decoupled in (
        (torch.optim.Adam(parameters, decoupled_weight_decay=True), True),
        (torch.optim.Adam(parameters), False),
        (torch.optim.AdamW(parameters), True),
    ):
        rule, (group,) = of_type(type(optimizer)), optimizer.param_groups
        assert rule.read(group)["decoupled_weight_decay"] is decoupled
        silent = {name: value for name, value in group.items() if name != "decoupled_weight_decay"}
        assert rule.read(silent)["decoupled_weight_decay"] is (rule.name == "adamw")


@pytest.mark.skipif(kernels.library() is None, reason="the compiled loops are not there")
@settings(max_examples=13, deadline=None)
@given(history=HISTORY, seed=st.integers(0, 99), masked=st.booleans(), rounds=st.booleans(), prior=st.booleans())
def test_the_compiled_loop_gives_the_bits_of_the_arrays(history, seed, masked, rounds, prior):
    generator, rule = np.random.default_rng(seed), named("adamw")
    shape = (37, 11)  # no multiple of what a register holds
    start = generator.normal(size=shape) * 10.0 ** generator.integers(-30, 3, size=shape)
    start[0] = 0.0
    buffers = {"exp_avg": generator.normal(size=shape), "exp_avg_sq": generator.random(shape), "step": np.array(3.0)}
    kept = State(start / 3, {"exp_avg": buffers["exp_avg"] / 7} if prior else {})
    whole = State(start, buffers if prior else {})
    ours, our_share = _copy(whole), _copy(kept)
    for number, options in some(enumerate(history)):
        setting = {**rule.read(options), "rounds_factors": rounds, "decoupled_weight_decay": number % 2}
        setting["amsgrad"] = number % 3 == 1  # which is left to the arrays, and keeps what it knew while it is off
        gradient = generator.normal(size=shape)
        share = np.where(generator.random(shape) < 0.5, gradient, 0.0)
        whole, scale = updated(rule, whole, gradient, setting)
        if masked:
            kept = advanced(rule, kept, share, setting, scale)
        both = rule.advance_both(ours, our_share, gradient, share if masked else None, setting)
        assert (both is None) == setting["amsgrad"]
        if both is None:
            ours, own = updated(rule, ours, gradient, setting)
            our_share = advanced(rule, our_share, share, setting, own) if masked else our_share
        else:
            ours, our_share = both
    for one, other in ((ours, whole), (our_share, kept)):
        assert set(one.buffers) == set(other.buffers)
        for kind, array in {"": one.weight, **one.buffers}.items():
            np.testing.assert_array_equal(array, {"": other.weight, **other.buffers}[kind], err_msg=kind)


def _copy(state):
    return State(state.weight.copy(), {kind: np.array(own) for kind, own in state.buffers.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_least_that_is_divided_by_is_that_of_the_type_where_none_is_given(dtype):
    (group,) = torch.optim.Adafactor([nn.Parameter(torch.zeros(1, dtype=dtype))]).param_groups
    assert named("adafactor").read(group)["eps1"] == torch.finfo(dtype).eps
    (group,) = torch.optim.Adafactor([nn.Parameter(torch.zeros(1, dtype=dtype))], eps=(0.5, 1e-3)).param_groups
    assert named("adafactor").read(group)["eps1"] == 0.5


def test_a_parameter_of_more_than_two_axes_is_none_that_it_follows():
    rule = named("adafactor")
    assert [bool(rule.why_not_block(False, axes)) for axes in (1, 2, 3, 4)] == [False, False, True, True]
    assert rule.why_not_block(True, 2).startswith("is run again on whole parameters")


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (1, 1), (3, 4)])
def test_means_may_come_as_one_number_or_spread_over_the_parameter(shape):
    """So they are read from a memory."""
    gradient, rule = np.random.default_rng(0).normal(size=shape), named("adafactor")
    (group,) = torch.optim.Adafactor([nn.Parameter(torch.zeros(shape))]).param_groups
    before, _ = updated(rule, State(np.ones(shape)), gradient, rule.read(group))
    alone = {kind: own.reshape(()) if own.size == 1 else own for kind, own in before.buffers.items()}
    spread = {kind: np.broadcast_to(own, shape) if own.ndim else own for kind, own in before.buffers.items()}
    one, *others = (
        updated(rule, State(before.weight, kept), gradient, rule.read(group))[0].weight
        for kept in (before.buffers, alone, spread)
    )
    for other in others:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("name", "shape"), [("Adafactor", (3, 4)), ("Adafactor", (5,)), ("Muon", (3, 4))])
def test_a_gradient_of_zero_moves_nothing(name, shape):
    rule = named(name.lower())
    (group,) = getattr(torch.optim, name)([nn.Parameter(torch.zeros(2, 2))], weight_decay=0.0).param_groups
    state = State(np.ones(shape))
    for _ in range(2):
        state, scale = updated(rule, state, np.zeros(shape), rule.read(group))
    np.testing.assert_array_equal(state.weight, np.ones(shape))
    assert np.isfinite(scale.factors).all()


SHAPES = [(48, 96), (64, 64), (128, 32)]
BFLOAT16 = 2.0**-8
"""Half the distance from 1 to the next number."""


def settings_of(**options):
    (group,) = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))], **options).param_groups
    return named("muon").read(group)


def gradient_of(shape, seed=0):
    """Of directions that weigh as much as 1e4 and 1."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=shape) * np.logspace(0, -4, shape[1])
    return numbers.astype(np.float32).astype(np.float64)


def derivative(gradient, direction, settings):
    """d(what torch orthogonalizes to) along a direction, in float64, every product of the matrix with itself held."""
    a, b, c = settings["a"], settings["b"], settings["c"]
    amount = torch.zeros((), dtype=torch.float64, requires_grad=True)
    moved = torch.tensor(gradient) + amount * torch.tensor(direction)
    moved = moved.T if len(gradient) > gradient.shape[1] else moved
    moved = moved / moved.detach().norm().clamp(min=settings["eps"])
    for _ in range(int(settings["ns_steps"])):
        gram = (moved @ moved.T).detach()
        moved = a * moved + (b * gram + c * gram @ gram) @ moved
    moved = moved.T if len(gradient) > gradient.shape[1] else moved
    rows = [torch.autograd.grad(one, amount, retain_graph=True)[0] for one in moved.reshape(-1)]
    return torch.stack(rows).reshape(gradient.shape).numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_one_update_is_that_of_torch_to_bfloat16(shape):
    gradient = gradient_of(shape)
    setting = settings_of(lr=1.0, weight_decay=0.0, nesterov=False, momentum=0.0)
    after, _ = updated(named("muon"), State(np.zeros(shape)), gradient, setting)
    own = torch.tensor(gradient, dtype=torch.float32)
    made = _zeropower_via_newtonschulz(own, tuple(setting[name] for name in "abc"), 5, 1e-7).double().numpy()
    made *= max(1, shape[0] / shape[1]) ** 0.5
    assert np.linalg.norm(after.weight + made) < BFLOAT16 * np.linalg.norm(made)


MUONS = [
    {"lr": 1e-2},
    {"lr": 1e-2, "nesterov": False, "weight_decay": 0.0},
    {"lr": 1e-3, "momentum": 0.5, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw"},
    {"lr": torch.tensor(1e-2), "ns_coefficients": (3.0, -3.2, 1.2)},
]


@pytest.mark.parametrize(("shape", "options", "before"), pairwise([(12, 20), (20, 12)], MUONS, [0, 3]))
def test_many_updates_are_those_of_torch_to_bfloat16(shape, options, before):
    torch.manual_seed(0)
    weight, rule = nn.Parameter(0.1 * torch.randn(shape)), named("muon")
    optimizer = torch.optim.Muon([weight], **options)
    for number in range(before):
        weight.grad = torch.tensor(gradient_of(shape, number), dtype=torch.float32)
        optimizer.step()
    kept = {kind: own.double().numpy().copy() for kind, own in optimizer.state.get(weight, {}).items()}
    start = weight.detach().double().numpy().copy()
    state, setting = State(start, kept), rule.read(optimizer.param_groups[0])
    for number in range(30):
        gradient = gradient_of(shape, 10 + number)
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        state, _ = updated(rule, state, gradient, setting)
    now = weight.detach().double().numpy()
    assert np.linalg.norm(state.weight - now) < BFLOAT16 * np.linalg.norm(now - start)
    np.testing.assert_allclose(
        state.buffers["momentum_buffer"], optimizer.state[weight]["momentum_buffer"].numpy(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
def test_a_part_moves_by_what_autograd_says_and_its_share_of_rounding(shape):
    rule, setting = named("muon"), settings_of(lr=1.0, weight_decay=0.0, nesterov=False, momentum=0.0)
    gradient, direction = np.random.default_rng(1).normal(size=(2, *shape))
    ratio = max(1, shape[0] / shape[1]) ** 0.5
    whole, scale = updated(rule, State(np.zeros(shape)), gradient, setting)
    found = -advanced(rule, State(np.zeros(shape)), direction, setting, scale).weight / ratio
    # What rounding did to the whole goes to a part by its length along the whole.
    rest = -whole.weight / ratio - derivative(gradient, gradient, setting)
    assert 1e-3 < np.linalg.norm(rest) / np.linalg.norm(whole.weight) < 0.1  # five steps enlarge it
    along = float((direction * gradient).sum() / (gradient * gradient).sum())
    expected = derivative(gradient, direction, setting) + along * rest
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_way_to_adjust_the_rate_that_is_not_known_is_refused():
    (group,) = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))]).param_groups
    assert named("muon").refusal(group) == ""
    assert named("muon").refusal({**group, "adjust_lr_fn": "newest"}) == "its adjust_lr_fn is 'newest'"
