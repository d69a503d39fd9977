"""A server in a process of its own, and what that process holds in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.memory_process import resident

_LOOK = 0.01
"""Seconds between looks at what a process holds."""
_STILL = 3.0
"""Seconds in which a process that is idle takes no more memory."""


@dataclass
class Held:
    """Bytes of a process, the most of either."""

    resident: float = 0.0
    """Since the process began; what files back is included."""
    anonymous: float = 0.0
    """Since it was watched; no file backs these."""


@contextmanager
def served(memory: Path, *options: str) -> Iterator[tuple[str, int]]:
    """The address and the process of `dualform serve`."""
    command = [sys.executable, "-m", "dualform_client.cli", "serve", str(memory), "--address", "127.0.0.1:0", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            said = server.stdout.readline()
            if not said:
                raise RuntimeError(f"the server of {memory.name} ended with code {server.wait()}")
            yield json.loads(said)["address"], server.pid
        finally:
            server.terminate()


@contextmanager
def watched(process: int) -> Iterator[Held]:
    """What a process holds, looked at again and again until the block ends."""
    held, done = Held(), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK):
            found = resident(process)
            held.resident = max(held.resident, found["VmHWM"])
            held.anonymous = max(held.anonymous, found["RssAnon"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield held
    finally:
        done.set()
        watcher.join()


def idle(process: int, patience: float = 30.0) -> Held:
    """What a process holds at most until it takes no more, as a server that has warmed and that nobody asks."""
    with watched(process) as held:
        began = still = time.monotonic()
        most = 0.0
        while time.monotonic() - still < _STILL and time.monotonic() - began < patience:
            time.sleep(_LOOK)
            if held.resident > 1.001 * most:
                most, still = held.resident, time.monotonic()
    return held
