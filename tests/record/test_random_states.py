"""States of random number generators: stored at the beginning of each step, if asked for."""

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput
from dualform.record.batches import random_states_as
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot


def train(path, keep_random, bad=None):
    """Weights at the end, and the states at the beginning of each step that was recorded."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = []
    with dualform.Recorder(model, optimizer, path, quiet=True, keep_random=keep_random) as recorder:
        for step in range(6):
            inputs = torch.randn(3, 4)
            states.append(torch.get_rng_state())
            with recorder.step(dataset="ab"[step % 2], sample=torch.arange(3) + 3 * step):
                loss = model(inputs).square().mean() * (float("nan") if step == bad else 1)
                optimizer.zero_grad()
                loss.backward()
                if step != bad:
                    optimizer.step()
    return [own.detach().clone() for own in model.parameters()], states


def stored(path):
    table = Snapshot.open(path).table("random_states").to_pydict()
    assert set(table["device"]) == {"cpu"}
    return table["step"], [torch.frombuffer(bytearray(own), dtype=torch.uint8) for own in table["state"]]


def test_they_are_those_at_the_beginning_of_each_step(tmp_path):
    weights, states = train(tmp_path / "with", keep_random=True)
    steps, found = stored(tmp_path / "with")
    assert steps == list(range(6))
    assert all(torch.equal(one, other) for one, other in zip(found, states, strict=True))
    without, _ = train(tmp_path / "without", keep_random=False)
    assert all(torch.equal(one, other) for one, other in zip(weights, without, strict=True))
    assert "random_states" not in Snapshot.open(tmp_path / "without").manifest.tables()
    assert check_memory(tmp_path / "with") == []


def test_a_step_that_is_not_recorded_has_none(tmp_path):
    _, states = train(tmp_path / "run", keep_random=True, bad=2)
    del states[2]
    steps, found = stored(tmp_path / "run")
    assert steps == list(range(5))
    assert all(torch.equal(one, other) for one, other in zip(found, states, strict=True))


def test_deleting_samples_keeps_them_and_sql_does_not_carry_them(tmp_path):
    train(tmp_path / "run", keep_random=True)
    steps, before = stored(tmp_path / "run")
    dualform.delete(tmp_path / "run", where="dataset = 'a'")
    again, after = stored(tmp_path / "run")
    assert steps == again == list(range(6))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    with dualform.open(tmp_path / "run") as memory:
        assert "random_states" not in [row["name"] for row in memory.sql("SHOW TABLES").records()]


def test_they_are_not_stored_for_several_ranks(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(BadInput, match="keep_random= cannot be combined with ranks="):
        dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, ranks=2, keep_random=True)


def test_numbers_drawn_inside_leave_no_trace():
    model, before = nn.Linear(2, 2), torch.get_rng_state()
    torch.manual_seed(7)
    states = {"cpu": torch.get_rng_state().numpy().tobytes()}
    expected = torch.rand(5)
    torch.set_rng_state(before)
    for own in (states, {}):
        with random_states_as(own, model):
            drawn = torch.rand(5)
        assert torch.equal(drawn, expected) == bool(own)
        assert torch.equal(torch.get_rng_state(), before)
