"""What moves the cells of Table 1: the single-task study with one thing changed at a time, over fewer runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dualform_studies.assignment import Assignment
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.download import load_dataset
from dualform_studies.images.network import layer_names
from dualform_studies.images.recipe import Recipe
from dualform_studies.images.recorded import record
from dualform_studies.images.single import SingleRecipe
from dualform_studies.images.split import training_rows
from dualform_studies.images.stream import batch_rows, batches, drawn_rows
from dualform_studies.images.table1 import CELLS, PAPER, ask_checkpoints, in_words, over_runs
from dualform_studies.pages.folder import Report, check_free
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.progress import named

_RUNS = 2


@dataclass(frozen=True)
class Variant:
    name: str
    split: int | None = 0
    """Which draw of the training images; None for all of them."""
    replacement: bool = False
    """Whether an image may come twice before another comes once."""
    momentum: float | None = None
    clip: float | None = None
    """None: as in the recipe."""

    def recipe(self, recipe: Recipe) -> Recipe:
        momentum = recipe.momentum if self.momentum is None else self.momentum
        return replace(recipe, momentum=momentum, clip=recipe.clip if self.clip is None else self.clip)

    def order(self, dataset: Dataset, recipe: Recipe, seed: int) -> Iterator[NDArray[np.int64]]:
        """int64[b] for each step: training rows of the dataset."""
        images = len(dataset.train)
        rows = np.arange(images) if self.split is None else training_rows(images, self.split)
        places = drawn_rows(len(rows), recipe, seed) if self.replacement else batch_rows(len(rows), recipe, seed, 0)
        return (rows[at] for at in places)


VARIANTS = (
    Variant("the recipe"),
    Variant("another draw of the training images", split=1),
    Variant("a third draw", split=2),
    Variant("all training images", split=None),
    Variant("batches drawn with replacement", replacement=True),
    Variant("no clipping", clip=float("inf")),
    Variant("no momentum", momentum=0.0),
)


def run_variants(assignment: Assignment, recipe: SingleRecipe | None = None) -> Report:
    """Train each variant `runs` times (2 where none are given) and fill the cells of Table 1; no memory stays.

    Raises as `run_single`.
    """
    out, start = assignment.out, perf_counter()
    check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    recipe = (recipe or SingleRecipe()).with_steps(assignment.steps)
    seeds = range(assignment.seed, assignment.seed + (assignment.runs or _RUNS))
    dataset = load_dataset("mnist", assignment.data)
    report: Report = {
        "study": "single-variants",
        "command": assignment.command("single-variants"),
        "seed": assignment.seed,
        "runs": len(seeds),
        "steps": recipe.training.steps,
        "looks": [checkpoint.step for checkpoint in recipe.checkpoints(dataset)],
        "recipe": recipe.training.in_words(),
        "variants": {one.name: _fill(one, dataset, recipe, seeds, assignment) for one in VARIANTS},
    }
    report["seconds"] = {"all": perf_counter() - start}
    _page(out, report).write(report)
    return report


def _fill(
    variant: Variant, dataset: Dataset, recipe: SingleRecipe, seeds: Sequence[int], assignment: Assignment
) -> Report:
    """By checkpoint: the accuracies of all runs, and the cells."""
    training, checkpoints = variant.recipe(recipe.training), recipe.checkpoints(dataset)
    layers = layer_names(training.widths(dataset))
    cells, accuracy = [], []
    for seed in seeds:
        say = named(assignment.progress, f"{variant.name}, seed {seed}")
        with TemporaryDirectory(dir=assignment.out, prefix="run-") as folder:
            stream = batches(dataset, variant.order(dataset, training, seed))
            record([dataset], stream, training, seed, Path(folder), moments=recipe.moments, values=False, progress=say)
            filled, reached = ask_checkpoints(Path(folder), layers, checkpoints)
            cells.append(filled)
            accuracy.append(reached)
    return {
        str(checkpoint.step): {
            "accuracy": [run[at] for run in accuracy],
            "cells": over_runs([run[at] for run in cells]),
        }
        for at, checkpoint in enumerate(checkpoints)
    }


def _page(out: Path, report: Report) -> Page:
    page = Page(out, "Single task: what moves the cells of Table 1")
    page.paragraph(
        f"The single-task study with one thing changed at a time, {_of_runs(report['runs'])} of each; no memory "
        f"is kept. The recipe: {report['recipe']}; two thirds of MNIST's training images, the same in every run, gone "
        "through in a new order each epoch. What the paper leaves open moves its cells by as much as stands here."
    )
    for checkpoint in report["looks"]:
        page.show(_table(checkpoint, report))
    return page


def _table(checkpoint: int, report: Report) -> Table:
    columns = ["variant", "accuracy", *(f"{layer} {_short(cell)}" for layer in PAPER for cell in CELLS)]
    rows: list[list[Cell]] = [
        ["the paper", "97", *(in_words(*paper) for cells in PAPER.values() for paper in cells.values())]
    ]
    for name, by_checkpoint in report["variants"].items():
        found = by_checkpoint[str(checkpoint)]
        means = (found["cells"][layer][cell] for layer in PAPER for cell in CELLS)
        rows.append(
            [
                name,
                f"{100 * np.mean(found['accuracy']):.1f}",
                *(in_words(one["mean"], one["deviation"]) for one in means),
            ]
        )
    caption = (
        f"Table 1 after {checkpoint:,} updates, in per cent: {_of_runs(report['runs'])} of each variant, mean and "
        'standard deviation of several runs for the paper. "No" and "yes" say whether the network is right.'
    )
    return Table(f"cells-{checkpoint}", caption, columns, rows)


def _of_runs(runs: int) -> str:
    return "one run" if runs == 1 else f"mean and standard deviation of {runs} runs"


def _short(cell: str) -> str:
    return {"no_target": "no, true", "no_output": "no, recognised", "yes": "yes"}[cell]
