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
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.data.split import draw_split, every_row
from dualform_studies.images.single.study import SINGLE_RECIPE, SingleRecipe
from dualform_studies.images.table1.cells import CELLS, PAPER, ask_checkpoints, cells_met, over_runs
from dualform_studies.images.table1.page import MET, in_words
from dualform_studies.images.training.network import layer_names
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.recorded import record
from dualform_studies.images.training.stream import batch_rows, batches, drawn_rows
from dualform_studies.pages.folder import Report, check_free
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.progress import named

_RUNS = 2


@dataclass(frozen=True)
class Variant:
    name: str
    draw: int | None = 0
    """Which draw of the training images; None for all of them."""
    replacement: bool = False
    """Whether an image may come twice before another comes once."""
    momentum: float | None = None
    clip: float | None = None
    """None: as in the recipe."""

    def recipe(self, recipe: Recipe) -> Recipe:
        momentum = recipe.momentum if self.momentum is None else self.momentum
        return replace(recipe, momentum=momentum, clip=recipe.clip if self.clip is None else self.clip)

    def dataset(self, dataset: Dataset) -> Dataset:
        images = len(dataset.train)
        return replace(dataset, split=every_row(images) if self.draw is None else draw_split(images, self.draw))

    def order(self, dataset: Dataset, recipe: Recipe, seed: int) -> Iterator[NDArray[np.int64]]:
        """int64[b] for each step: training rows of the variant's dataset."""
        rows = dataset.split.trained
        return drawn_rows(rows, recipe, seed) if self.replacement else batch_rows(rows, recipe, seed, part=0)


RECIPE = Variant("the recipe")
VARIANTS = (
    Variant("another draw of the training images", draw=1),
    Variant("all training images", draw=None),
    Variant("batches drawn with replacement", replacement=True),
    Variant("no clipping", clip=float("inf")),
    Variant("no momentum", momentum=0.0),
)


def run_variants(assignment: Assignment, recipe: SingleRecipe | None = None) -> Report:
    """Train the recipe and each variant `runs` times (2 where none are given) and fill the cells of Table 1.

    No memory stays. Fewer updates are a variant, too, and no training of their own: the recipe's networks are looked at
    on their way. Raises as `run_single`.
    """
    out, start = assignment.out, perf_counter()
    check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    recipe = (recipe or SINGLE_RECIPE).with_steps(assignment.steps)
    seeds = range(assignment.first_seed, assignment.first_seed + (assignment.runs or _RUNS))
    dataset, steps = load_dataset("mnist", assignment.data), recipe.training.steps
    *earlier, last = _fill(RECIPE, dataset, recipe, seeds, assignment)
    variants = {RECIPE.name: last}
    variants |= {f"{step:,} updates": found for step, found in zip(recipe.moments, earlier, strict=True)}
    for variant in VARIANTS:
        (variants[variant.name],) = _fill(variant, dataset, replace(recipe, moments=()), seeds, assignment)
    report: Report = {
        "study": "single-variants",
        "command": assignment.command("single-variants"),
        "seed": assignment.first_seed,
        "runs": len(seeds),
        "steps": steps,
        "recipe": recipe.training.in_words(),
        "trained_on": dataset.trained_in_words(),
        "variants": variants,
    }
    report["seconds"] = {"all": perf_counter() - start}
    _page(out, report).write(report)
    return report


def _fill(
    variant: Variant, dataset: Dataset, recipe: SingleRecipe, seeds: Sequence[int], assignment: Assignment
) -> list[Report]:
    """By checkpoint: the accuracies of all runs, and the cells."""
    training, own = variant.recipe(recipe.training), variant.dataset(dataset)
    layers, checkpoints = layer_names(training.widths(own)), recipe.checkpoints(own)
    cells, accuracy = [], []
    for seed in seeds:
        say = named(assignment.progress, f"{variant.name}, seed {seed}")
        with TemporaryDirectory(dir=assignment.out, prefix="run-") as folder:
            stream = batches(own, variant.order(own, training, seed))
            record([own], stream, training, seed, Path(folder), moments=recipe.moments, values=False, progress=say)
            filled, reached = ask_checkpoints(Path(folder), layers, checkpoints)
            cells.append(filled)
            accuracy.append(reached)
    return [
        {"accuracy": [run[at] for run in accuracy], "cells": over_runs([run[at] for run in cells])}
        for at in range(len(checkpoints))
    ]


def _page(out: Path, report: Report) -> Page:
    page = Page(out, "Single task: what moves the cells of Table 1")
    page.paragraph(
        f"The single-task study with one thing changed at a time, {_of_runs(report['runs'])} of each; no memory "
        f"is kept. The recipe: {report['steps']:,} updates of {report['recipe']}. Each network is trained on "
        f"{report['trained_on']}. The runs of a variant have the recipe's seeds. A variant that draws other images "
        "also has their mean and deviation."
    )
    page.show(_table(report))
    return page


def _table(report: Report) -> Table:
    columns = ["variant", "accuracy", *(f"{layer} {_short(cell)}" for layer in PAPER for cell in CELLS), "cells met"]
    rows: list[list[Cell]] = [
        ["the paper", "97", *(in_words(*paper) for cells in PAPER.values() for paper in cells.values()), "-"]
    ]
    for name, found in report["variants"].items():
        cells = (found["cells"][layer][cell] for layer in PAPER for cell in CELLS)
        accuracy = f"{100 * np.mean(found['accuracy']):.1f}"
        means = (in_words(one["mean"], one["deviation"]) for one in cells)
        rows.append([name, accuracy, *means, cells_met(found["cells"])])
    caption = (
        f"Table 1 in per cent: {_of_runs(report['runs'])} of each variant, mean and standard deviation of five runs "
        'for the paper. "No" and "yes" say whether the network is right, the last column how many of the nine cells '
        f"are met: {MET}."
    )
    return Table("cells", caption, columns, rows)


def _of_runs(runs: int) -> str:
    return "one run" if runs == 1 else f"mean and standard deviation of {runs} runs"


def _short(cell: str) -> str:
    return {"no_target": "no, true", "no_output": "no, recognised", "yes": "yes"}[cell]
