"""A server as a process: a signal ends it, whichever line of its wait it comes in, a second one at once, and systemd is
told of it over the socket that it names. Under load health says so, what was begun is answered and what comes refused.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dualform_client import Client
from dualform_proto.v1 import dualform_pb2 as pb, dualform_pb2_grpc
from dualform_service.server import Supervisor
from tests.reliability import report, rounds
from tests.store import small_memory

# A handler runs between two lines of what it interrupts. Tracing sends the signal before the `count`-th line that runs
# in the main thread once the server waits; the last count lies beyond, where the thread sleeps and a timer sends it.
# The handler's own lines are left out: a signal in those is the second one. Then one that does not interrupt the wait:
# the system may give a signal to any thread of a process; only the main one runs its handler, where it is not asleep.
WAITING = """
import faulthandler, os, signal, sys, threading, time
from dualform_service.server import stop_signals

faulthandler.dump_traceback_later(60, exit=True)

def ended(count):
    lines = 0

    def traced(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_name == "stop":
            return None
        if event == "line":
            lines += 1
            if lines == count:
                signal.raise_signal(signal.SIGINT)
        return traced

    def send():
        nonlocal count
        if lines < count:
            count = 0  # one signal, not two
            os.kill(os.getpid(), signal.SIGTERM)

    with stop_signals() as wait:
        threading.Timer(0.2, send).start()
        sys.settrace(traced)
        wait()
        sys.settrace(None)
    print("ended", flush=True)
    time.sleep(0.3)

for count in (1, 4, 32):
    ended(count)
with stop_signals() as wait:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    wait()
print("ended")
"""


def test_a_signal_in_any_line_of_the_wait_ends_it_or_in_another_thread():
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ended\n" * 4), done.stderr


# A server whose engine is answering a question that takes for ever.
SERVING = """
import contextlib, logging, sys, threading
from dualform_client import Client
from dualform_service.server import serve
from tests.service.canned import Canned

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
engine = Canned()
engine.hold.clear()
engine.answered_by = "canned answers"

def ready(address):
    threading.Thread(target=lambda: Client(address).topk("fc", "test"), daemon=True).start()
    assert engine.waiting.acquire(timeout=60)
    print("asked", flush=True)

serve("here", "127.0.0.1:0", ready, lambda path: contextlib.nullcontext(engine))
print("ended")
"""


def test_a_second_signal_ends_a_server_that_drains_at_once():
    server = subprocess.Popen(
        [sys.executable, "-c", SERVING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert server.stdout.readline() == "asked\n"
        server.send_signal(signal.SIGTERM)
        assert any(
            "draining: a second signal ends the server at once" in line for line in iter(server.stderr.readline, "")
        )
        server.send_signal(signal.SIGINT)
        out, logged = server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait()
    assert (server.returncode, out) == (128 + signal.SIGINT, "")
    assert "ended at once by a second signal, SIGINT: open questions were cut off\n" in logged


# One whose engine never looks whether it must stop.
STUBBORN = """
import contextlib, threading
from dualform_client import Client
from dualform_service import server
from dualform_service.settings import ServiceConfig
from tests.service.canned import Canned

server.LAST_SECONDS = 0.3
engine, asked = Canned(), threading.Event()
engine.answered_by = "canned answers"

def ask(question, cancelled, bounds):
    asked.set()
    threading.Event().wait()

def ready(address):
    threading.Thread(target=lambda: Client(address).topk("fc", "test"), daemon=True).start()
    assert asked.wait(60)
    print("asked", flush=True)

engine.ask = ask
config = ServiceConfig("127.0.0.1:0", grace=0.2)
server.serve("here", config, ready, lambda path: contextlib.nullcontext(engine))
print("ended")
"""


def test_work_that_does_not_stop_does_not_keep_a_server_alive():
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "asked\n"
        server.send_signal(signal.SIGTERM)
        out, logged = server.communicate(timeout=60)
    assert (server.returncode, out) == (0, "")
    assert "ended: some questions did not stop in time\n" in logged


@pytest.fixture
def told(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def test_a_server_says_that_it_is_ready_alive_and_stopping(told, tmp_path):
    small_memory.write(tmp_path / "run", [4])
    environment = {**os.environ, "NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": "40000"}
    command = [sys.executable, "-m", "dualform_client.cli", "serve", str(tmp_path / "run"), "--address", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            said = [told.recv(100) for _ in range(4)]
            assert said == [b"READY=1", *[b"WATCHDOG=1"] * 3]
            server.send_signal(signal.SIGTERM)
            while said[-1] == b"WATCHDOG=1":
                said.append(told.recv(100))
            assert said[-1] == b"STOPPING=1"
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_a_loop_that_hangs_gives_no_sign_of_life(told):
    calls = []
    supervisor = Supervisor({"NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": "2000"})
    supervisor.ready(calls.append)  # as of a loop that calls nothing
    assert told.recv(100) == b"READY=1"
    told.settimeout(0.1)
    with pytest.raises(TimeoutError):
        told.recv(100)
    assert calls
    calls[0]()
    assert told.recv(100) == b"WATCHDOG=1"
    supervisor.close()


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_a_socket_may_be_one_without_a_file():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # a name that the system picks
        listening.settimeout(60)
        Supervisor({"NOTIFY_SOCKET": "@" + listening.getsockname()[1:].decode()}).stopping()
        assert listening.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/missing"}, {"WATCHDOG_USEC": "1000"}])
def test_nobody_who_listens_is_no_error(environment):
    calls = []
    supervisor = Supervisor(environment)
    supervisor.ready(calls.append)
    supervisor.stopping()
    supervisor.close()
    assert calls == []


def test_another_processs_watchdog_is_not_ours(told):
    calls = []
    other = {"NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid() + 1)}
    Supervisor(other).ready(calls.append)
    told.settimeout(0.05)
    assert told.recv(100) == b"READY=1"
    with pytest.raises(TimeoutError):
        told.recv(100)
    assert calls == []


SEED = 34
PROMISED = 10.0
"""Seconds from the signal to the end, whatever the server has to do."""
CALLERS = 8

# Questions that are in the engine stay there until a line comes; what a memory holds is told at once.
HOLDING = """
import contextlib, logging, sys, threading
from dualform_service.server import serve
from tests.service.canned import Canned

engine = Canned()
engine.answered_by = "canned answers"
engine.hold.clear()

def ready(address):
    print(address, flush=True)
    def tell():
        for _ in range(int(sys.argv[1])):
            assert engine.waiting.acquire(timeout=120)
        print("begun", flush=True)
        sys.stdin.readline()
        engine.hold.set()
    threading.Thread(target=tell, daemon=True).start()

serve("here", "127.0.0.1:0", ready, lambda path: contextlib.nullcontext(engine))
"""
HELD: list[tuple[Callable[[Client], Any], Callable[[Any], bool]]] = [
    (lambda client: client.slots([0, 1]), lambda columns: columns["step"].tolist() == [0, 0]),
    (lambda client: client.slots([2, 3]), lambda columns: columns["step"].tolist() == [1, 1]),
    (lambda client: client.topk("fc", "test"), lambda hits: hits.ids.tolist() == [1, 3]),
    (lambda client: client.output("fc", "test"), lambda outputs: np.asarray(outputs).tolist() == [[0.5, np.inf]]),
]
"""Each in a thread of the engine at once, and whether what it gets is right."""


def ask_on(address: str) -> Counter[str]:
    """Asks for what the memory holds, again and again, until it is refused."""
    seen = Counter[str]()
    with grpc.insecure_channel(address) as channel:
        ask = dualform_pb2_grpc.MemoryStub(channel).Info
        while True:
            try:
                seen["right" if ask(pb.InfoRequest(), timeout=60).snapshot == 7 else "wrong"] += 1
            except grpc.RpcError as error:
                seen[error.code().name] += 1
                return seen


def one_round(moment: float) -> None:
    """`moment`: seconds that the callers ask before the signal."""

    def hold(ask: Callable[[Client], Any]) -> Any:
        with Client(address, timeout=60) as client:
            return ask(client)

    command = [sys.executable, "-c", HOLDING, str(len(HELD))]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with ThreadPoolExecutor(len(HELD) + CALLERS) as pool:
        try:
            address = server.stdout.readline().strip()
            held = [pool.submit(hold, ask) for ask, _ in HELD]
            assert server.stdout.readline() == "begun\n"
            with grpc.insecure_channel(address) as channel:
                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
                assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
                callers = [pool.submit(ask_on, address) for _ in range(CALLERS)]
                time.sleep(moment)
                server.send_signal(signal.SIGTERM)
                signalled = time.monotonic()
                assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
                seen = [caller.result(60) for caller in callers]
                assert not any(one.done() for one in held)
                watch.cancel()
            server.stdin.write("\n")
            server.stdin.flush()
            answers = [one.result(60) for one in held]
            assert server.wait(60) == 0
            assert time.monotonic() - signalled < PROMISED
        finally:
            server.kill()
            server.communicate()
    for answer, (_, right) in zip(answers, HELD, strict=True):
        assert right(answer)
    for own in seen:
        assert own.keys() == {"right", "UNAVAILABLE"}, own
        assert own["UNAVAILABLE"] == 1


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_what_was_begun_is_answered_what_comes_is_refused_and_health_says_so():
    drawn = random.Random(SEED)
    count = rounds(1, 50)
    for _ in range(count):
        one_round(drawn.uniform(0.05, 0.5))
    report(
        f"SIGTERM while {len(HELD)} questions are worked on and {CALLERS} callers ask on",
        seed=SEED,
        count=count,
        outcome="health said so, each question was answered, callers were refused with UNAVAILABLE, ended within 10 s",
    )
