"""A server at full load for an hour, or some seconds: nothing fails, and it holds no more as time goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.harness import resident
from benchmarks.serving import served

import dualform
from dualform.store.files.ram_budget import bytes_of
from dualform_client import Client
from tests.reliability import report, rounds, soaking
from tests.service.soak_clients import LAYER, WIDTH, Clients

SEED = 13
MEMORY = "1 GB"
STEPS, ROWS = rounds(60, 300), 64


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("soak") / "run"
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(STEPS):
            x, y = torch.randn(ROWS, WIDTH), torch.randint(10, (ROWS,))
            sample = np.arange(step * ROWS, (step + 1) * ROWS)
            with recorder.step(dataset="odd" if step % 2 else "even", label=y, sample=sample):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        recorder.query_set("test", torch.randn(20, WIDTH))
    return path


@pytest.mark.soak
def test_a_server_that_is_asked_all_the_time_stays_as_large_as_it_is(memory):
    seconds = rounds(4, 3600)
    with served(memory, "--ram", MEMORY) as (address, process):
        with Client(address) as client:
            right = client.topk(LAYER, "test", 5).ids.tolist()
        files = len(os.listdir(f"/proc/{process}/fd"))
        clients = Clients(address, SEED)
        clients.start()
        held = []
        end = time.monotonic() + seconds
        while time.monotonic() < end and not clients.unexpected:
            held.append(resident(process)["VmRSS"])
            time.sleep(seconds / 400)
        clients.stop()
        assert clients.unexpected == []
        with Client(address) as client:
            assert client.topk(LAYER, "test", 5).ids.tolist() == right
        end = time.monotonic() + 60
        while len(os.listdir(f"/proc/{process}/fd")) > files and time.monotonic() < end:
            time.sleep(0.1)
        assert len(os.listdir(f"/proc/{process}/fd")) <= files
    answered = sum(count for (_, outcome), count in clients.outcomes.items() if outcome == "ok")
    assert answered > 10
    assert max(held) <= bytes_of(MEMORY)
    if soaking():
        # The first tenth fills what is kept between questions; from there on it is flat.
        early, late = np.median(held[40:80]), np.median(held[-40:])
        assert late <= 1.05 * early
    report(
        f"{len(clients.outcomes)} kinds of outcomes of ten clients for {seconds} s, honest and not; --ram {MEMORY}",
        seed=SEED,
        count=sum(clients.outcomes.values()),
        outcome=f"{answered:,} answered, no error but refusals; at most {max(held) / 1e6:.0f} MB, no file left open",
    )
