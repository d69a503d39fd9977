"""Data-parallel training: each rank writes its slots, and they measure together. Ranks that part are named."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import AlreadyExists, BadInput, NotAMemory, NotFound, RecordingError
from dualform.record import ranks as ranks_file
from dualform.record.ranks import Ranks
from dualform.record.recorder import Recorder
from dualform.record.slots.agreement import Agreement
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
    one_step,
    reasons,
    sgd,
    two,
)
from tests.trainings import learn


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
        self._fleet, self._done = Fleet(self._path, seconds=2.0, models=models, make=self._loaded), 4
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


def test_a_batch_without_rows_is_a_step_without_slots(tmp_path):
    """Of one rank, of the other, and of both."""
    fleet = Fleet(tmp_path / "m", make=adamw)

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

    monkeypatch.setattr(ranks_file, "Exchange", join)
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


def test_a_rank_that_does_not_come_is_not_waited_for_without_end(tmp_path):
    fleet = Fleet(tmp_path / "m", seconds=1.5)

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
    assert reason.startswith("rank 0 lost contact with the others: nobody came; the slots of one rank explain")


class Gone(Seat):
    def close(self):
        raise ValueError("the group is gone")


def test_an_exchange_that_cannot_be_left_costs_nothing_of_the_record(tmp_path):
    fleet = Fleet(tmp_path / "m")
    fleet.seats = [Gone(seat.table, seat.rank) for seat in fleet.seats]
    with pytest.warns(RuntimeWarning, match="^Leaving the other processes failed: the group is gone$"):
        fleet.run(lambda rank, *own: one_step(fleet, rank, *own, *data(rank, 0)))
    memory = dualform.open(tmp_path / "m")
    assert all(reconstruction.exact for reconstruction in memory.verify().values())


@pytest.mark.filterwarnings("ignore:recording stopped after 4 steps")
@pytest.mark.parametrize(
    ("stopped", "which"), [([1], "shard-00001 did not come"), ([0, 1], f"none of its {COUNT} shards came")]
)
def test_ranks_that_stop_recording_cut_the_memory_off(tmp_path, stopped, which):
    fleet = Fleet(tmp_path / "m", seconds=2.0)  # which the other rank waits for it

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y[:2] if step == 4 and rank in stopped else y):
                learn(optimizer, cross_entropy(model(x), y), lambda: fleet.average(rank, model))

    fleet.run(train, on_error="warn")
    memory = dualform.open(tmp_path / "m")
    assert memory.info().cut_off == f"the recording was cut off after step 3: {which} to its end."
    if len(stopped) < COUNT:
        assert reasons(tmp_path / "m") == {"there are no final weights: the recording was cut off, or still runs."}
    assert {layer.status.name for layer in memory.info().layers} == {"exact"}


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
    assert str(caught.value).startswith("layer 'rows' has another space or batch axis on another rank")
    assert str(caught.value).endswith(
        "Pass the same spaces={'rows': …} to Recorder and batch_dim= to recorder.step on every rank."
    )
    assert len(fleet.errors) == COUNT
    assert not (tmp_path / "m").exists()


def test_ranks_that_are_told_the_space_are_one_memory(tmp_path):
    fleet = Fleet(tmp_path / "m", models=[Numbered() for _ in range(COUNT)])
    fleet.run(train_numbered(fleet, torch.arange(ROWS)), spaces={"rows": "sample"})
    memory = dualform.open(tmp_path / "m")
    assert memory.keys("rows").shape == (4 * COUNT * ROWS, 20)
    assert all(reconstruction.exact for reconstruction in memory.verify().values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_shards_that_have_a_layer_in_other_spaces_are_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(Agreement, "check", lambda *_: None)
    fleet = Fleet(tmp_path / "m", models=[Numbered() for _ in range(COUNT)])
    fleet.run(train_numbered(fleet, torch.arange(ROWS)))
    with pytest.raises(NotAMemory) as caught:
        dualform.open(tmp_path / "m")
    assert str(caught.value) == (
        f"{tmp_path / 'm'} cannot be opened: layer 'rows' is in space 'rows' in shard-00000, but in 'sample' in "
        "shard-00001. Record again with the same spaces={'rows': …} on every rank."
    )


def tokens():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def train_saying(fleet, said):
    """Batches of two tokens a row; `said(rank, step)` are the arguments of a step."""

    def train(rank, model, optimizer, recorder):
        for step in range(4):
            x = torch.randn(ROWS, 2, 5, generator=torch.Generator().manual_seed(10 * step + rank))
            with recorder.step(**said(rank, step)):
                learn(optimizer, model(x).square().mean(), lambda: fleet.average(rank, model))

    return train


def said_of(rank, step):
    """One more from the second step on."""
    own = np.arange(ROWS) / 2 if rank else np.arange(ROWS)
    both = {"mine": own, "place": np.zeros((ROWS, 2), bool) if rank else np.zeros((ROWS, 2)), "name": "a"}
    later = np.full((ROWS, 2), "b", dtype=object) if rank else np.ones((ROWS, 2), int)
    return {**both, **({"alone": own} if rank else {}), **({"at": {"token": {"later": later}}} if step else {})}


def test_a_column_of_other_types_is_told_of_once_at_the_step_where_it_appears(tmp_path):
    fleet, told = Fleet(tmp_path / "m", models=[tokens() for _ in range(COUNT)]), []

    def said(rank, step):
        if rank == 0:
            told.append(sorted({str(one.message) for one in warned if "column" in str(one.message)}))
        return said_of(rank, step)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fleet.run(train_saying(fleet, said))
    end = "Give it one type on every rank."
    first = [
        f"column 'mine' is BIGINT on rank 0 and DOUBLE on rank 1, and will be read as DOUBLE. {end}",
        f"column 'place' is DOUBLE on rank 0 and BOOLEAN on rank 1, and will be read as VARCHAR. {end}",
    ]
    later = f"column 'later' is BIGINT on rank 0 and VARCHAR on rank 1, and will be read as VARCHAR. {end}"
    assert told == [[], first, [later, *first], [later, *first]]
    assert len([one for one in warned if "column" in str(one.message)]) == 3 * COUNT
    with dualform.open(tmp_path / "m") as memory:
        types = memory.info().columns["token"]
        assert [types[name] for name in ("mine", "place", "later", "alone", "name")] == [
            "DOUBLE", "VARCHAR", "VARCHAR", "DOUBLE", "VARCHAR",
        ]  # fmt: skip
        assert all(reconstruction.exact for reconstruction in memory.verify().values())


def test_a_column_of_rows_here_and_of_single_slots_there_is_refused(tmp_path):
    def said(rank, step):
        return {"label": np.zeros((ROWS, 2), int) if rank else np.zeros(ROWS, int)}

    fleet = Fleet(tmp_path / "m", models=[tokens() for _ in range(COUNT)])
    said_how = "^column 'label' has a value for each row on rank 0, but for each slot on rank 1"
    with pytest.raises(RecordingError, match=said_how):
        fleet.run(train_saying(fleet, said))
    assert len(fleet.errors) == COUNT
    assert not (tmp_path / "m").exists()
