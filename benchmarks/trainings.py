"""What recording adds to a training: the continual study's, unrecorded, with keys and values, and with keys alone.

All trainings run in one process after a warm-up, one of each kind after the other and in the opposite order every
second time, so that what slows the machine for a while falls on all of them. Seconds count until the record is durable.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from dualform import Recorder
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.training.network import build_network
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.updates import train_part

_KINDS = ("unrecorded", "values", "keys")
_WARM_UP_STEPS = 20


def measure(data: Path, folder: Path, steps: int, repeats: int) -> dict[str, Any]:
    """Train `repeats` times of each kind, `steps` updates on each of two datasets, recording below `folder`.

    Returns, by kind, `seconds` (every repeat's), `ratios` (the median over repeats of its seconds over the unrecorded
    ones of the same repeat), `bytes` on disk and `bytes_per_second` over the median training; `steps` and `repeats`.
    Each memory is removed once it is measured.
    """
    pair = load_dataset("mnist", data), load_dataset("fashion-mnist", data)
    recipe = Recipe().with_steps(steps)
    _train(pair, recipe.with_steps(min(steps, _WARM_UP_STEPS)), None, values=False)
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    size: dict[str, int] = {}
    for repeat in range(repeats):
        for kind in _KINDS if repeat % 2 == 0 else _KINDS[::-1]:
            memory = None if kind == "unrecorded" else folder / f"recording-{kind}"
            seconds[kind].append(_train(pair, recipe, memory, values=kind == "values"))
            if memory is not None:
                size[kind] = sum(file.stat().st_size for file in memory.rglob("*") if file.is_file())
                shutil.rmtree(memory)
    return {
        "steps": 2 * steps,
        "repeats": repeats,
        "seconds": seconds,
        "ratios": {
            kind: median(a / b for a, b in zip(seconds[kind], seconds["unrecorded"], strict=True)) for kind in size
        },
        "bytes": size,
        "bytes_per_second": {kind: size[kind] / median(seconds[kind]) for kind in size},
    }


def _train(pair: tuple[Dataset, Dataset], recipe: Recipe, memory: Path | None, *, values: bool) -> float:
    """Seconds of a training on both datasets, until its record is durable."""
    network = build_network(recipe.widths(pair[0]), 0)
    optimizer = recipe.optimizer(network)
    if memory is None:
        start = perf_counter()
        for part, dataset in enumerate(pair):
            train_part(network, optimizer, dataset, recipe, seed=0, part=part)
        return perf_counter() - start
    start = perf_counter()
    with Recorder(network, optimizer, memory, values=values, quiet=True) as recorder:
        for part, dataset in enumerate(pair):
            train_part(network, optimizer, dataset, recipe, seed=0, part=part, recorder=recorder)
    return perf_counter() - start
