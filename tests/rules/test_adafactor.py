"""What Adafactor's rule reads and refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dualform.rules import State, named, updated


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


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (1, 1)])
def test_a_mean_of_one_row_or_column_may_come_as_one_number(shape):
    """So it is read from a memory."""
    gradient, rule = np.random.default_rng(0).normal(size=shape), named("adafactor")
    (group,) = torch.optim.Adafactor([nn.Parameter(torch.zeros(shape))]).param_groups
    before, _ = updated(rule, State(np.ones(shape)), gradient, rule.read(group))
    alone = {kind: own.reshape(()) if own.size == 1 else own for kind, own in before.buffers.items()}
    states = [State(before.weight, kept) for kept in (before.buffers, alone)]
    one, other = (updated(rule, state, gradient, rule.read(group))[0] for state in states)
    np.testing.assert_array_equal(one.weight, other.weight)


@pytest.mark.parametrize("shape", [(3, 4), (5,)])
def test_a_gradient_of_zero_moves_nothing(shape):
    (group,) = torch.optim.Adafactor([nn.Parameter(torch.zeros(shape))]).param_groups
    state = State(np.ones(shape))
    for _ in range(2):
        state, _ = updated(named("adafactor"), state, np.zeros(shape), named("adafactor").read(group))
    np.testing.assert_array_equal(state.weight, np.ones(shape))


def test_means_of_rows_and_columns_may_come_spread_over_the_parameter():
    """So they are read from a memory."""
    gradient, rule = np.random.default_rng(0).normal(size=(3, 4)), named("adafactor")
    (group,) = torch.optim.Adafactor([nn.Parameter(torch.zeros(3, 4))]).param_groups
    before, _ = updated(rule, State(np.ones((3, 4))), gradient, rule.read(group))
    spread = {kind: np.broadcast_to(own, (3, 4)) if own.ndim else own for kind, own in before.buffers.items()}
    states = [State(before.weight, kept) for kept in (before.buffers, spread)]
    one, other = (updated(rule, state, gradient, rule.read(group))[0] for state in states)
    np.testing.assert_array_equal(one.weight, other.weight)
