"""A server at full load for an hour, or some seconds: nothing fails, and it holds no more as time goes on."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import grpc
import numpy as np
import pytest
import torch
from benchmarks.harness import resident
from benchmarks.processes import served

import dualform
from dualform.errors import DualformError
from dualform.store.files.ram_budget import bytes_of
from dualform_client import Client
from dualform_proto.calls import CALLS
from tests.reliability import report, rounds, soaking
from tests.service.http2 import Connection
from tests.trainings import take_steps

LAYER, WIDTH = "0", 64
EXPECTED = frozenset({"ok", "overloaded", "timed_out", "cancelled"})
"""What may become of an honest question to a server that many ask."""


class Clients:
    """Threads that ask until it is over; what became of their questions stands in `outcomes` by who asked."""

    def __init__(self, address: str, seed: int) -> None:
        self.address, self.over, self.outcomes = address, threading.Event(), Counter[tuple[str, str]]()
        self.unexpected = list[str]()
        self._lock = threading.Lock()
        kinds: list[Callable[[random.Random], None]] = [
            *[partial(self._asks, "asks", 200)] * 4,
            *[partial(self._asks, "comes and goes", 1)] * 2,
            partial(self._asks, "is in a hurry", 20),
            partial(self._asks, "is wrong", 1),
            self._sends_anything,
            self._sends_halves,
        ]
        self._threads = [
            threading.Thread(target=self._repeat, args=(kind, random.Random(f"{seed} {number}")), daemon=True)
            for number, kind in enumerate(kinds)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _repeat(self, kind: Callable[[random.Random], None], rng: random.Random) -> None:
        while not self.over.is_set():
            try:
                kind(rng)
            except Exception as error:
                with self._lock:
                    self.unexpected.append(f"{kind}: {type(error).__name__}: {error}")
                return

    def _note(self, who: str, outcome: str) -> None:
        with self._lock:
            self.outcomes[who, outcome] += 1

    def _asks(self, who: str, count: int, rng: random.Random) -> None:
        seconds = rng.choice([0.001, 0.01, 0.05]) if who == "is in a hurry" else 60
        with Client(self.address, timeout=seconds) as client:
            for _ in range(count):
                if self.over.is_set():
                    return
                asks = wrong(client) if who == "is wrong" else right(client, rng)
                try:
                    rng.choice(asks)()
                    outcome = "ok"
                except DualformError as error:
                    outcome = error.code
                    time.sleep(0.01)
                if who == "is wrong":
                    assert outcome not in {"ok", "error", "damaged"}, outcome
                else:
                    assert outcome in EXPECTED or (who, outcome) == ("is in a hurry", "unavailable"), (who, outcome)
                self._note(who, outcome)

    def _sends_anything(self, rng: random.Random) -> None:
        method = f"/dualform.v1.Memory/{rng.choice([call.method for call in CALLS.values()])}"
        with grpc.insecure_channel(self.address) as channel:
            try:
                channel.unary_unary(method)(rng.randbytes(rng.randrange(1, 4000)), timeout=60)
                self._note("sends anything", "ok")
            except grpc.RpcError as error:
                self._note("sends anything", error.code().name)
        time.sleep(0.01)

    def _sends_halves(self, rng: random.Random) -> None:
        with Connection(self.address) as connection:
            for _ in range(rng.randrange(1, 20)):
                connection.message(connection.call("/dualform.v1.Memory/TopK"), bytes(1000), size=1 << 20)
            self.over.wait(rng.random())
        self._note("sends halves", "left")


def right(client: Client, rng: random.Random) -> list[Callable[[], object]]:
    """Honest questions, with a query and a mask of their own."""
    query = np.random.default_rng(rng.randrange(1 << 30)).normal(size=(1, WIDTH)).astype(np.float32)
    mask = f"sample % {rng.randrange(2, 9)} <> {rng.randrange(9)}"
    return [
        lambda: client.topk(LAYER, query, 10),
        lambda: client.topk(LAYER, query, 10, mask),
        lambda: client.topk(LAYER, query, 5, by="label"),
        lambda: client.topk(LAYER, "test", 3),
        lambda: client.group_sum(LAYER, query, ("label", "dataset")),
        lambda: client.group_sum(LAYER, query, "label", mask, score="abs"),
        lambda: client.output(LAYER, query, mask, allow_inexact=True),
        lambda: client.weights(mask, allow_inexact=True),
        lambda: client.slots([rng.randrange(1000), 3]),
        lambda: client.query_set("test", LAYER),
        client.info,
        client.verify,
    ]


def wrong(client: Client) -> list[Callable[[], object]]:
    """Questions that have no answer."""
    query = np.ones((1, WIDTH), np.float32)
    return [
        lambda: client.topk("no such layer", query),
        lambda: client.topk(LAYER, np.ones((1, WIDTH + 1), np.float32)),
        lambda: client.topk(LAYER, query, where="nothing = 1"),
        lambda: client.topk(LAYER, query, where="label ="),
        lambda: client.slots([-1]),
        lambda: client.query_set("no such query set"),
    ]


SEED = 13
MEMORY = "1 GB"
STEPS, ROWS = rounds(60, 300), 64


@pytest.mark.soak
def test_a_server_that_is_asked_all_the_time_stays_as_large_as_it_is(tmp_path):
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with dualform.Recorder(model, optimizer, tmp_path / "run") as recorder:
        take_steps(
            recorder,
            optimizer,
            ((torch.randn(ROWS, WIDTH), torch.randint(10, (ROWS,)), step) for step in range(STEPS)),
            lambda x, y, step: torch.nn.functional.cross_entropy(model(x), y),
            dataset=lambda x, y, step: "odd" if step % 2 else "even",
            label=lambda x, y, step: y,
            sample=lambda x, y, step: np.arange(step * ROWS, (step + 1) * ROWS),
        )
        recorder.query_set("test", torch.randn(20, WIDTH))
    seconds = rounds(4, 3600)
    with served(tmp_path / "run", "--ram", MEMORY) as (address, process):
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
