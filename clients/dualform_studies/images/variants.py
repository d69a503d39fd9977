"""The studies `single-variants`, which changes one part of the recipe at a time, and `cifar10` (footnote 6).

CIFAR-10 with the paper's classifier: `dualform study cifar10`.

The paper leaves the dataset out (its footnote 6); its code has the recipe: 3,072-800-800-10, 5,000 updates, the images
normalised channel by channel, a fifth of the 50,000 training images left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dualform_studies.assignment import Assignment, named
from dualform_studies.claims import Beside, Claim, claims_table, judge
from dualform_studies.images.datasets import (
    HOME,
    LABEL_NAMES,
    Dataset,
    Images,
    Rows,
    choose_trained,
    draw_split,
    every_row,
    load_dataset,
    read_cifar10,
)
from dualform_studies.images.single import SINGLE_RECIPE, SingleRecipe
from dualform_studies.images.table1 import CELLS, MET, PAPER, ask_checkpoints, cells_met, in_words, over_runs
from dualform_studies.images.training import (
    Checkpoint,
    Recipe,
    batch_rows,
    batches,
    drawn_rows,
    layer_names,
    named_recipe,
    record,
)
from dualform_studies.recorded_memory import open_recorded, reconstruction_report, reconstruction_table
from dualform_studies.report import Cell, Page, Report, Table, bytes_on_disk, check_free, percent

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


CIFAR10_RECIPE = Recipe(steps=5000)
PAPER_ACCURACY = "not above 50 %"

_ACCURACY, _ATTENTION = "Accuracy", "What the predictions attend to"
_SIDE = 32


class ColourDataset(Dataset):
    """A dataset whose images are three planes, red, green and blue, each normalised by itself."""

    def inputs(self, images: Images, rows: Rows = slice(None)) -> NDArray[np.float32]:
        """float32[b, 3 side²]: the rows asked for; every plane with the mean and deviation of that plane."""
        mean, deviation = self._planes
        pixels = images.pixels[rows].reshape(-1, 3, self.side**2).astype(np.float32)
        pixels -= mean
        pixels /= deviation
        return pixels.reshape(len(pixels), -1)

    @cached_property
    def _planes(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and deviation of each plane over the kept training images, float32[3, 1] each, in pixel values."""
        counts = np.stack(
            [
                np.bincount(plane.ravel(), minlength=256)
                for plane in self.train.pixels[self.split.kept].reshape(-1, 3, self.side**2).swapaxes(0, 1)
            ]
        )
        shares, values = counts / counts.sum(axis=1, keepdims=True), np.arange(256)
        mean = shares @ values
        deviation = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1))
        return mean.astype(np.float32)[:, None], deviation.astype(np.float32)[:, None]


def load_cifar10(data: Path | None = None) -> ColourDataset:
    """CIFAR-10 with the split of the paper's code. Raises as `read_cifar10`."""
    train, test = read_cifar10(data)
    return ColourDataset("cifar-10", train, test, _SIDE, LABEL_NAMES, choose_trained(np.arange(len(train))))


def run_cifar10(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train one network; the memory is `out` itself, the page lies in `out/report`.

    `steps` updates (5,000 where none are given). Raises AlreadyExists where `out` holds something, and what
    `load_cifar10` raises.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    recipe = (recipe or CIFAR10_RECIPE).with_steps(assignment.steps)
    dataset = load_cifar10(assignment.data)
    order = batch_rows(dataset.split.trained, recipe, seed, part=0)
    record([dataset], batches(dataset, order), recipe, seed, out, progress=assignment.progress)
    layers, checkpoint = layer_names(recipe.widths(dataset)), Checkpoint(dataset, recipe.steps, last=True)
    [cells], [accuracy] = ask_checkpoints(out, layers, [checkpoint])
    with open_recorded(out) as memory:
        verify = {name: reconstruction_report(reconstruction) for name, reconstruction in memory.verify().items()}
    report: Report = {
        "study": "cifar10",
        "command": assignment.command("cifar10"),
        "seed": seed,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "variant": recipe != CIFAR10_RECIPE,
        "training_images": len(dataset.split.trained),
        "slots": recipe.steps * recipe.batch,
        "accuracy": accuracy,
        "cells": cells,
        "verify": verify,
        "beside_paper": [Beside("accuracy on CIFAR-10", percent(accuracy), text=PAPER_ACCURACY).plain()],
        "disk_bytes": bytes_on_disk(out),
    }
    report["claims"] = [claim.plain() for claim in _claims(report)]
    report["seconds"] = {"all": perf_counter() - start}
    _cifar10_page(out, report).write(report)
    return report


def _claims(report: Report) -> Iterator[Claim]:
    yield judge("single.cifar10", report["accuracy"], percent(report["accuracy"]))


def _cifar10_page(out: Path, report: Report) -> Page:
    page = Page(out, "CIFAR-10 with the paper's classifier (footnote 6)")
    page.paragraph(
        "The paper left CIFAR-10 out, for its small feedforward networks did not get above 50 %. Here a "
        f"network learns it by {named_recipe(variant=report['variant'])}: {report['recipe']}, {report['steps']:,} "
        f"updates on {report['training_images']:,} of the training images. The files are those of `{HOME}`."
    )
    page.show(claims_table(list(_claims(report))))
    page.heading(_ACCURACY)
    page.paragraph(
        f"{percent(report['accuracy'])} of the test images are recognised (one training, seed {report['seed']}); "
        f"the paper: {PAPER_ACCURACY}."
    )
    page.heading(_ATTENTION)
    page.show(_cells(report))
    page.heading("The reconstruction error")
    page.show(reconstruction_table(report["verify"]))
    return page


def _cells(report: Report) -> Table:
    return Table(
        "cells",
        "What Table 1 of the paper asks of MNIST: how often, in per cent, the class that draws most attention is the "
        "true class, or the one recognised.",
        ("layer", "network right", "argmax beside", "here"),
        [
            (layer, *words, in_words(cells[cell], None))
            for layer, cells in report["cells"].items()
            for cell, words in CELLS.items()
        ],
    )
