"""How a client reaches a server, and what it says when it does not; a memory by its place, a folder or an address."""

from __future__ import annotations

import asyncio
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import dualform
from dualform.errors import BadInput, NotAMemory, ServiceError, Unavailable
from dualform_client import AsyncClient, Client, connect
from dualform_service.server import Server
from tests.service.canned import Canned

NOBODY = "127.0.0.1:1"


@pytest.fixture
def engine() -> Canned:
    return Canned()


@pytest.fixture
def server(engine: Canned) -> Iterator[Server]:
    with Server(engine) as server:
        yield server


def test_who_is_not_there_is_named_with_the_command_that_starts_one():
    started = time.monotonic()
    with Client(NOBODY) as client, pytest.raises(Unavailable) as error:
        client.info()
    assert error.value.message.startswith(f"Cannot connect to {NOBODY} (")
    assert error.value.hint == f"Start one: dualform serve RUN --address {NOBODY}"
    assert time.monotonic() - started < 30, "half of the time that a call is given"


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


def test_a_closed_client_says_so(server):
    client = Client(server.address)
    client.close()
    with pytest.raises(ServiceError, match=f"The client for {server.address} is closed"):
        client.info()


async def test_asks_several_questions_at_once(engine, server):
    engine.hold.clear()
    async with AsyncClient(server.address) as client:
        asked = [asyncio.create_task(client.topk("fc", "test")) for _ in range(2)]
        for _ in asked:
            assert await asyncio.to_thread(engine.waiting.acquire, timeout=60)
        engine.hold.set()
        assert [hits.ids.tolist() for hits in await asyncio.gather(*asked)] == [[1, 3]] * 2


async def test_cancelling_a_question_stops_the_servers_work(engine, server):
    engine.hold.clear()
    async with AsyncClient(server.address) as client:
        asked = asyncio.create_task(client.topk("fc", "test"))
        assert await asyncio.to_thread(engine.waiting.acquire, timeout=60)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await asyncio.to_thread(engine.cancelled.wait, 60)


def test_is_asked_again_in_another_loop_once_the_first_has_closed(server):
    client = AsyncClient(server.address)
    for _ in range(3):
        assert asyncio.run(client.topk("fc", "test")).ids.tolist() == [1, 3]
    asyncio.run(client.close())
    asyncio.run(client.info())
    asyncio.run(client.close())
    assert asyncio.run(client.info()).snapshot == 7
    asyncio.run(client.close())


async def test_another_loop_is_named_while_the_first_is_open(server):
    async with AsyncClient(server.address) as client:
        await client.info()
        with pytest.raises(ServiceError, match=r"belongs to another event loop\. Make an AsyncClient for each"):
            await asyncio.to_thread(asyncio.run, client.info())
        assert (await client.info()).snapshot == 7


async def test_closing_what_was_never_opened_does_nothing():
    threads = threading.active_count()
    await AsyncClient("127.0.0.1:1").close()
    assert threading.active_count() == threads


def test_a_folder_and_its_server_give_the_same_answers(small_run):
    query = np.ones((2, 6))
    with dualform.connect(small_run) as folder, Server(folder) as server, dualform.connect(server.address) as served:
        assert (type(folder), type(served)) == (dualform.Engine, Client)
        for ask in (
            lambda memory: memory.topk("0", query).ids.tobytes(),
            lambda memory: memory.output("0", query, where="step < 3").values.tobytes(),
            lambda memory: {name: array.tobytes() for name, array in memory.weights().arrays.items()},
            lambda memory: dict(memory.cancellation("step < 3")),
        ):
            assert ask(folder) == ask(served)


def test_neither_a_folder_nor_an_address():
    with pytest.raises(BadInput) as caught:
        connect("mnist")
    assert caught.value.message == "'mnist' is neither a folder nor host:port."
    with pytest.raises(NotAMemory, match=r"^There is no folder runs/nowhere\."):
        connect("runs/nowhere")
    with pytest.raises(BadInput, match=r"limits this process, and 127\.0\.0\.1:1 answers in another"):
        connect(NOBODY, ram="2 GB")  # the memory of a server is not bounded from here


def test_without_the_engines_packages_a_folder_names_the_extra_and_a_server_still_answers(small_run):
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['duckdb', 'faiss', 'torch', 'pyarrow', 'pandas', 'matplotlib']))\n"
        "import dualform\n"
        "dualform.connect('127.0.0.1:1').close()\n"
        "try:\n    dualform.connect(sys.argv[1])\n"
        "except dualform.DualformError as error:\n    print(type(error).__name__, error.hint)"
    )
    told = subprocess.run([sys.executable, "-c", code, str(small_run)], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("MissingPackage pip install 'dualform[cpu]'")


@pytest.mark.parametrize(
    ("options", "several"), [({"ram": "2 GB"}, False), ({"backend": "numpy", "held_bytes": 1 << 20}, True)]
)
def test_a_pickled_engine_is_opened_as_it_was(small_run, options, several):
    with (
        dualform.open([small_run] if several else small_run, **options) as engine,
        pickle.loads(pickle.dumps(engine)) as again,
    ):
        assert again.answered_by == engine.answered_by
        assert again.info() == engine.info()
        assert again.sql("SELECT count(*) AS n FROM slots").records() == [{"n": 48}]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_pickled_client_has_the_same_arguments(kind):
    client = kind("127.0.0.1:1/name", timeout=5.0, token="secret")
    assert pickle.loads(pickle.dumps(client)).connection == client.connection
