"""Recording into a folder: what the store reads back, in which type, and random states beside it."""

from __future__ import annotations

from zipfile import ZipFile

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput
from dualform.record.batches import random_states_as
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from tests.trainings import learn


def test_a_saved_model_names_nothing_of_dualform(tmp_path):
    model = nn.Linear(5, 3)
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "never")
    with pytest.warns(RuntimeWarning, match="Nothing was recorded in"), recorder:
        torch.save(model, tmp_path / "model.pt")
    with ZipFile(tmp_path / "model.pt") as file:
        pickled = [file.read(name) for name in file.namelist() if name.endswith("data.pkl")]
    assert [(b"torch.nn" in own, b"dualform" in own) for own in pickled] == [(True, False)]


STEPS = 6

BOTH = pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


def recorded(path, halved, kind=torch.bfloat16):
    """Train with the steps `halved` under autocast to `kind`; returns the inputs, and the keys and the error signals of
    the second layer.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, seen, errors = torch.randn(5, 6), [], []
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(STEPS):
            dtype = kind if step in halved else torch.float32
            with recorder.step(label=range(5)):
                with torch.autocast("cpu", kind, enabled=step in halved):
                    hidden = model[:2](inputs)
                    out = model[2](hidden)
                    out.register_hook(lambda error: errors.append(error.float()))
                    loss = out.float().square().sum()
                seen.append(hidden.detach().to(dtype).float())
                learn(optimizer, loss)
    return inputs, torch.cat(seen), torch.cat(errors)


def stored_bytes(path, layer, kind="keys"):
    return sum(file.stat().st_size for file in (path / "shard-00000" / "layers" / layer).glob(f"{kind}-*"))


@BOTH
def test_a_training_under_autocast_stores_half_the_bytes(tmp_path, kind):
    inputs, seen, errors = recorded(tmp_path / "m", range(STEPS), kind)
    name = str(kind).removeprefix("torch.")
    memory = Snapshot.open(tmp_path / "m")
    assert [(layer.source, layer.value_source, layer.dtype, layer.repeats) for layer in memory.layers.values()] == [
        (name, name, name, True), (name, name, name, False),
    ]  # fmt: skip
    assert memory.values("2").block(0, 30).tobytes() == errors.numpy().tobytes()
    assert memory.keys("2").block(0, 30).tobytes() == seen.numpy().tobytes()
    assert (
        memory.keys("0").entry_block(0, 30).tobytes() == torch.cat([inputs.to(kind).float()] * STEPS).numpy().tobytes()
    )
    header = 128
    assert stored_bytes(tmp_path / "m", "2") == header + 30 * 8 * 2
    assert stored_bytes(tmp_path / "m", "0") == header + 5 * 6 * 2, "each distinct key once"
    assert stored_bytes(tmp_path / "m", "2", "values") == header + 30 * 3 * 2
    assert check_memory(tmp_path / "m") == []


@BOTH
def test_steps_outside_autocast_lose_no_bit(tmp_path, kind):
    _, seen, errors = recorded(tmp_path / "m", [0, 2, 4], kind)
    memory = Snapshot.open(tmp_path / "m")
    assert memory.layers["2"].source == str(kind).removeprefix("torch.")
    assert memory.keys("2").block(0, 30).tobytes() == seen.numpy().tobytes()
    assert memory.values("2").block(0, 30).tobytes() == errors.numpy().tobytes()
    for whole in (seen, errors):
        assert (whole.to(kind).float() != whole).any()
    assert check_memory(tmp_path / "m") == []


def test_a_training_in_float32_stores_float32(tmp_path):
    recorded(tmp_path / "m", [])
    layers = Snapshot.open(tmp_path / "m").layers.values()
    assert {(layer.source, layer.value_source) for layer in layers} == {("rows", "rows")}
    assert not any("value_source" in layer.to_json() for layer in layers), "what versions before read"


@pytest.mark.parametrize("mode", ["circular", "reflect"])
def test_padded_maps_are_what_the_training_computed_in(tmp_path, mode):
    """Autocast pads by reflection in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode=mode), nn.Tanh(), nn.Flatten(), nn.Linear(100, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for _ in range(3):
            with recorder.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    out = model(torch.randn(4, 2, 5, 5))
                out.float().square().sum().backward()
                optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().layers[0].status.name in ("exact", "exact to bfloat16")


def train_randomly(path, keep_random, bad=None):
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
    weights, states = train_randomly(tmp_path / "with", keep_random=True)
    steps, found = stored(tmp_path / "with")
    assert steps == list(range(6))
    assert all(torch.equal(one, other) for one, other in zip(found, states, strict=True))
    without, _ = train_randomly(tmp_path / "without", keep_random=False)
    assert all(torch.equal(one, other) for one, other in zip(weights, without, strict=True))
    assert "random_states" not in Snapshot.open(tmp_path / "without").manifest.tables()
    assert check_memory(tmp_path / "with") == []


def test_a_step_that_is_not_recorded_has_none(tmp_path):
    _, states = train_randomly(tmp_path / "run", keep_random=True, bad=2)
    del states[2]
    steps, found = stored(tmp_path / "run")
    assert steps == list(range(5))
    assert all(torch.equal(one, other) for one, other in zip(found, states, strict=True))


def test_deleting_samples_keeps_them_and_sql_does_not_carry_them(tmp_path):
    train_randomly(tmp_path / "run", keep_random=True)
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
