"""Keys of a layer that was computed in bfloat16 or float16 take half the disk, and are read back to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dualform
from dualform.store.check import check_memory
from dualform.store.snapshot import Snapshot

STEPS = 6


BOTH = pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


def recorded(path, halved, kind=torch.bfloat16):
    """Train with the steps `halved` under autocast to `kind`; returns the inputs, and the keys of the second layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, seen = torch.randn(5, 6), []
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(STEPS):
            dtype = kind if step in halved else torch.float32
            with recorder.step(label=range(5)):
                with torch.autocast("cpu", kind, enabled=step in halved):
                    hidden = model[:2](inputs)
                    loss = model[2](hidden).float().square().sum()
                seen.append(hidden.detach().to(dtype).float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return inputs, torch.cat(seen)


def stored_bytes(path, layer):
    return sum(file.stat().st_size for file in (path / "shard-00000" / "layers" / layer).glob("keys-*"))


@BOTH
def test_a_training_under_autocast_stores_half_the_bytes(tmp_path, kind):
    inputs, seen = recorded(tmp_path / "m", range(STEPS), kind)
    name = str(kind).removeprefix("torch.")
    memory = Snapshot.open(tmp_path / "m")
    assert [(layer.source, layer.dtype, layer.repeats) for layer in memory.layers.values()] == [
        (name, name, True), (name, name, False),
    ]  # fmt: skip
    assert memory.keys("2").block(0, 30).tobytes() == seen.numpy().tobytes()
    assert (
        memory.keys("0").entry_block(0, 30).tobytes() == torch.cat([inputs.to(kind).float()] * STEPS).numpy().tobytes()
    )
    header = 128
    assert stored_bytes(tmp_path / "m", "2") == header + 30 * 8 * 2
    assert stored_bytes(tmp_path / "m", "0") == header + 5 * 6 * 2, "each distinct key once"
    assert check_memory(tmp_path / "m") == []


@pytest.mark.parametrize("halved", [range(3), [0, 2, 4]], ids=["autocast ends", "autocast comes and goes"])
@BOTH
def test_steps_outside_autocast_lose_no_bit(tmp_path, halved, kind):
    _, seen = recorded(tmp_path / "m", halved, kind)
    memory = Snapshot.open(tmp_path / "m")
    assert memory.layers["2"].source == str(kind).removeprefix("torch.")
    assert memory.keys("2").block(0, 30).tobytes() == seen.numpy().tobytes()
    assert (seen.to(kind).float() != seen).any()
    assert check_memory(tmp_path / "m") == []


def test_a_training_in_float32_stores_float32(tmp_path):
    recorded(tmp_path / "m", [])
    assert {layer.source for layer in Snapshot.open(tmp_path / "m").layers.values()} == {"rows"}


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
        assert memory.info().layers[0].grade.name in ("exact", "exact to bfloat16")
