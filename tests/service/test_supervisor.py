"""What systemd is told of a server, over the socket that it names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from dualform_service.supervisor import Supervisor
from tests.store import small_memory


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
