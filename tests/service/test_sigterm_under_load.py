"""A server that is told to end under load: health says so, what it has begun is answered, what comes is refused."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dualform.errors import DualformError
from dualform_client import Client
from dualform_proto.v1 import dualform_pb2 as pb, dualform_pb2_grpc
from tests.reliability import report, rounds

SEED = 34
PROMISED = 10.0
"""Seconds from the signal to the end, whatever the server has to do."""
CALLERS = 8

# Questions that are in the engine stay there until a line comes; what a memory holds is told at once.
SERVING = """
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


def ask_on(address: str, seen: Counter[str]) -> None:
    """Asks for what the memory holds, again and again, until it is refused."""
    with grpc.insecure_channel(address) as channel:
        ask = dualform_pb2_grpc.MemoryStub(channel).Info
        while True:
            try:
                seen["right" if ask(pb.InfoRequest(), timeout=60).snapshot == 7 else "wrong"] += 1
            except grpc.RpcError as error:
                seen[error.code().name] += 1
                return


def one_round(moment: float) -> None:
    """`moment`: seconds that the callers ask before the signal."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVING, str(len(HELD))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    answers: dict[int, Any] = {}
    seen: list[Counter[str]] = [Counter() for _ in range(CALLERS)]
    try:
        address = server.stdout.readline().strip()

        def hold(place: int) -> None:
            with Client(address, timeout=60) as client:
                try:
                    answers[place] = HELD[place][0](client)
                except DualformError as error:
                    answers[place] = error

        held = [threading.Thread(target=hold, args=(place,)) for place in range(len(HELD))]
        callers = [threading.Thread(target=ask_on, args=(address, own)) for own in seen]
        for thread in held:
            thread.start()
        assert server.stdout.readline() == "begun\n"
        with grpc.insecure_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            for thread in callers:
                thread.start()
            time.sleep(moment)
            server.send_signal(signal.SIGTERM)
            signalled = time.monotonic()
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert answers == {}
            for thread in callers:
                thread.join(60)
            assert answers == {}
            watch.cancel()
        server.stdin.write("\n")
        server.stdin.flush()
        for thread in held:
            thread.join(60)
        assert server.wait(60) == 0
        assert time.monotonic() - signalled < PROMISED
    finally:
        server.kill()
        server.communicate()
    for place, (_, right) in enumerate(HELD):
        assert not isinstance(answers[place], DualformError), answers[place]
        assert right(answers[place])
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
