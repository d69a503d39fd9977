"""Biases whose gradient is rounding alone: attention's key bias, and what stands before a BatchNorm, under AdamW."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.store.reading.snapshot import Snapshot
from dualform_service.server import Server
from tests.cases import some
from tests.trainings import record_steps

STEPS = 60


class Attention(nn.Module):
    """Keys are projected together with values, so that some entries of one bias are rounding and others are not."""

    def __init__(self, d=8):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.kv, self.head = nn.Linear(5, d), nn.Linear(5, 2 * d), nn.Linear(d, 3)

    def forward(self, x):
        k, v = self.kv(x).chunk(2, -1)
        return self.head(nn.functional.scaled_dot_product_attention(self.q(x), k, v)).mean(1)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.kv, self.norm, self.head = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.kv(x[:, 0]))))


def record(path, kind, clip=None, steps=STEPS):
    """The model's states, as each step begins and at the end, and the bias's gradients as they were applied."""
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, history, gradients = torch.Generator().manual_seed(1), [], []
    with dualform.Recorder(model, optimizer, path, values=True, quiet=True) as recorder:
        for _ in range(steps):
            x, y = torch.randn(12, 4, 5, generator=generator), torch.arange(12) % 3
            history.append({name: value.clone() for name, value in model.state_dict().items()})
            with recorder.step(label=y):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                gradients.append(model.kv.bias.grad.double().tolist())
                optimizer.step()
    history.append(model.state_dict())
    return history, gradients


@pytest.mark.parametrize(("kind", "clip"), [(Attention, None), (Normed, None), (Attention, 0.05)])
def test_the_record_is_exact_at_every_step(tmp_path, kind, clip):
    history, _ = record(tmp_path / "m", kind, clip)
    with dualform.open(tmp_path / "m") as memory:
        for layer, reconstruction in some(memory.verify().items()):
            assert reconstruction.exact, f"{layer}: {reconstruction.reason}"
            assert reconstruction.reconstruction_error <= 1e-5, layer
            assert (reconstruction.rounding_share > 0) is (layer == "kv")
        for at_step in (1, 20, STEPS):
            found = memory.weights(at_step=at_step)["kv.bias"]
            live = history[at_step]["kv.bias"]
            way = float((history[-1]["kv.bias"] - history[0]["kv.bias"]).norm())
            last_bits = at_step**0.5 * 2.0**-24 * float(live.norm())  # each update rounds the bias itself
            assert float((found - live).norm()) <= 1e-5 * way + last_bits


def test_what_is_kept_is_what_the_optimizer_got_and_no_more(tmp_path):
    _, gradients = record(tmp_path / "m", Attention)
    table = Snapshot.open(tmp_path / "m").table("rounding_gradients")
    assert set(table["parameter"].to_pylist()) == {"kv.bias"}
    assert table["step"].to_pylist() == list(range(STEPS))
    assert all(rows == list(range(8)) for rows in table["rows"].to_pylist()), "keys, and no value"
    assert table["gradient"].to_pylist() == [applied[:8] for applied in gradients]


def test_the_share_is_how_far_those_numbers_went(tmp_path):
    history, _ = record(tmp_path / "m", Attention)
    moved = {name: (history[-1][name] - own).double() for name, own in history[0].items()}
    layer = torch.cat([moved["kv.weight"].reshape(-1), moved["kv.bias"]]).norm()
    with dualform.open(tmp_path / "m") as memory, Server(memory) as server, dualform.connect(server.address) as client:
        for asked in (memory, client):
            found = asked.verify()["kv"].rounding_share
            assert found == pytest.approx(float(moved["kv.bias"][:8].norm() / layer), rel=1e-6)


def test_no_mask_moves_them_and_shares_still_add_up(tmp_path):
    record(tmp_path / "m", Attention)
    with dualform.open(tmp_path / "m") as memory:
        whole, *parts = (memory.weights(where)["kv.bias"].double() for where in (None, "label = 0", "label >= 1"))
        start = parts[0] + parts[1] - whole
        for part in parts:
            np.testing.assert_allclose(part[:8], whole[:8], atol=1e-7)
            assert float((part - whole)[8:].abs().min()) > 1e-6
        np.testing.assert_allclose(start[:8], whole[:8], atol=1e-7)


def test_larger_gaps_stay_a_defect(tmp_path):
    """A bias that gets a gradient beside its slots is no rounding."""
    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with dualform.Recorder(model, optimizer, tmp_path / "m") as recorder:
        for _ in range(20):
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(12, 4, 5)).square().mean().backward()
                model.kv.bias.grad[:8] += 1e-3
                optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        assert memory.verify()["kv"].status.name == "approximate"
        assert "rounding_gradients" not in memory._view.snapshot.manifest.tables()


def test_a_memory_without_any_says_nothing_of_them(tmp_path):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        3,
        lambda _: model(torch.randn(5, 4)).square().mean(),
    )
    assert "rounding_gradients" not in json.loads((tmp_path / "m" / "memory.json").read_text())["columns"]


def test_the_command_prints_its_share(tmp_path, capsys):
    from dualform_client.cli import main

    record(tmp_path / "m", Attention, steps=10)
    assert main(["verify", str(tmp_path / "m")]) == 0
    said = capsys.readouterr().err
    assert "of the distance is in biases whose gradient was rounding alone. No slot contributed to it." in said
