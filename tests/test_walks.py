"""CONTRIBUTING's walk of a batch is the way that a batch takes: what runs is on it, and what is on it runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform import Recorder
from dualform.store import writer
from dualform.store.snapshot import Snapshot
from tests.walk import Trace, walk

MOST_STOPS = 22
WALK = walk("A batch's way")


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> set[str]:
    """The files that run from a step's beginning until its batch was journaled, committed and opened."""
    path = tmp_path_factory.mktemp("walk") / "m"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.MonkeyPatch.context() as patch, Trace() as trace:
        patch.setattr(writer, "JOURNAL_SECONDS", 0.0)
        with Recorder(model, optimizer, path) as recorder:
            step(recorder, model, optimizer, rows=6)
            trace.on = True
            step(recorder, model, optimizer, rows=5)  # another shape, so that it is aligned anew
            recorder.flush()
            Snapshot.open(path)
            trace.on = False
    return trace.ran


def step(recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer, rows: int) -> None:
    x, y = torch.randn(rows, 4), torch.arange(rows) % 3
    with recorder.step(label=y, sample=torch.arange(rows)):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def test_everything_that_runs_is_a_stop_or_beside_the_way(ran):
    assert WALK.unnamed(ran) == []


def test_every_stop_runs(ran):
    assert [file for file in WALK.stops if file not in ran] == []


def test_the_stops_are_few_and_none_stands_beside_the_way():
    assert 10 < len(WALK.stops) <= MOST_STOPS
    assert len({*WALK.stops, *WALK.beside}) == len(WALK.stops) + len(WALK.beside)


def test_both_threads_are_traced(ran):
    assert {"record/recorder.py", "record/sink.py", "store/journal.py", "store/shard.py"} <= ran
