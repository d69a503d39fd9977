"""Connections on which nothing is asked shut nobody out, also where the system would let a process have few files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dualform_client import Client
from dualform_client.connection import is_serving
from tests.reliability import report
from tests.service.http2 import Connection

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


def resident(process: int) -> int:
    """Bytes of a process in memory."""
    with open(f"/proc/{process}/statm", encoding="ascii") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.soak
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system has no /proc")
def test_a_thousand_idle_connections_shut_nobody_out(files):
    command = ["sh", "-c", f'ulimit -Sn {FEW} && exec "$0" "$@"', sys.executable, "-c", SERVING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, ExitStack() as opened:
        try:
            address = server.stdout.readline().strip()
            with Client(address) as client:
                assert client.topk("fc", "test").ids.tolist() == [1, 3]
            before = resident(server.pid)
            idle = [opened.enter_context(Connection(address)) for _ in range(COUNT)]
            for connection in idle:
                connection.socket.settimeout(20)
                assert connection.socket.recv(9), "the server greets no more"
            with Client(address, timeout=60) as client:
                assert client.info().snapshot == 7
                assert client.topk("fc", "test").ids.tolist() == [1, 3]
            assert is_serving(address, timeout=60)
            assert resident(server.pid) - before < COUNT * EACH
        finally:
            server.terminate()
    assert server.returncode == 0
    report(
        "idle connections to a server that was let have 256 open files",
        seed=0,
        count=COUNT,
        outcome=f"a new caller was answered, less than {EACH >> 10} KiB of memory each",
    )
