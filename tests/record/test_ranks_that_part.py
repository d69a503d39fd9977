"""Ranks that do not go on together: what is measured from then on, and what the memory says of it."""

from __future__ import annotations

import numpy as np
import pytest
from torch.nn.functional import cross_entropy

import dualform
from dualform.store.reading.snapshot import Snapshot
from tests.record.rank_threads import COUNT, ROWS, STEPS, Fleet, Seat, data, one_step, reasons, two
from tests.trainings import learn


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
    fleet = Fleet(tmp_path / "m", seconds=3.0)

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
def test_a_rank_that_stops_recording_cuts_the_memory_off(tmp_path):
    fleet = Fleet(tmp_path / "m", seconds=5.0)  # which the other rank waits for it

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y[:2] if (rank, step) == (1, 4) else y):
                learn(optimizer, cross_entropy(model(x), y), lambda: fleet.average(rank, model))

    fleet.run(train, on_error="warn")
    memory = dualform.open(tmp_path / "m")
    assert memory.info().cut_off == ("the recording was cut off after step 3: shard-00001 did not come to its end.")
    assert reasons(tmp_path / "m") == {"there are no final weights: the recording was cut off, or still runs."}
    assert {layer.status.name for layer in memory.info().layers} == {"exact"}


@pytest.mark.filterwarnings("ignore:recording stopped after 4 steps")
def test_where_every_rank_stops_the_memory_says_so(tmp_path):
    fleet = Fleet(tmp_path / "m")

    def train(rank, model, optimizer, recorder):
        for step in range(STEPS):
            x, y = data(rank, step)
            with recorder.step(label=y[:2] if step == 4 else y):
                learn(optimizer, cross_entropy(model(x), y), lambda: fleet.average(rank, model))

    fleet.run(train, on_error="warn")
    assert dualform.open(tmp_path / "m").info().cut_off == (
        f"the recording was cut off after step 3: none of its {COUNT} shards came to its end."
    )
