from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dualform
from dualform.answers import MemoryInfo
from dualform.methods import Answers
from dualform_studies.demo import record_demo
from tests.explorer import recorded_text
from tests.explorer.recorded import record


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("explorer") / "run")


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_text.record(tmp_path_factory.mktemp("explorer") / "text")


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` records."""
    path = tmp_path_factory.mktemp("explorer") / "demo"
    record_demo(path)
    return path


@pytest.fixture(scope="session")
def memory(folder: Path) -> Iterator[Answers]:
    with dualform.open(folder) as opened:
        yield opened


@pytest.fixture(scope="session")
def info(memory: Answers) -> MemoryInfo:
    return memory.info()
