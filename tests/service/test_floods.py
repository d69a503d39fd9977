"""Light questions beside callers that a server must live with: each is answered, and in the long form in time; and
work whose deadline passes stops, in the long form within STOPPING seconds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pytest
import torch
from benchmarks.processes import served
from benchmarks.serving import FLOODS, flooded, p99, watched

import dualform
from dualform.errors import TimedOut
from dualform.store.files.ram_budget import bytes_of
from dualform_client import Client
from tests.reliability import report, rounds, soaking

SEED, MEMORY = 29, "4 GB"
LAYER, WIDTH, ROWS = "0", 256, 4096
MOST = 3
"""How many times what they take alone light questions may take at most (99 of 100 of them)."""
STOPPING = 0.2
"""Seconds from a deadline on in which a server may still work."""
SECONDS = 10.0 if soaking() else 1.0
"""For each measurement; a flood has gone on for a fifth of that."""
QUIET = 0.1
"""Seconds without work after which it is taken to have stopped."""


class Served(NamedTuple):
    address: str
    process: int
    asks: dict[str, Callable[[], object]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("floods") / "run"
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for _ in range(rounds(2, 64)):
            x, y = torch.randn(ROWS, WIDTH), torch.randint(10, (ROWS,))
            with recorder.step(label=y):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    query = np.random.default_rng(SEED).normal(size=(1, WIDTH)).astype(np.float32)
    with served(path, "--ram", MEMORY) as (address, process), Client(address, timeout=120) as client:
        asks: dict[str, Callable[[], object]] = {
            "ten best slots": partial(client.topk, LAYER, query, 10),
            "sums by label": partial(client.group_sum, LAYER, query, "label"),
            "info": client.info,
        }
        p99(asks, 0.1 * SECONDS)  # what is kept from here on is no part of what is measured
        yield Served(address, process, asks)


@pytest.mark.soak
@pytest.mark.parametrize("flood", FLOODS if soaking() else ["ablated outputs"])
def test_light_questions_are_answered_beside(server, flood):
    became, alone, beside = Counter[str](), list[dict[str, float]](), list[dict[str, float]]()
    with watched(server.process) as held:
        for _ in range(rounds(1, 3)):
            alone.append(p99(server.asks, SECONDS))
            with flooded(server.address, flood, LAYER, WIDTH, became, 0.2 * SECONDS):
                beside.append(p99(server.asks, SECONDS))
    assert sum(became.values()) > 0
    assert held.resident <= bytes_of(MEMORY)
    times = {name: median(one[name] for one in beside) / median(one[name] for one in alone) for name in server.asks}
    if soaking():
        assert max(times.values()) <= MOST, times
    said = ", ".join(f"{name} {times[name]:.1f}" for name in times)
    report(
        f"light questions beside {flood}; --ram {MEMORY}",
        seed=SEED,
        count=sum(became.values()),
        outcome=f"each was answered, 99 of 100 within so many times what they take alone: {said}; the server held "
        f"{held.resident / 1e6:.0f} MB at most",
    )


@pytest.mark.soak
def test_work_stops_at_its_deadline(server):
    rng, count, stopped = random.Random(SEED), rounds(6, 200), list[float]()
    longest = 0.4 if soaking() else 0.01
    wide = np.random.default_rng(SEED).normal(size=(100, WIDTH)).astype(np.float32)
    for number in range(count):
        where = f"slot % 9973 <> {number}"
        with Client(server.address, timeout=rng.uniform(0.05, 1) * longest) as client:
            asks: list[Callable[[], object]] = [
                partial(client.topk, LAYER, wide, 10, where),
                partial(client.group_sum, LAYER, wide, "label", where, score="abs"),
                partial(client.output, LAYER, wide, where, allow_inexact=True),
                partial(client.weights, where, allow_inexact=True),
                partial(client.cancellation, where),
            ]
            try:
                asks[number % len(asks)]()
            except TimedOut:
                stopped.append(_works_on(server.process))
    assert stopped, "no deadline passed in the midst of work"
    if soaking():
        assert max(stopped) <= STOPPING, sorted(stopped)[-5:]
    report(
        f"deadlines of {1000 * longest:.0f} ms at most of top-k, sums, outputs, weights and cancellations under new "
        f"masks of {rounds(2, 64) * ROWS:,} slots",
        seed=SEED,
        count=count,
        outcome=f"{len(stopped)} passed in the midst of work, which stopped within {1000 * max(stopped):.0f} ms",
    )


def _works_on(process: int) -> float:
    """Seconds from now on until a process stops to take processor time."""
    began = last = time.perf_counter()
    taken = _processor_ticks(process)
    while time.perf_counter() < last + QUIET:
        time.sleep(0.01)
        if (now := _processor_ticks(process)) > taken + 1:  # a tick may be a look at something
            last, taken = time.perf_counter(), now
    return last - began


def _processor_ticks(process: int) -> int:
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
