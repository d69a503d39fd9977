"""How a client reaches a server, and what it says when it does not."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import dualform_client
from dualform.errors import BadInput, ServiceError, Unavailable
from dualform.methods import Answers
from dualform_client import AsyncClient, Client
from dualform_client.connection import is_serving
from dualform_service.server import Server
from tests.cases import some
from tests.service.canned import Canned

NOBODY = "127.0.0.1:1"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(Canned()) as server:
        yield server


def test_exported_names():
    assert dualform_client.__all__ == ["AsyncClient", "Client", "connect"]


def test_importing_the_client_loads_neither_torch_nor_faiss_nor_duckdb():
    code = (
        "import sys, dualform_client, dualform_client.cli\n"
        "print(sorted({'torch', 'faiss', 'duckdb', 'pyarrow', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_has_the_methods_of_the_protocol_with_the_same_arguments(client):
    # A widget's changes are answered as they come, without a loop that could wait.
    without = {"explorer"} if client is AsyncClient else set()
    for name, method in some(inspect.getmembers(Answers, inspect.isfunction)):
        if not name.startswith("_") and name not in without:
            own = inspect.signature(getattr(client, name))
            assert own.parameters == inspect.signature(method).parameters, name


def test_who_is_not_there_is_named_with_the_command_that_starts_one():
    started = time.monotonic()
    with Client(NOBODY) as client, pytest.raises(Unavailable) as error:
        client.info()
    assert error.value.message.startswith(f"Cannot connect to {NOBODY} (")
    assert error.value.hint == f"Start one: dualform serve RUN --address {NOBODY}"
    assert time.monotonic() - started < 30, "half of the time that a call is given"


async def test_the_same_with_await():
    async with AsyncClient(NOBODY) as client:
        with pytest.raises(Unavailable, match=f"Cannot connect to {NOBODY}"):
            await client.info()


def test_a_health_check_of_nobody_is_an_error():
    with pytest.raises(Unavailable):
        is_serving(NOBODY)


def test_finds_a_server_that_starts_later():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # so that nobody else is given the port meanwhile
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with Client(address) as client:
            with pytest.raises(Unavailable):
                client.info()
            held.close()
            with Server(Canned(), address):
                deadline = time.monotonic() + 60
                while True:
                    try:
                        assert client.info().snapshot == 7
                        break
                    except Unavailable:
                        assert time.monotonic() < deadline
                        time.sleep(0.05)


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with Client(server.address) as client:
        assert client.info().snapshot == 7


def test_a_token_does_not_travel_in_the_clear_to_another_machine():
    with pytest.raises(BadInput, match=r"^The token would travel to 192\.0\.2\.1:1 for all to read\. Connect by TLS"):
        Client("192.0.2.1:1", token="t")
    Client("192.0.2.1:1", token="t", tls=True).close()


@pytest.mark.parametrize("named", [{"timeout": 0}, {"token": ""}, {"authority": "/nowhere.pem"}])
def test_what_cannot_be_meant_is_refused(named):
    with pytest.raises(BadInput):
        Client(NOBODY, **named)


def test_no_address():
    with pytest.raises(BadInput, match="'runs/mnist' is no address"):
        Client("runs/mnist")


def test_a_closed_client_says_so(server):
    client = Client(server.address)
    client.close()
    with pytest.raises(ServiceError, match=f"The client for {server.address} is closed"):
        client.info()


def test_one_client_serves_many_threads(server):
    from concurrent.futures import ThreadPoolExecutor

    with Client(server.address) as client, ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: client.topk("fc", "test").ids.tolist(), range(40)))
    assert answers == [[1, 3]] * 40
