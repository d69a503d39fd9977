"""Data-parallel training: every rank writes its own slots, and what they measure, they measure together."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import AlreadyExists, BadInput, NotFound, RecordingError
from dualform.record import ranks as ranks_file
from dualform.record.ranks import Ranks
from dualform.record.recorder import Recorder
from dualform.store.batch import Header
from dualform.store.reading.snapshot import Snapshot
from tests.cases import some
from tests.record.rank_threads import (
    COUNT,
    ROWS,
    STEPS,
    Fleet,
    Seat,
    Table,
    adamw,
    check_memory_of_ranks,
    data,
    net,
    sgd,
    two,
)
from tests.trainings import learn


@pytest.mark.parametrize("make", [sgd, adamw])
def test_the_ranks_shards_are_one_exact_memory(tmp_path, make):
    fleet = Fleet(tmp_path / "m", make=make)

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y, sample=100 * rank + torch.arange(ROWS)):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        recorder.query_set("test", data(0, 0)[0])

    fleet.run(train)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in fleet.models), strict=True))
    assert [seat.closed for seat in fleet.seats] == [1, 1]
    memory = dualform.open(tmp_path / "m")
    check_memory_of_ranks(memory)
    assert len(Snapshot.open(tmp_path / "m").query_set("test").queries("0")) == ROWS


def test_the_ranks_agree_on_which_optimizer_updates(tmp_path):
    fleet = Fleet(tmp_path / "m", make=two)

    def train(rank, model, optimizers, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y, sample=100 * rank + torch.arange(ROWS)):
                optimizers[0].zero_grad()
                cross_entropy(model(x), y).backward()
                if step % 2 == 0:
                    fleet.average(rank, model[0])
                    optimizers[0].step()
                else:
                    fleet.average(rank, model)
                    for optimizer in reversed(optimizers):
                        optimizer.step()
                    optimizers[1].zero_grad()

    fleet.run(train)
    with dualform.open(tmp_path / "m") as memory:
        for name, reconstruction in some(memory.verify().items()):
            assert reconstruction.exact, (name, reconstruction)
            assert reconstruction.reconstruction_error < 1e-5, name


class ResumedFleet:
    """Ranks that train for STEPS - 2 steps, and then go on from what was saved after four of them."""

    def __init__(self, path):
        self._path, self._saved, self._done = path, {}, 0
        self._fleet = Fleet(path)
        self._fleet.run(self._train)

    def resume(self):
        models = [net() for _ in range(COUNT)]
        for model in models:
            model.load_state_dict(self._saved[0][0])
        self._fleet, self._done = Fleet(self._path, seconds=5.0, models=models, make=self._loaded), 4
        self._fleet.run(self._train, resume=True)

    def _loaded(self, model):
        optimizer = sgd(model)
        optimizer.load_state_dict(copy.deepcopy(self._saved[0][1]))
        return optimizer

    def _train(self, rank, model, optimizer, recorder):
        for step in range(self._done, STEPS if self._done else STEPS - 2):
            x, y = data(rank, step)
            with recorder.step(label=y, sample=100 * rank + torch.arange(ROWS)):
                learn(optimizer, cross_entropy(model(x), y), lambda: self._fleet.average(rank, model))
            if step == 3:
                recorder.flush()
                self._saved[rank] = copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def test_ranks_resume_from_a_checkpoint_together(tmp_path):
    ResumedFleet(tmp_path / "m").resume()
    assert {own.name for own in (tmp_path / "m" / "run-00001").iterdir()} >= {"shard-00000", "shard-00001"}
    with dualform.open(tmp_path / "m") as memory:
        check_memory_of_ranks(memory)


def test_a_run_that_a_rank_never_begins_is_no_part_of_the_memory(tmp_path, monkeypatch):
    fleet = ResumedFleet(tmp_path / "m")
    writer = Ranks.writer

    def dies(self, header):
        if self.number and "run-" in header.path.name:
            raise RecordingError("this rank dies")
        return writer(self, header)

    with monkeypatch.context() as patched:
        patched.setattr(Ranks, "writer", dies)
        patched.setattr(ranks_file, "WAIT_SECONDS", 0.5)
        with pytest.raises(RecordingError, match=r"rank dies|waited 0.5 seconds for shard-00001 of .*run-00001"):
            fleet.resume()
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == STEPS - 2
    fleet.resume()
    with dualform.open(tmp_path / "m") as memory:
        check_memory_of_ranks(memory)


class Heads(nn.Module):
    """Each rank uses a head of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.heads = nn.Linear(5, 4), nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, x, head):
        return self.heads[head](torch.tanh(self.trunk(x)))


def test_a_layer_that_only_one_rank_reaches_is_measured_by_all(tmp_path):
    fleet = Fleet(tmp_path / "m", models=[Heads() for _ in range(COUNT)])

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x, rank), y), lambda: fleet.average(rank, model))

    fleet.run(train)
    memory = dualform.open(tmp_path / "m")
    found = memory.verify()
    assert sorted(found) == ["heads.0", "heads.1", "trunk"]
    for name, reconstruction in found.items():
        assert reconstruction.exact, (name, reconstruction.reason)
        assert reconstruction.reconstruction_error <= 1e-5
    assert {layer.name: layer.status.name for layer in memory.info().layers} == dict.fromkeys(found, "exact")


@pytest.mark.parametrize("make", [sgd, adamw])
def test_a_batch_without_rows_is_a_step_without_slots(tmp_path, make):
    """Of one rank, of the other, and of both."""
    fleet = Fleet(tmp_path / "m", make=make)

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            rows = 0 if step == 3 + rank or step == 6 else ROWS
            with recorder.step(label=y[:rows]):
                learn(
                    optimizer,
                    cross_entropy(model(x[:rows]), y[:rows], reduction="sum"),
                    lambda: fleet.average(rank, model),
                )

    fleet.run(train)
    with dualform.open(tmp_path / "m") as memory:
        assert len(memory.keys("0")) == ROWS * (COUNT * STEPS - 4)
        assert all(own.exact and not own.reason for own in memory.verify().values()), memory.verify()


def test_what_is_no_rank_is_refused(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadInput) as caught:
        Recorder(model, optimizer, tmp_path / "m", rank=1, ranks=2)
    assert str(caught.value) == (
        "rank=1 and ranks=2 do not match torch.distributed, which is not initialised. After "
        "init_process_group, pass torch.distributed.get_rank() and get_world_size()."
    )


def test_a_shard_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "m" / "shard-00001").mkdir(parents=True)
    table = Table()
    for rank in range(COUNT):
        with pytest.raises(AlreadyExists):
            Ranks(rank, COUNT, Seat(table, rank)).check_folder(tmp_path / "m")


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        ({"layers": "nothing"}, NotFound),
        ({"spaces": {"nothing": "token"}}, NotFound),
        ({"budget": "1 kB"}, BadInput),
        ({}, AlreadyExists),
    ],
    ids=["layers", "spaces", "budget", "folder"],
)
def test_a_refused_recorder_has_left_the_other_ranks(tmp_path, monkeypatch, refused, error):
    seats = []

    def join():
        seats.append(Seat(Table(), 0))
        return seats[-1]

    monkeypatch.setattr(ranks_file, "ProcessExchange", join)
    for name, value in {"is_initialized": True, "get_rank": 0, "get_world_size": COUNT}.items():
        monkeypatch.setattr(ranks_file.distributed, name, lambda value=value: value)
    monkeypatch.setattr(Seat, "total", lambda self, numbers: COUNT * numbers)
    path = tmp_path / "m" if refused else tmp_path
    (tmp_path / "something").touch()
    model = net()
    with pytest.raises(error):
        Recorder(model, sgd(model), path, rank=0, ranks=COUNT, **refused)
    assert all(seat.closed == 1 for seat in seats)
    Recorder(model, sgd(model), tmp_path / "n", rank=0, ranks=COUNT)
    assert seats[-1].closed == 0


def test_a_further_rank_waits_for_the_first_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks_file, "WAIT_SECONDS", 0.1)
    header = Header(tmp_path / "m", [], "SGD", "sgd", "", {})
    with pytest.raises(RecordingError, match=r"^rank 1 waited 0 seconds for rank 0 to create "):
        Ranks(1, COUNT, Seat(Table(), 1)).writer(header)
