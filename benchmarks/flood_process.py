"""Callers that a server must live with: `python -m benchmarks.flood_process ADDRESS KIND LAYER WIDTH`.

Prints a line once the flood has begun, ends when its input does, and prints what became of its calls as JSON.

ablated outputs    eight clients, each with outputs under a new mask every time
passing deadlines  the same, with a deadline of 0.2 s
stalled calls      fifty calls at a time that send no message
oversize messages  eight clients with messages of 5 MiB, of which the server takes 4 at most
idle connections   a thousand that say they speak HTTP/2, and nothing else
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import numpy as np

from dualform.errors import DualformError
from dualform_client import Client
from dualform_proto.address import parse_address

CLIENTS, STALLED, IDLE = 8, 50, 1000
HASTE, PAUSE = 0.2, 0.05
"""Seconds: the deadline that passes, and what a client waits that was turned away."""
OVERSIZE = 5 * 2**20
METHOD = "/dualform.v1.Memory/TopK"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""What begins a connection of HTTP/2, and an empty frame of settings."""


class Flood:
    def __init__(self, address: str, layer: str, width: int) -> None:
        self.address, self.layer, self.over = address, layer, threading.Event()
        self.query = np.random.default_rng(0).normal(size=(1, width)).astype(np.float32)
        self.became = Counter[str]()

    def masked(self, number: int, timeout: float | None = None) -> None:
        with Client(self.address, timeout=timeout) as client:
            for turn in range(10**9):
                # Of this process alone: a mask that a flood before had asked for is known, and takes little.
                where = f"slot % 9973 <> {CLIENTS * turn + number} AND slot <> -{os.getpid()}"
                if self.over.is_set():
                    return
                self._note(partial(client.output, self.layer, self.query, where, allow_inexact=True))

    def stalled(self, number: int) -> None:
        def nothing() -> Iterator[bytes]:
            self.over.wait()
            yield from ()

        with grpc.insecure_channel(self.address) as channel:
            while not self.over.is_set():
                call: Any = channel.stream_unary(METHOD)
                self.became["begun"] += 1
                try:
                    call(nothing(), timeout=60)
                except grpc.RpcError as error:
                    self.became[error.code().name] += 1

    def oversize(self, number: int) -> None:
        with grpc.insecure_channel(self.address) as channel:
            call: Any = channel.unary_unary(METHOD)
            message = bytes(OVERSIZE)
            while not self.over.is_set():
                try:
                    call(message, timeout=60)
                except grpc.RpcError as error:
                    self.became[error.code().name] += 1

    def idle(self, number: int) -> None:
        place = parse_address(self.address)
        held = []
        for _ in range(IDLE // CLIENTS):
            with suppress(OSError):
                held.append(socket.create_connection((place.host, place.port)))
                held[-1].sendall(PREFACE)
                self.became["connected"] += 1
        self.over.wait()
        for one in held:
            one.close()

    def _note(self, ask: Callable[[], object]) -> None:
        try:
            ask()
            self.became["answered"] += 1
        except DualformError as error:
            self.became[error.code] += 1
            time.sleep(PAUSE)


def main(address: str, kind: str, layer: str, width: str) -> None:
    flood = Flood(address, layer, int(width))
    kinds: dict[str, tuple[Callable[[int], None], int]] = {
        "ablated outputs": (flood.masked, CLIENTS),
        "passing deadlines": (partial(flood.masked, timeout=HASTE), CLIENTS),
        "stalled calls": (flood.stalled, STALLED),
        "oversize messages": (flood.oversize, CLIENTS),
        "idle connections": (flood.idle, CLIENTS),
    }
    work, callers = kinds[kind]
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(callers)]
    for thread in threads:
        thread.start()
    print("begun", flush=True)
    sys.stdin.read()
    flood.over.set()
    print(json.dumps(flood.became), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
