from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualform_client import Client
from dualform_service.server import Server
from tests.service.canned import Canned


@pytest.fixture
def engine() -> Canned:
    return Canned()


@pytest.fixture
def server(engine: Canned) -> Iterator[Server]:
    with Server(engine) as server:
        yield server
        engine.hold.set()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
