"""Ranks that place the slots of a layer differently, or say other things of them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import NotAMemory, RecordingError
from dualform.record.slots.agreement import Placement
from tests.record.rank_threads import COUNT, ROWS, Fleet, data, one_step
from tests.trainings import learn


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
    monkeypatch.setattr(Placement, "check", lambda *_: None)
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


@pytest.mark.parametrize("name", ["mine", "label"])
def test_a_column_of_rows_here_and_of_single_slots_there_is_refused(tmp_path, name):
    def said(rank, step):
        return {name: np.zeros((ROWS, 2), int) if rank else np.zeros(ROWS, int)}

    fleet = Fleet(tmp_path / "m", models=[tokens() for _ in range(COUNT)])
    said_how = f"^column '{name}' has a value for each row on rank 0, but for each slot on rank 1"
    with pytest.raises(RecordingError, match=said_how):
        fleet.run(train_saying(fleet, said))
    assert len(fleet.errors) == COUNT
    assert not (tmp_path / "m").exists()


def test_a_column_that_one_rank_alone_gives_is_nobodys_fault(tmp_path):
    fleet = Fleet(tmp_path / "m", models=[tokens() for _ in range(COUNT)])
    fleet.run(train_saying(fleet, lambda rank, step: {"mine": np.arange(ROWS)} if rank else {}))
    with dualform.open(tmp_path / "m") as memory:
        query = np.ones((1, 5), np.float32)
        assert len(memory.topk("0", query, k=999, where="mine >= 0").ids) == 4 * ROWS * 2
