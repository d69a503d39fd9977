"""Memories, files and datasets that tests of the studies of images share."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dualform.query.engine import Engine, open_memory
from dualform_studies.images import study
from dualform_studies.images.datasets import FOLDER, Dataset, Images, Split, load_dataset
from dualform_studies.images.training import Checkpoint, Recipe, mixed_batches, record
from tests.studies.images.files import CIFAR10_FILES, cifar10_records

FEWER = 500
"""Test images of the real data that a study in miniature looks at: it counts over all of them, time after time."""


@pytest.fixture(scope="module", autouse=True)
def _coarse_figures(coarse_figures: None) -> None:
    """In all studies of images."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a test saves, to look at what is in them."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: object, **keywords: object) -> None:
        figures.append(figure)
        save(figure, *args, **keywords)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.fixture
def fewer_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The studies get all training images of the real data, and the first of its test images."""

    def load(*arguments: object, whole=study.load_dataset):
        dataset = whole(*arguments)
        test = dataset.test
        return replace(dataset, test=Images(test.pixels[:FEWER], test.labels[:FEWER]))

    monkeypatch.setattr(study, "load_dataset", load)


@pytest.fixture(scope="session")
def cifar10_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with made-up files of CIFAR-10, the last of them compressed."""
    folder = tmp_path_factory.mktemp("data") / FOLDER
    folder.mkdir()
    for seed, name in enumerate(CIFAR10_FILES):
        (folder / name).write_bytes(cifar10_records(seed))
    test = folder / CIFAR10_FILES[-1]
    test.with_name(f"{test.name}.gz").write_bytes(gzip.compress(test.read_bytes()))
    test.unlink()
    return folder.parent


LAYERS = ("layer-0", "layer-1", "layer-2")
STEPS, BATCH = 60, 32


@dataclass(frozen=True)
class Recorded:
    """A memory of both datasets learned together, half learned, and what its slots are, row by row."""

    memory: Engine
    datasets: tuple[Dataset, Dataset]
    names: list[str]
    labels: list[int]
    samples: list[int]

    def checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(self.datasets[number], STEPS, last=True)

    def given(self, number: int) -> np.ndarray:
        return self.checkpoint(number).classes_given(self.memory)

    def products(self, layer: str, number: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Float64 scores of the test images of a dataset, and of all slots; those of equal keys are equal.

        Each key is scored once: a matrix product may round the same key differently at another place of the matrix.
        """
        queries = self.memory.query_set(self.checkpoint(number).query_set, layer).queries.astype(np.float64)
        keys, slots = np.unique(self.keys(layer), axis=0, return_inverse=True)
        return (queries[slice(None) if rows is None else rows] @ keys.T)[:, slots]

    def keys(self, layer: str) -> np.ndarray:
        return self.memory.keys(layer).astype(np.float64)


@pytest.fixture(scope="session")
def recorded(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    whole = load_dataset("mnist", made_up_data), load_dataset("fashion-mnist", made_up_data)
    mnist, fashion = (replace(one, split=Split(one.split.kept, one.split.trained[:100])) for one in whole)
    datasets = mnist, fashion
    recipe = Recipe(hidden=(48, 32), lr=0.004, batch=BATCH, steps=STEPS)
    folder = tmp_path_factory.mktemp("claims") / "run"
    record(datasets, mixed_batches(datasets, recipe, seed=3), recipe, 3, folder)
    batches = list(mixed_batches(datasets, recipe, seed=3))
    with open_memory(folder) as memory:
        yield Recorded(
            memory,
            datasets,
            [name for batch in batches for name in batch.dataset],
            [int(label) for batch in batches for label in batch.labels],
            [int(row) for batch in batches for row in batch.rows],
        )
