from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualform_client import Client
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service.canned import Canned


@pytest.fixture
def engine() -> Canned:
    return Canned()


@pytest.fixture
def server(engine: Canned) -> Iterator[Server]:
    with Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        yield server
        engine.hold.set()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
