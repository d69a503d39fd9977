"""A recording that is killed loses nothing that flush() acknowledged, and leaves nothing half-written."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import NotAMemory
from dualform.store.check import check_memory
from dualform.store.snapshot import Snapshot

STEPS, BATCH, FLUSH_EVERY = 60, 16, 3


def train(path: Path, acknowledged: Path) -> None:
    """The same training every time, bit for bit; each acknowledged number of slots goes to a file of its own."""
    import torch
    from torch import nn

    import dualform

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs = torch.randn(60, 12)
    log = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(STEPS):
            sample = torch.randint(0, 60, (BATCH,))
            with recorder.step(dataset="made-up", label=sample % 4, sample=sample):
                loss = nn.functional.cross_entropy(model(inputs[sample]), sample % 4)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if step % FLUSH_EVERY == FLUSH_EVERY - 1:
                recorder.flush()
                os.write(log, f"{(step + 1) * BATCH}\n".encode())


def acknowledgements(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "dualform.record.recorder"])
    return context


@pytest.fixture(scope="module")
def whole(processes, tmp_path_factory):
    """The memory of the training that nobody killed, and its seconds between two acknowledgements."""
    folder = tmp_path_factory.mktemp("whole")
    for attempt in ("warm-up", "memory"):
        process = processes.Process(target=train, args=(folder / attempt, folder / f"{attempt}.log"))
        started = time.monotonic()
        process.start()
        process.join()
        assert process.exitcode == 0
    return Snapshot.open(folder / "memory"), (time.monotonic() - started) * FLUSH_EVERY / STEPS


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_recording_holds_every_acknowledged_slot(whole, processes, tmp_path, seed):
    complete, interval = whole
    rng = np.random.default_rng(seed)
    process = processes.Process(target=train, args=(tmp_path / "memory", tmp_path / "log"))
    process.start()
    assert process.pid is not None
    wanted = rng.integers(0, STEPS // FLUSH_EVERY - 2)
    while process.is_alive() and len(acknowledgements(tmp_path / "log")) < wanted:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, interval))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL

    acknowledged = max(acknowledgements(tmp_path / "log"), default=0)
    try:
        memory = Snapshot.open(tmp_path / "memory")
    except NotAMemory:
        assert not acknowledged, "slots were acknowledged, and there is no memory"
        return
    slots = memory.count("sample")
    assert acknowledged <= slots <= STEPS * BATCH
    assert slots % BATCH == 0, "a step is half there"
    assert check_memory(tmp_path / "memory") == []
    for layer in complete.layers:
        expected, found = complete.keys(layer), memory.keys(layer)
        assert found.slot_block(0, slots).tobytes() == expected.slot_block(0, slots).tobytes()
        assert memory.values(layer).block(0, slots).tobytes() == complete.values(layer).block(0, slots).tobytes()
    for column in ("slot", "step", "row", "label", "sample"):
        assert memory.column("sample", column).tolist() == complete.column("sample", column)[:slots].tolist()
