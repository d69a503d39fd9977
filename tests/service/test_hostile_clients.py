"""What callers do that mean no good, or are broken: the server answers the others, and holds little for these. Light
questions are answered beside floods, and work whose deadline passes stops.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import grpc
import numpy as np
import pytest
import torch
from benchmarks.harness import resident
from benchmarks.processes import served
from benchmarks.serving import FLOODS, flooded, p99, watched

import dualform
from dualform.answers import Columns
from dualform.errors import Overloaded, TimedOut
from dualform.store.files.ram_budget import bytes_of, resident_bytes
from dualform_client import Client
from dualform_client.client import is_serving
from dualform_proto.calls import CALLS
from dualform_service import handlers, standard_services
from dualform_service.admission import shut
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from dualform_service.standard_services import OWN_WATCHES, WATCHES
from tests.reliability import report, rounds, soaking
from tests.service.held_engine import outcomes, until
from tests.service.http2 import Connection
from tests.trainings import take_steps

TOPK, SQL, CHECK = "/dualform.v1.Memory/TopK", "/dualform.v1.Memory/Sql", "/grpc.health.v1.Health/Check"
ANSWERED = "questions and health of others were answered meanwhile"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.soak
def test_calls_that_send_no_message_hold_nobody_up_and_end(engine):
    config, count = ServiceConfig("127.0.0.1:0", message_seconds=5.0), rounds(200, 250)
    with Server(engine, config) as server, Connection(server.address) as silent, Client(server.address) as client:
        for _ in range(count):
            silent.call(TOPK)
            silent.call(CHECK)
        for _ in range(3):
            assert client.info().snapshot == 7
            assert is_serving(server.address)
        until(lambda: outcomes(server, "TopK") == {"timed_out": count})
    report("calls that send headers and nothing more", seed=0, count=2 * count, outcome=f"{ANSWERED}; these ended")


@pytest.mark.soak
@pytest.mark.skipif(not resident_bytes(), reason="the system does not say what a process holds")
def test_messages_of_which_halves_come_hold_nobody_up_and_end(engine):
    config, count = ServiceConfig("127.0.0.1:0", request_bytes=1 << 20, message_seconds=2.0), rounds(30, 500)
    with Server(engine, config) as server, Client(server.address) as client, ExitStack() as stalled:
        before = resident_bytes()
        for _ in range(count):
            connection = stalled.enter_context(Connection(server.address))
            connection.message(connection.call(TOPK), bytes(60_000), size=1 << 20)
        assert client.info().snapshot == 7
        assert is_serving(server.address)
        assert resident_bytes() - before < 40e6 + count * 200e3
        until(lambda: outcomes(server, "TopK") == {"timed_out": count})
    report(
        "connections that send a sixteenth of a message and stall",
        seed=0,
        count=count,
        outcome=f"{ANSWERED}; these ended, and held no more than what they had sent",
    )


def test_what_is_not_read_is_not_taken_in(engine, monkeypatch):
    monkeypatch.setattr(handlers, "READING", 1)
    monkeypatch.setattr(handlers, "PATIENCE", 60.0)
    with Server(engine) as server, Connection(server.address) as read, Connection(server.address) as waiting:
        read.message(read.call(TOPK), bytes(10), size=1 << 20)
        until(lambda: len(server._handlers._reads._reading) == 1)
        assert waiting.fill(waiting.call(TOPK), 4 << 20) <= 1 << 16
        assert server._handlers._reads.waiting == 1


@pytest.mark.soak
@pytest.mark.skipif(not resident_bytes(), reason="the system does not say what a process holds")
def test_messages_larger_than_may_be_are_refused_by_their_length_alone(engine):
    count = rounds(20, 500)
    with Server(engine) as server, Client(server.address) as client, ExitStack() as sending:
        before, senders = resident_bytes(), [sending.enter_context(Connection(server.address)) for _ in range(count)]
        for connection in senders:
            connection.message(connection.call(TOPK), bytes(60_000), size=63 << 20)
        for connection in senders:
            assert b"larger than max (66060288 vs. 4194304)" in connection.frames()[-1].content
        assert client.info().snapshot == 7
        assert is_serving(server.address)
        assert resident_bytes() - before < 40e6 + count * 200e3
    assert engine.asked == ["info"]
    report(
        "messages that say that they are of 63 MiB, where 4 MiB may be",
        seed=0,
        count=count,
        outcome=f"refused by their length, before they came; {ANSWERED}",
    )


def test_more_calls_than_there_may_be_are_refused_unread(engine):
    engine.hold.clear()
    config = ServiceConfig("127.0.0.1:0", calls=3)
    with (
        Server(engine, config) as server,
        Client(server.address) as client,
        Connection(server.address) as silent,
        ThreadPoolExecutor(3) as asking,
    ):
        held = [asking.submit(client.topk, "fc", "test") for _ in range(3)]
        until(lambda: len(engine.asked) + server._handlers._resources.lanes.heavy.waiting == 3)
        silent.call(TOPK)
        until(lambda: outcomes(server, "TopK") == {"overloaded": 1})
        with pytest.raises(Overloaded, match="has no free place for another call"):
            client.info()
        engine.hold.set()
        for one in held:
            one.result(60)
        assert client.info().snapshot == 7


def test_of_calls_without_a_message_those_of_the_connection_with_the_most_give_way(engine):
    config = ServiceConfig("127.0.0.1:0", calls=6)
    with Server(engine, config) as server, ExitStack() as all_:
        silent = [all_.enter_context(Connection(server.address)) for _ in range(2)]
        for connection in silent:
            for _ in range(3):
                connection.call(TOPK)
        until(lambda: server._handlers._open_calls == 6)
        with Client(server.address) as client:
            assert client.info().snapshot == 7
        until(lambda: outcomes(server, "TopK") == {"timed_out": 1})
        assert server._handlers._open_calls == 5
        silent[0].call(TOPK)
        until(lambda: server._handlers._open_calls == 6)
        silent[0].call(TOPK)
        until(lambda: outcomes(server, "TopK") == {"timed_out": 1, "overloaded": 1})


def test_a_call_that_ends_without_a_message_is_told_so(engine, server):
    with grpc.insecure_channel(server.address) as channel:
        for path, says in (
            (TOPK, "A call must hold one message of at most 4 MiB"),
            (CHECK, "A call must hold one message"),
        ):
            with pytest.raises(grpc.RpcError, match=says) as caught:
                list(channel.stream_stream(path)(iter([]), timeout=60))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert engine.asked == []


def test_a_wrong_token_is_refused_before_a_message_comes(engine):
    with (
        Server(engine, ServiceConfig("127.0.0.1:0", token="right")) as server,
        Connection(server.address) as connection,
    ):
        for path in (REFLECT, TOPK):
            connection.call(path, token="wrong")
            assert connection.frames()
        connection.call(TOPK)
        assert connection.frames()
        until(lambda: outcomes(server, "TopK") == {"unauthenticated": 2})


@pytest.mark.skipif(not resident_bytes(), reason="the system does not say what a process holds")
def test_bytes_that_are_no_message_are_refused_and_leave_nothing_behind(server, monkeypatch):
    monkeypatch.setattr(standard_services, "MESSAGE_SECONDS", 60.0)  # a busy machine may take longer than a second
    methods = [f"/dualform.v1.Memory/{call.method}" for call in CALLS.values()] + [CHECK]
    with grpc.insecure_channel(server.address) as channel:

        def send(count: int) -> None:
            for number in range(count):
                ask = channel.unary_unary(methods[number % len(methods)])
                with pytest.raises(grpc.RpcError, match="The message is not a ") as caught:
                    ask(b"\xff\xff\xff", timeout=60)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

        send(100)
        before = resident_bytes()
        send(500)  # of which each left 16 KB, in a server that had gRPC parse them
        assert resident_bytes() - before < 4e6


@pytest.mark.soak
@pytest.mark.parametrize("window", [0, 30_000])
def test_answers_that_nobody_reads_are_let_go_with_their_connections(engine, window):
    engine.table = Columns({"text": np.array(["x" * 200_000], object)})
    config = ServiceConfig("127.0.0.1:0", write_seconds=0.3, sql=True)
    with Server(engine, config) as server, Client(server.address) as client, ExitStack() as readers:
        room = server._handlers._resources.unread
        free = room.free
        stuck = [readers.enter_context(Connection(server.address, window)) for _ in range(4)]
        for connection in stuck:
            connection.message(connection.call(SQL), b"\x0a\x06SELECT")
        until(lambda: room.free < free or outcomes(server, "Sql"))
        assert client.info().snapshot == 7
        assert [connection.frames() for connection in stuck] == [[]] * 4
        until(lambda: room.free == free)
        # The server ended these, and not their callers.
        until(lambda: outcomes(server, "Sql") == {"timed_out": 4})
        assert client.info().snapshot == 7
    report(
        f"answers of which {window:,} bytes are read, and no more",
        seed=0,
        count=4,
        outcome=f"{ANSWERED}; these were let go with their connections",
    )


def test_a_check_of_health_is_small(server):
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError, match="1024 bytes at most"):
        channel.unary_unary(CHECK)(b"\x0a" + bytes([0xFF, 0x7F]) + bytes((1 << 14) - 1), timeout=60)


def test_one_connection_that_watches_keeps_nobody_from_asking_for_health(engine):
    with Server(engine) as server, Connection(server.address) as watching:
        for _ in range(300):
            watching.message(watching.call("/grpc.health.v1.Health/Watch"), b"")
        until(lambda: server._standard._watches.free == WATCHES - OWN_WATCHES)
        for _ in range(3):
            assert is_serving(server.address)


def test_whoever_watches_health_is_told_of_each_change(engine):
    with Server(engine) as server, grpc.insecure_channel(server.address) as channel:
        watched = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
        unknown = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x01x", timeout=60)
        assert (next(watched), next(unknown)) == (b"\x08\x01", b"\x08\x03")
        server.transport.call(server._standard.draining)
        assert ([*watched], [*unknown]) == ([b"\x08\x02"], []), "and nobody who watches holds up the end"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_only_the_connection_of_a_peer_is_shut(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listener.listen()
        port = listener.getsockname()[1]
        with ExitStack() as all_:
            ends = []
            for _ in range(2):
                far = all_.enter_context(socket.create_connection((host, port), timeout=60))
                ends.append((far, all_.enter_context(listener.accept()[0])))
            number = ends[0][0].getsockname()[1]
            peer = f"ipv6:%5B::1%5D:{number}" if ":" in host else f"ipv4:{host}:{number}"
            assert shut({peer}, port + 1) == set()
            assert shut({"unix:/somewhere"}, port) == set()
            assert shut({"unix:/somewhere", peer}, port) == {peer}
            assert ends[0][0].recv(1) == b""
            ends[1][1].sendall(b"on")
            assert ends[1][0].recv(2) == b"on"


FEW, COUNT = 256, 1000
EACH = 100 << 10
"""Bytes of the server's memory that one may take."""

SERVING = """
import contextlib
from dualform_service.server import serve
from tests.service.canned import Canned

engine = Canned()
engine.answered_by = "canned answers"
serve("here", "127.0.0.1:0", lambda address: print(address, flush=True), lambda path: contextlib.nullcontext(engine))
"""


@pytest.fixture
def files() -> Iterator[None]:
    """As many open files as the test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * COUNT:
        pytest.skip(f"this system lets a process have {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * COUNT), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.soak
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system has no /proc")
def test_a_thousand_idle_connections_shut_nobody_out(files):
    command = ["sh", "-c", f'ulimit -Sn {FEW} && exec "$0" "$@"', sys.executable, "-c", SERVING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, ExitStack() as opened:
        try:
            address = server.stdout.readline().strip()
            with Client(address) as client:
                assert client.topk("fc", "test").ids.tolist() == [1, 3]
            before = resident(server.pid)["VmRSS"]
            idle = [opened.enter_context(Connection(address)) for _ in range(COUNT)]
            for connection in idle:
                connection.socket.settimeout(20)
                assert connection.socket.recv(9), "the server greets no more"
            with Client(address, timeout=60) as client:
                assert client.info().snapshot == 7
                assert client.topk("fc", "test").ids.tolist() == [1, 3]
            assert is_serving(address, timeout=60)
            assert resident(server.pid)["VmRSS"] - before < COUNT * EACH
        finally:
            server.terminate()
    assert server.returncode == 0
    report(
        "idle connections to a server that was let have 256 open files",
        seed=0,
        count=COUNT,
        outcome=f"a new caller was answered, less than {EACH >> 10} KiB of memory each",
    )


SEED, MEMORY = 29, "4 GB"
LAYER, WIDTH, ROWS = "0", 256, 4096
MOST = 3
"""How many times what they take alone light questions may take at most (99 of 100 of them)."""
STOPPING = 0.2
"""Seconds from a deadline on in which a server may still work."""
SECONDS = 10.0 if soaking() else 0.5
"""For each measurement; a flood has gone on for a fifth of that."""
QUIET = 0.1
"""Seconds without work after which it is taken to have stopped."""


class Served(NamedTuple):
    address: str
    process: int
    asks: dict[str, Callable[[], object]]


@pytest.fixture(scope="module")
def flooded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("floods") / "run"
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        take_steps(
            recorder,
            optimizer,
            ((torch.randn(ROWS, WIDTH), torch.randint(10, (ROWS,))) for _ in range(rounds(2, 64))),
            lambda x, y: torch.nn.functional.cross_entropy(model(x), y),
            label=lambda x, y: y,
        )
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
def test_light_questions_are_answered_beside(flooded_server, flood):
    became, alone, beside = Counter[str](), list[dict[str, float]](), list[dict[str, float]]()
    with watched(flooded_server.process) as held:
        while len(beside) < rounds(1, 3) or not became:  # on a busy machine the first flood may be over too soon
            alone.append(p99(flooded_server.asks, SECONDS))
            with flooded(flooded_server.address, flood, LAYER, WIDTH, became, 0.2 * SECONDS):
                beside.append(p99(flooded_server.asks, SECONDS))
    assert sum(became.values()) > 0
    assert held.resident <= bytes_of(MEMORY)
    times = {
        name: median(one[name] for one in beside) / median(one[name] for one in alone) for name in flooded_server.asks
    }
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
def test_work_stops_at_its_deadline(flooded_server):
    rng, count, stopped = random.Random(SEED), rounds(6, 200), list[float]()
    longest = 0.4 if soaking() else 0.01
    wide = np.random.default_rng(SEED).normal(size=(100, WIDTH)).astype(np.float32)
    for number in range(count):
        where = f"slot % 9973 <> {number}"
        with Client(flooded_server.address, timeout=rng.uniform(0.05, 1) * longest) as client:
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
                stopped.append(_works_on(flooded_server.process))
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
