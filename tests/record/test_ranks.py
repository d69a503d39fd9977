"""Data-parallel training: every rank writes its own slots, and what they measure, they measure together."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import AlreadyExists, BadInput, NotAMemory, RecordingError
from dualform.record import ranks as ranks_file
from dualform.record.placement import Placement
from dualform.record.ranks import Ranks
from dualform.record.recorder import Recorder
from dualform.store.header import Header
from dualform.store.snapshot import Snapshot

COUNT, ROWS, STEPS = 2, 6, 8


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def data(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 5, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


class Table:
    """Where threads, each of them a rank, add up what they bring."""

    def __init__(self, seconds=20.0):
        self.barrier = threading.Barrier(COUNT, timeout=seconds)
        self.brought = [None] * COUNT

    def total(self, rank, numbers):
        self.brought[rank] = numbers
        try:
            self.barrier.wait()
            whole = sum(self.brought)
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("nobody came") from None
        return whole


class Seat:
    """An exchange over a table."""

    def __init__(self, table, rank):
        self.table, self.rank, self.closed = table, rank, 0

    def total(self, numbers):
        return self.table.total(self.rank, numbers.copy())

    def close(self):
        self.closed += 1


class Fleet:
    """Ranks as threads, whose gradients are averaged as data parallelism does it."""

    def __init__(self, path, seconds=20.0, models=None, make=sgd):
        self.make = make
        self.path, self.averaging = path, Table()
        measuring = Table(seconds)
        self.seats = [Seat(measuring, rank) for rank in range(COUNT)]
        self.errors = []
        self.models = models or [net() for _ in range(COUNT)]

    def average(self, rank, model):
        for parameter in model.parameters():
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = torch.from_numpy(self.averaging.total(rank, grad.numpy())) / COUNT

    def run(self, train, **options):
        threads = [threading.Thread(target=self._guarded, args=(train, rank, options)) for rank in range(COUNT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, train, rank, options):
        try:
            model, ranks = self.models[rank], Ranks(rank, COUNT, self.seats[rank])
            optimizer = self.make(model)
            with Recorder(model, optimizer, self.path, ranks=ranks, **options) as recorder:
                train(rank, model, optimizer, recorder)
        except BaseException as error:
            self.errors.append(error)


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
        recorder.probe("test", data(0, 0)[0])

    fleet.run(train)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in fleet.models), strict=True))
    assert [seat.closed for seat in fleet.seats] == [1, 1]
    memory = dualform.open(tmp_path / "m")
    check_memory_of_ranks(memory)
    assert len(Snapshot.open(tmp_path / "m").probe("test").queries("0")) == ROWS


def two(model):
    return [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[2].parameters(), lr=0.01)]


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
        for name, certificate in memory.verify().items():
            assert certificate.exact, (name, certificate)
            assert certificate.relative_error < 1e-5, name


def test_ranks_of_which_each_updates_another_optimizer_have_parted(tmp_path):
    fleet = Fleet(tmp_path / "m", make=two)

    def train(rank, model, optimizers, recorder):
        for step in range(3):
            x, y = data(rank, step)
            with recorder.step(label=y):
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                order = optimizers if rank == 0 or step == 0 else optimizers[::-1]
                for optimizer in order:
                    optimizer.step()
                    optimizer.zero_grad()

    fleet.run(train)
    with dualform.open(tmp_path / "m") as memory:
        assert "rank 1 made an update of optimizer 1, of the step that runs" in memory.verify()["0"].reason


def test_ranks_resume_from_a_checkpoint_together(tmp_path):
    saved, done = {}, 0

    def train(rank, model, optimizer, recorder):
        for step in range(done, STEPS if done else STEPS - 2):
            x, y = data(rank, step)
            with recorder.step(label=y, sample=100 * rank + torch.arange(ROWS)):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                optimizer.step()
            if step == 3:
                recorder.flush()
                saved[rank] = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def loaded(model):
        optimizer = sgd(model)
        optimizer.load_state_dict(copy.deepcopy(saved[0][1]))
        return optimizer

    fleet = Fleet(tmp_path / "m")
    fleet.run(train)
    models = [net() for _ in range(COUNT)]
    for model in models:
        model.load_state_dict(saved[0][0])
    fleet, done = Fleet(tmp_path / "m", models=models, make=loaded), 4
    fleet.run(train, resume=True)
    assert {own.name for own in (tmp_path / "m" / "run-00001").iterdir()} >= {"shard-00000", "shard-00001"}
    with dualform.open(tmp_path / "m") as memory:
        check_memory_of_ranks(memory)


def check_memory_of_ranks(memory):
    """Steps, rank after rank in each, and a certificate."""
    expected = [data(rank, step) for step in range(STEPS) for rank in range(COUNT)]
    slots = np.arange(STEPS * COUNT * ROWS)
    np.testing.assert_array_equal(memory.keys("0", slots), torch.cat([x for x, _ in expected]).numpy())
    columns = memory.slots(slots, "sample")
    assert columns["label"].tolist() == torch.cat([y for _, y in expected]).tolist()
    samples = [100 * rank + row for _ in range(STEPS) for rank in range(COUNT) for row in range(ROWS)]
    assert columns["sample"].tolist() == samples
    for name, certificate in memory.verify().items():
        assert certificate.exact, (name, certificate.reason)
        assert certificate.relative_error <= 1e-5


def one_step(fleet, rank, model, optimizer, recorder, x, y, update=True):
    with recorder.step(label=y):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if update:
            fleet.average(rank, model)
            for parameter in model.parameters():
                parameter.grad.nan_to_num_(0.0)
            optimizer.step()


def reasons(path):
    return {certificate.reason for certificate in dualform.open(path).verify().values()}


def test_an_updated_step_that_one_rank_leaves_out_is_no_step_of_the_others(tmp_path):
    fleet = Fleet(tmp_path / "m")

    def train(rank, model, optimizer, recorder):
        for step in range(4):
            x, y = data(rank, step)
            x[3, 1] = float("nan") if (rank, step) == (1, 2) else 0.0
            one_step(fleet, rank, model, optimizer, recorder, x, y)
        assert recorder.steps == 3

    fleet.run(train)
    steps = Snapshot.open(tmp_path / "m").column("sample", "step")
    assert np.bincount(steps).tolist() == [COUNT * ROWS] * 3
    found = reasons(tmp_path / "m")
    assert len(found) == 1, found
    (reason,) = found
    assert reason.startswith("after step 1 the optimizer updated with NaN or infinity in a key or error signal")


def test_ranks_that_recorded_other_steps_have_parted(tmp_path):
    fleet = Fleet(tmp_path / "m")

    def train(rank, model, optimizer, recorder):
        for step in range(4):
            x, y = data(rank, step)
            x[3, 1] = float("nan") if (rank, step) == (1, 2) else 0.0
            one_step(fleet, rank, model, optimizer, recorder, x, y, update=step != 2)

    fleet.run(train)
    found = reasons(tmp_path / "m")
    assert len(found) == 1, found
    (reason,) = found
    assert reason == (
        "rank 1 made an update of the step that runs, after 2 steps, where rank 0 made one of the step that runs, "
        "after 3; the slots of one rank explain its part of the gradients only (from step 3 on)."
    )


def test_a_rank_that_does_not_come_is_not_waited_for_without_end(tmp_path):
    fleet = Fleet(tmp_path / "m", seconds=0.5)

    def train(rank, model, optimizer, recorder):
        for step in range(4):
            x, y = data(rank, step)
            with recorder.step(label=y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                if (rank, step) != (1, 2):
                    optimizer.step()

    fleet.run(train)
    found = reasons(tmp_path / "m")
    assert len(found) == 1, found
    (reason,) = found
    assert reason.startswith("rank 0 did not hear of the others: nobody came; the slots of one rank explain")


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
                optimizer.zero_grad()
                cross_entropy(model(x, rank), y).backward()
                fleet.average(rank, model)
                optimizer.step()

    fleet.run(train)
    memory = dualform.open(tmp_path / "m")
    found = memory.verify()
    assert sorted(found) == ["heads.0", "heads.1", "trunk"]
    for name, certificate in found.items():
        assert certificate.exact, (name, certificate.reason)
        assert certificate.relative_error <= 1e-5
    assert {layer.name: layer.grade.name for layer in memory.info().layers} == dict.fromkeys(found, "exact")


def test_what_is_no_rank_is_refused(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadInput) as caught:
        Recorder(model, optimizer, tmp_path / "m", rank=1, ranks=2)
    assert str(caught.value) == (
        "rank=1 and ranks=2, and torch.distributed is not initialised. Give torch.distributed.get_rank() and "
        "get_world_size(), after init_process_group."
    )


def test_a_shard_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "m" / "shard-00001").mkdir(parents=True)
    table = Table()
    for rank in range(COUNT):
        with pytest.raises(AlreadyExists):
            Ranks(rank, COUNT, Seat(table, rank)).check_folder(tmp_path / "m")


def test_a_further_rank_waits_for_the_first_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks_file, "WAIT_SECONDS", 0.1)
    header = Header(tmp_path / "m", [], "SGD", "sgd", "", {})
    with pytest.raises(RecordingError, match=r"^rank 1 waited 0 seconds for rank 0 to create "):
        Ranks(1, COUNT, Seat(Table(), 1)).writer(header)


class Numbered(nn.Module):
    """Rows of an embedding, which are looked up by the numbers of a batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, numbers):
        return self.head(torch.tanh(self.rows(numbers)))


def train_numbered(fleet, first=None):
    """The first batch of rank 0 is `first`."""

    def train(rank, model, optimizer, recorder):
        for step in range(4):
            numbers = torch.randint(20, (ROWS,), generator=torch.Generator().manual_seed(10 * step + rank))
            numbers = first if first is not None and (rank, step) == (0, 0) else numbers
            one_step(fleet, rank, model, optimizer, recorder, numbers, data(rank, step)[1])

    return train


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ranks_that_choose_other_spaces_are_refused_at_the_first_step(tmp_path):
    fleet = Fleet(tmp_path / "m", models=[Numbered() for _ in range(COUNT)])
    with pytest.raises(RecordingError) as caught:
        fleet.run(train_numbered(fleet, torch.arange(ROWS)))
    assert str(caught.value).startswith("layer 'rows' is in another space on one rank than on another, or has its ")
    assert str(caught.value).endswith(
        "Say on every rank where it is: spaces={'rows': …}, and batch_dim= in recorder.step."
    )
    assert len(fleet.errors) == COUNT
    assert not (tmp_path / "m").exists()


def test_ranks_that_are_told_the_space_are_one_memory(tmp_path):
    fleet = Fleet(tmp_path / "m", models=[Numbered() for _ in range(COUNT)])
    fleet.run(train_numbered(fleet, torch.arange(ROWS)), spaces={"rows": "sample"})
    memory = dualform.open(tmp_path / "m")
    assert memory.keys("rows").shape == (4 * COUNT * ROWS, 20)
    assert all(certificate.exact for certificate in memory.verify().values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_shards_that_have_a_layer_in_other_spaces_are_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(Placement, "check", lambda *_: None)
    fleet = Fleet(tmp_path / "m", models=[Numbered() for _ in range(COUNT)])
    fleet.run(train_numbered(fleet, torch.arange(ROWS)))
    with pytest.raises(NotAMemory) as caught:
        dualform.open(tmp_path / "m")
    assert str(caught.value) == (
        f"{tmp_path / 'm'} is not one memory: layer 'rows' is in space 'rows' in shard-00000, and in 'sample' in "
        "shard-00001. Record anew, with spaces={'rows': …} on every rank."
    )


class Gone(Seat):
    def close(self):
        raise ValueError("the group is gone")


def test_an_exchange_that_cannot_be_left_costs_nothing_of_the_record(tmp_path):
    fleet = Fleet(tmp_path / "m")
    fleet.seats = [Gone(seat.table, seat.rank) for seat in fleet.seats]
    with pytest.warns(RuntimeWarning, match="^Leaving the other processes failed: the group is gone$"):
        fleet.run(lambda rank, *own: one_step(fleet, rank, *own, *data(rank, 0)))
    memory = dualform.open(tmp_path / "m")
    assert all(certificate.exact for certificate in memory.verify().values())


@pytest.mark.filterwarnings("ignore:recording stopped after 4 steps")
def test_a_rank_that_stops_recording_cuts_the_memory_off(tmp_path):
    fleet = Fleet(tmp_path / "m")

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y[:2] if (rank, step) == (1, 4) else y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                optimizer.step()

    fleet.run(train, on_error="warn")
    memory = dualform.open(tmp_path / "m")
    assert memory.info().cut_off == (
        "the recording was cut off after step 3, or still runs: shard-00001 did not come to its end."
    )
    assert reasons(tmp_path / "m") == {"there are no final weights: the recording was cut off, or still runs."}
    assert {layer.grade.name for layer in memory.info().layers} == {"exact"}


@pytest.mark.filterwarnings("ignore:recording stopped after 4 steps")
def test_where_every_rank_stops_the_memory_says_so(tmp_path):
    fleet = Fleet(tmp_path / "m")

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y[:2] if step == 4 else y):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                fleet.average(rank, model)
                optimizer.step()

    fleet.run(train, on_error="warn")
    assert dualform.open(tmp_path / "m").info().cut_off == (
        f"the recording was cut off after step 3, or still runs: none of its {COUNT} shards came to its end."
    )
