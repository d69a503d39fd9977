"""One training on a stream of batches, recorded, with the test images as query sets at chosen moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from dualform import Recorder
from dualform.methods import Answers
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.previews import examples_of, trained_preview_set
from dualform_studies.images.training.network import build_network
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.stream import Batch
from dualform_studies.images.training.updates import train
from dualform_studies.progress import Progress


def query_set_name(dataset: Dataset, at_step: int | None = None) -> str:
    """Of all test images of a dataset, as the network of the end, or of an earlier step, sees them."""
    return f"test-{dataset.name}" if at_step is None else f"test-{dataset.name}-at-{at_step}"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The network after a number of updates, as a recorded memory holds it."""

    dataset: Dataset
    step: int
    last: bool = False

    @property
    def query_set(self) -> str:
        return query_set_name(self.dataset, None if self.last else self.step)

    @property
    def where(self) -> str:
        """The mask that leaves what was trained until then."""
        return f"step < {self.step}"

    def classes_given(self, memory: Answers) -> NDArray[np.int64]:
        """int64[n]: the class that the network gave each test image."""
        outputs = memory.query_set(self.query_set).outputs
        assert outputs is not None, "record stores what the network answers"
        return np.asarray(outputs.argmax(axis=1), dtype=np.int64)


def record(
    datasets: Sequence[Dataset],
    stream: Iterator[Batch],
    recipe: Recipe,
    seed: int,
    folder: Path,
    *,
    moments: Sequence[int] = (),
    values: bool = True,
    progress: Progress | None = None,
) -> float:
    """Train a fresh network for `recipe.steps` updates into a memory; seconds of the updates, until all is on disk.

    Query sets of every dataset's test images are taken at the end and, under `query_set_name`, at `moments`, ascending
    numbers of updates below the last. Raises AlreadyExists where the folder holds something.
    """
    network = build_network(recipe.widths(datasets[0]), seed)
    optimizer = recipe.optimizer(network)
    names = {dataset.name: list(dataset.label_names) for dataset in datasets}
    label = f"training on {' and '.join(names)}"
    seconds, done = 0.0, 0

    def tell(taken: int) -> None:
        if progress is not None:
            progress(label, done + taken, recipe.steps)

    with Recorder(network, optimizer, folder, values=values, label_names=names, quiet=True) as recorder:
        for moment in (*moments, recipe.steps):
            start = perf_counter()
            train(network, optimizer, islice(stream, moment - done), recipe.clip, recorder=recorder, tell=tell)
            recorder.flush()
            seconds += perf_counter() - start
            done = moment
            for dataset in datasets:
                images = torch.from_numpy(dataset.inputs(dataset.test))
                name = query_set_name(dataset, None if moment == recipe.steps else moment)
                recorder.query_set(name, images, label=dataset.test.labels, previews=examples_of(dataset))
        for dataset in datasets:
            recorder.previews(dataset.name, trained_preview_set(dataset))
    return seconds
