from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dualform_client.cli import main
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
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


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[Canned, str]]:
    """An engine, and the address of its server."""
    engine = Canned()
    with Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        yield engine, server.address


@pytest.fixture
def engine(served: tuple[Canned, str]) -> Canned:
    """It has been asked nothing yet."""
    engine, _ = served
    engine.__init__()  # type: ignore[misc]
    return engine


@pytest.fixture
def address(engine: Canned, served: tuple[Canned, str]) -> str:
    return served[1]


@pytest.fixture(scope="session")
def folder(small_run: Path) -> Path:
    return small_run
