"""Keys and values of a layer that was computed in bfloat16 or float16 take half the disk, and lose no bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dualform
from dualform.store.maintenance.check import check_memory
from dualform.store.reading.snapshot import Snapshot
from tests.trainings import learn

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


@pytest.mark.parametrize("halved", [range(3), [0, 2, 4]], ids=["autocast ends", "autocast comes and goes"])
@BOTH
def test_steps_outside_autocast_lose_no_bit(tmp_path, halved, kind):
    _, seen, errors = recorded(tmp_path / "m", halved, kind)
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


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
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
