"""CONTRIBUTING's walk of a batch is the way that a batch takes: what runs is on it, and what is on it runs.

Four trainings take it: a network of linear layers under SGD, an embedding's under AdamW, the linear layers in bfloat16
under a budget that does not hold them all, and two ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dualform import Recorder
from dualform.store import writer
from dualform.store.snapshot import Snapshot
from tests.record.rank_threads import COUNT, Fleet
from tests.walk import Trace, walk

MOST_STOPS = 27
SOMETIMES = {"two ranks": "record/ranks.py", "bfloat16 under a budget": "record/sampler.py"}
"""The stops of one of the trainings alone."""
WALK = walk("A batch's way")


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def embedded() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), nn.Flatten(0, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def halved() -> nn.Module:
    return linear().bfloat16()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def features(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4), torch.arange(rows) % 3


def halved_features(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4, dtype=torch.bfloat16), torch.arange(rows) % 3


def tokens(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randint(7, (rows, 3)), torch.arange(3 * rows) % 3


@contextmanager
def tracing():
    """A trace of everything, in which rows go to the journal at once."""
    with pytest.MonkeyPatch.context() as patch, Trace() as trace:
        patch.setattr(writer, "JOURNAL_SECONDS", 0.0)
        yield trace


def ran_alone(make: Callable, optimize: Callable, data: Callable, path: Path, **budget: Any) -> set[str]:
    """The files that run from a step's beginning until its batch was journaled, committed and opened."""
    model = make()
    optimizer = optimize(model)
    with tracing() as trace, Recorder(model, optimizer, path, **budget) as recorder:
        step(recorder, model, optimizer, *data(6))
        trace.on = True
        step(recorder, model, optimizer, *data(5))  # another shape, so that it is aligned anew
        recorder.flush()
        Snapshot.open(path)
        trace.on = False
    return trace.ran


def ran_as_ranks(path: Path) -> set[str]:
    """The same of two ranks, each of them a thread."""
    fleet = Fleet(path, models=[linear() for _ in range(COUNT)])
    with tracing() as trace:

        def train(rank, model, optimizer, recorder):
            for rows in (6, 5):
                trace.on = rows == 5
                step(recorder, model, optimizer, *features(rows), reduce=lambda: fleet.average(rank, model))
            recorder.flush()
            fleet.averaging.barrier.wait()
            Snapshot.open(path)
            fleet.averaging.barrier.wait()
            trace.on = False

        fleet.run(train)
    return trace.ran


def step(recorder, model, optimizer, x: Tensor, y: Tensor, reduce: Callable[[], None] = lambda: None) -> None:
    with recorder.step(label=y[: len(x)], sample=torch.arange(len(x))):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        reduce()
        optimizer.step()


TRAININGS = {
    "linear layers under SGD": lambda path: ran_alone(linear, sgd, features, path),
    "an embedding under AdamW": lambda path: ran_alone(embedded, adamw, tokens, path),
    "bfloat16 under a budget": lambda path: ran_alone(halved, sgd, halved_features, path, budget="40 MB", steps=10**4),
    "two ranks": ran_as_ranks,
}


@pytest.fixture(scope="module", params=TRAININGS)
def training(request, tmp_path_factory) -> tuple[str, set[str]]:
    return request.param, TRAININGS[request.param](tmp_path_factory.mktemp("walk") / "m")


def test_everything_that_runs_is_a_stop_or_beside_the_way(training):
    assert WALK.unnamed(training[1]) == []


def test_every_stop_runs(training):
    name, ran = training
    missing = [file for file in WALK.stops if file not in ran]
    assert missing == [file for file in WALK.stops if file in SOMETIMES.values() and file != SOMETIMES.get(name)]


def test_the_stops_are_few_and_none_stands_beside_the_way():
    assert 10 < len(WALK.stops) <= MOST_STOPS
    assert len({*WALK.stops, *WALK.beside}) == len(WALK.stops) + len(WALK.beside)


def test_both_threads_are_traced(training):
    assert {"record/recorder.py", "record/sink.py", "store/journal.py", "store/shard.py"} <= training[1]


OWN = {
    "an embedding under AdamW": {"record/taps/embedding.py", "rules/adam.py"},
    "bfloat16 under a budget": {
        "record/sampled_batch.py", "store/sources/bfloat16.py", "rules/half_precision_rule.py",
    },
}  # fmt: skip
"""What no other training runs."""


@pytest.mark.parametrize("name", OWN)
def test_what_is_special_in_a_training_is_traced(training, name):
    assert OWN[name] & training[1] == (OWN[name] if name == training[0] else set())
