"""Ranks that place the slots of a layer differently."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import NotAMemory, RecordingError
from dualform.record.placement import Placement
from tests.record.rank_threads import COUNT, ROWS, Fleet, data, one_step


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
