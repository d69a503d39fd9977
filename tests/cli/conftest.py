from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dualform_client.cli import main
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.contract.recorded import record
from tests.service.canned import Canned


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)


Run = Callable[..., Outcome]


@pytest.fixture
def dualform(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process."""

    def run(*arguments: Any) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return run


@pytest.fixture
def engine() -> Canned:
    return Canned()


@pytest.fixture
def address(engine: Canned) -> Iterator[str]:
    with Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        yield server.address


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("cli") / "run")
