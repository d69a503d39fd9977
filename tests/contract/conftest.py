from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import dualform
from dualform_client import AsyncClient, Client
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig

Ask = Callable[..., Any]
"""Asks a method by its name, with arguments."""


@pytest.fixture(scope="session")
def run(small_run: Path) -> Path:
    return small_run


@pytest.fixture(scope="session")
def engine(run: Path) -> Iterator[Any]:
    with dualform.open(run) as engine:
        yield engine


@pytest.fixture(scope="session")
def server(run: Path) -> Iterator[Server]:
    with dualform.open(run) as engine, Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture(scope="session")
def awaited(server: Server) -> Iterator[Ask]:
    """An AsyncClient, asked in a loop of its own thread: tests of a browser have one in this thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def result(made: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(made, loop).result(60)

    async def entered() -> AsyncClient:
        return await AsyncClient(server.address).__aenter__()

    async def asked(method: str, arguments: Any, named: Any) -> Any:
        return await getattr(memory, method)(*arguments, **named)

    memory = result(entered())
    yield lambda method, *arguments, **named: result(asked(method, arguments, named))
    result(memory.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.fixture(params=["engine", "client", "awaited"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """In process, over gRPC, and over gRPC with await."""
    found = request.getfixturevalue(request.param)
    if request.param == "awaited":
        return found
    return lambda method, *arguments, **named: getattr(found, method)(*arguments, **named)
