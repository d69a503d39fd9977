"""The rule of Adam and AdamW: what it reads, how it rounds, and its compiled loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from dualform import kernels
from dualform.rules import State, advanced, named, of_type, updated
from tests.cases import some

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
