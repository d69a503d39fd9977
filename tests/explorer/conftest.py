from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dualform
from dualform.answers import MemoryInfo
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform_studies.demo import record_demo
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.training import Recipe, train_in_succession
from tests.explorer import recorded_text
from tests.explorer.recorded import record

SHORT = 300
"""Updates on each dataset: enough to learn each, and to forget much of the first."""


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
def continual_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The memory of the continual study that DUALFORM_CONTINUAL names, or one of SHORT updates on each dataset."""
    if named := os.environ.get("DUALFORM_CONTINUAL"):
        return Path(named)
    try:
        pair = load_dataset("mnist"), load_dataset("fashion-mnist")
    except NotFound as lacking:
        pytest.skip(f"{lacking} Or name a recorded study: DUALFORM_CONTINUAL=runs/continual")
    path = tmp_path_factory.mktemp("explorer") / "continual"
    train_in_succession(pair, Recipe(steps=SHORT), 0, record_to=path)
    return path


@pytest.fixture(scope="session")
def memory(folder: Path) -> Iterator[Answers]:
    with dualform.open(folder) as opened:
        yield opened


@pytest.fixture(scope="session")
def info(memory: Answers) -> MemoryInfo:
    return memory.info()
