"""Memories of each recipe, recorded once a worker, and a server of each that most tests share: they only read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from jinja2.bccache import Bucket, BytecodeCache

import dualform
from dualform.answers import MemoryInfo
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform_explorer import rendering
from dualform_explorer.export import Choice, ExportedPage, choose, exported_page
from dualform_explorer.view import Snapshot
from dualform_studies.demo import record_demo
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.training import Recipe, train_in_succession
from tests.explorer import recorded, recorded_cnn, recorded_gpt, recorded_table, recorded_text
from tests.explorer.served import Served, served
from tests.reliability import rounds

SHORT = 300
"""Updates on each dataset: enough to learn each, and to forget much of the first."""
SECONDS = rounds(60, 600)
"""That a panel may take."""
RECIPES = {
    "images": recorded.record,
    "adamw": partial(recorded.record, optimizer=partial(torch.optim.AdamW, lr=0.02)),
    "text": recorded_text.record,
    "gpt": recorded_gpt.record,
    "cnn": recorded_cnn.record,
    "table": recorded_table.record,
}


class Compiled(BytecodeCache):
    """Templates that were compiled once a worker, which takes as long as half a page."""

    def __init__(self) -> None:
        self.codes: dict[object, object] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self.codes.get((bucket.environment.is_async, bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.codes[bucket.environment.is_async, bucket.key, bucket.checksum] = bucket.code


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rendering, "Environment", partial(rendering.Environment, bytecode_cache=Compiled()))
        yield


def _path(name: str):
    @pytest.fixture(scope="session")
    def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return RECIPES[name](tmp_path_factory.mktemp(name) / "run")

    return path


def _pages(folder: str, name: str = "run"):
    @pytest.fixture(scope="session")
    def pages(request: pytest.FixtureRequest) -> Iterator[Served]:
        path = request.getfixturevalue(folder)
        with served({name: lambda: dualform.open(path)}, deadline=SECONDS) as found:
            yield found

    return pages


def _memory(folder: str):
    @pytest.fixture(scope="session")
    def memory(request: pytest.FixtureRequest) -> Iterator[Answers]:
        with dualform.open(request.getfixturevalue(folder)) as opened:
            yield opened

    return memory


folder, text_folder = _path("images"), _path("text")
adamw_folder, gpt_folder, cnn_folder, table_folder = (_path(own) for own in ("adamw", "gpt", "cnn", "table"))
pages, text_pages = _pages("folder"), _pages("text_folder", "text")
adamw_pages, gpt_pages, cnn_pages = (_pages(f"{own}_folder") for own in ("adamw", "gpt", "cnn"))
memory, texts, adamw, cnn = (_memory(own) for own in ("folder", "text_folder", "adamw_folder", "cnn_folder"))


@pytest.fixture(scope="session")
def info(memory: Answers) -> MemoryInfo:
    return memory.info()


EXPORTED = ("shapes/3", "shapes/7", "noise/5")


@pytest.fixture(scope="session")
def choice(memory: Answers, info: MemoryInfo) -> Choice:
    return choose(Snapshot(memory, info), EXPORTED, ("dataset:noise <b>", "label:2"))


@pytest.fixture(scope="session")
def exported(memory: Answers, info: MemoryInfo, choice: Choice) -> ExportedPage:
    """Three examples, each with two filters and without."""
    return exported_page(Snapshot(memory, info), "run", choice)


@pytest.fixture(scope="session")
def gpt_outputs(gpt_folder: Path) -> np.ndarray:
    """float32[HELD, LENGTH, WORDS]: of the query set."""
    with dualform.open(gpt_folder) as memory:
        return memory.query_set("held").outputs.reshape(recorded_gpt.HELD, recorded_gpt.LENGTH, recorded_gpt.WORDS)


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
