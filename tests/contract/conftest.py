from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dualform
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.contract.answerers import ANSWERERS, Ask
from tests.contract.recorded import record


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("contract") / "run")


@pytest.fixture(scope="session")
def engine(run: Path) -> Iterator[Any]:
    with dualform.open(run) as engine:
        yield engine


@pytest.fixture(scope="session")
def server(run: Path) -> Iterator[Server]:
    with dualform.open(run) as engine, Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        yield server


@pytest.fixture(params=ANSWERERS, ids=lambda answerer: answerer.__name__)
def ask(request: pytest.FixtureRequest, run: Path, server: Server) -> Ask:
    """Asks a method by name with arguments: in process, over gRPC, and over gRPC with await."""
    return lambda method, *arguments, **named: request.param(run, server.address, method, arguments, named)
