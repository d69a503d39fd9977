"""A training that ends in another precision than it began in: each run's updates are rounded as that run's were."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from tests.rules.test_rounded_rules import PLAIN_LOOPS, sums_are_rounded_once
from tests.trainings import record_steps

pytestmark = pytest.mark.skipif(not sums_are_rounded_once(), reason=PLAIN_LOOPS)
FIRST, MORE, ROWS = 16, 6, 8
NEAR = 2e-3
"""Of the way. Unrounded, the first run's updates miss 0.2 of it."""


def train(model, path, steps, options, **recorder):
    """The state dict once the steps were taken."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)
    dtype = next(model.parameters()).dtype
    record_steps(
        dualform.Recorder(model, optimizer, path, **recorder),
        optimizer,
        (torch.randn(ROWS, 16).to(dtype) for _ in range(steps)),
        lambda x: cross_entropy(model(x).float(), x[:, :4].float().argmax(1)),
        label=range(ROWS),
    )
    return deepcopy(model.state_dict())


@pytest.fixture
def first(tmp_path):
    """A network in bfloat16, with its weights before and after a first run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).bfloat16()
    before = deepcopy(model.state_dict())
    return model, before, train(model, tmp_path / "a", FIRST, {})


def misses(memory, at_step, before, live):
    found = memory.weights(at_step=at_step, allow_inexact=True)
    return {
        name: float((found[name] - live[name].float()).norm() / (live[name].float() - before[name].float()).norm())
        for name in live
    }


def test_a_run_in_float32_follows_one_in_bfloat16(tmp_path, first):
    model, before, live = first
    end = train(model.float(), tmp_path / "b", MORE, {})
    with dualform.open([tmp_path / "a", tmp_path / "b"]) as memory:
        assert max(misses(memory, FIRST, before, live).values()) <= NEAR
        assert max(misses(memory, None, before, end).values()) <= NEAR
        reconstructions = memory.verify()
        assert max(found.reconstruction_error for found in reconstructions.values()) <= NEAR
        assert {found.status.name for found in reconstructions.values()} == {"exact to bfloat16"}
        with pytest.raises(dualform.DualformError, match="this run used SGD of bfloat16 weights"):
            memory.coefficients("0", [0])


def test_a_training_that_is_resumed_unfollowed_leaves_the_run_before_as_it_was(tmp_path, first):
    """`foreach` rounds elsewhere: the further run is off, and the first one's weights are what they were."""
    model, before, live = first
    train(model, tmp_path / "a", MORE, {"foreach": True}, resume=True)
    with dualform.open(tmp_path / "a") as memory:
        assert memory.info().steps == FIRST + MORE
        assert max(misses(memory, FIRST, before, live).values()) <= NEAR
        with pytest.raises(dualform.DualformError, match="this run used SGD of bfloat16 weights"):
            memory.coefficients("0", [0])
