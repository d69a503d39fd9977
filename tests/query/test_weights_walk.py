"""CONTRIBUTING's walk of weights under a mask is the way that they take: what runs is on it, and what is on it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from tests.walk import Trace, walk

MOST_STOPS = 12
WALK = walk("Weights under a mask")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files that run between the question and its answer."""
    path: Path = tmp_path_factory.mktemp("walk") / "m"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for _ in range(2):
            x, y = torch.randn(6, 4), torch.arange(6) % 3
            with recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
    with dualform.open(path) as memory, Trace() as trace:
        trace.on = True
        found = memory.weights(where="label < 2")
        trace.on = False
    assert found.others == ("1.bias", "1.weight")
    assert found.kept == {"sample": 8}
    return trace.ran


def test_everything_that_runs_is_a_stop_or_beside_the_way(ran):
    assert WALK.unnamed(ran) == []


def test_every_stop_runs(ran):
    assert [file for file in WALK.stops if file not in ran] == []


def test_the_stops_are_few():
    assert 10 < len(WALK.stops) <= MOST_STOPS
    assert len(set(WALK.stops)) == len(WALK.stops)
