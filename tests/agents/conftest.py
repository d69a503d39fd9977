from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dualform
from tests.contract.recorded import record


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("agents") / "run")


@pytest.fixture(scope="session")
def memory(run: Path) -> Iterator[dualform.Engine]:
    with dualform.open(run) as memory:
        yield memory
