"""The studies of images: a configuration for each, and the course that they share.

A study trains the paper's network on its datasets, recorded into the folder of its run, asks the memory, and writes a
page with the paper's figures, its claims, and its figures beside the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment, Progress, named, or_silent
from dualform_studies.claims import Beside, judge
from dualform_studies.images.attention import (
    Seen,
    ask_attention,
    ask_datapoints,
    ask_greatest,
    ask_hubs,
    draw_hubs,
)
from dualform_studies.images.compact import ask_compact, remarks
from dualform_studies.images.datasets import CIFAR10_HOME, Dataset, Split, draw_split, every_row, load_dataset
from dualform_studies.images.kernels import KernelsRecipe, ask_kernels, kernel_claims
from dualform_studies.images.masking import draw_masks, judge_moments, moments, sweep, without
from dualform_studies.images.observations import (
    SIX,
    Findings,
    continual_findings,
    forgetting_claims,
    joint_findings,
    single_findings,
)
from dualform_studies.images.prediction import PaperFigures, draw_example, show_example
from dualform_studies.images.single import (
    CELLS,
    MET,
    PAPER,
    ask_checkpoints,
    ask_dates,
    ask_trends,
    beside_table_1,
    cells_met,
    date_claims,
    in_words,
    over_runs,
    table_1_claims,
    trend_claims,
)
from dualform_studies.images.training import (
    Checkpoint,
    Recipe,
    batch_rows,
    batches,
    drawn_rows,
    epochs,
    layer_names,
    mixed_batches,
    record,
    train_in_succession,
)
from dualform_studies.recorded_memory import open_recorded, verify_report
from dualform_studies.report import Cell, Page, Report, bytes_on_disk, check_free, percent, report_folder


@dataclass(frozen=True)
class ImageStudy:
    name: str
    title: str
    datasets: tuple[str, ...]
    """That are learned."""
    measure: Callable[[Run], Report]
    """Trains and asks. The report has the claims, if any; "accuracy", if any, is by the words of `published`."""
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=5000))
    published: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Accuracies by what they are of: that of the paper's text, and that of its code, which was run again."""
    figures: Mapping[str, PaperFigures] = field(default_factory=dict)
    """By example, the figures of the paper that it stands beside."""
    runs: int = 1
    in_succession: bool = False
    """Whether the datasets are learned one after another, each for the recipe's updates, or are mixed."""
    moments: tuple[int, ...] = ()
    """Numbers of updates, ascending, after which the network is looked at beside the last."""
    kernels: KernelsRecipe = field(default_factory=KernelsRecipe)
    introduction: str = (
        "{which} recipe of the paper's code: {steps:,} updates of {recipe}. Of each dataset the network is trained on "
        "{trained_on}."
    )
    """What the page says first, with the report's values."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a study."""

    study: ImageStudy
    out: Path
    seed: int
    """Of the first training; others have the seeds that follow."""
    runs: int
    recipe: Recipe
    datasets: tuple[Dataset, ...]
    page: Page
    progress: Progress | None

    @property
    def moments(self) -> tuple[int, ...]:
        return tuple(moment for moment in self.study.moments if moment < self.recipe.steps)

    @property
    def layers(self) -> tuple[str, ...]:
        return layer_names(self.recipe.widths(self.datasets[0]))

    def last(self, dataset: Dataset) -> Checkpoint:
        """The end of the training."""
        parts = len(self.datasets) if self.study.in_succession else 1
        return Checkpoint(dataset, parts * self.recipe.steps, last=True)


def run_images(study: ImageStudy, assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    `steps` updates in place of the recipe's. Raises AlreadyExists if `out` holds something, and what `load_dataset`
    raises.
    """
    start = perf_counter()
    check_free(assignment.out)
    recipe = (recipe or study.recipe).with_steps(assignment.steps)
    datasets = tuple(load_dataset(name, assignment.data) for name in study.datasets)
    page, runs, seed = Page(assignment.out, study.title), assignment.runs or study.runs, assignment.first_seed
    report: Report = {
        "study": study.name,
        "command": assignment.command(study.name),
        "seed": seed,
        "runs": runs,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "variant": recipe != study.recipe,
        "trained_on": datasets[0].trained_in_words(),
    }
    page.paragraph(study.introduction.format(**report, which="A variant of the" if report["variant"] else "The"))
    report |= study.measure(Run(study, assignment.out, seed, runs, recipe, datasets, page, assignment.progress))
    report["claims"] = [claim.plain() for claim in report.get("claims", ())]
    report["disk_bytes"] = bytes_on_disk(assignment.out)
    report["beside_paper"] = [] if report["variant"] else [row.plain() for row in _beside(study, report)]
    report["seconds"]["all"] = perf_counter() - start
    page.write(report)
    return report


def _beside(study: ImageStudy, report: Report) -> Iterator[Beside]:
    for what, (text, code) in study.published.items():
        if what in report["accuracy"]:
            yield Beside(what, percent(report["accuracy"][what]), text, code)
    if "table_1" in report:
        yield from beside_table_1(report["table_1"], report["steps"])


def _of_memory(memory: Engine, seconds: object) -> Report:
    """What every study that keeps a memory reports."""
    return {
        "slots": sum(memory.info().slots.values()),
        "verify": verify_report(memory),
        "seconds": {"recorded_training": seconds},
    }


def _observe(run: Run, memory: Engine, find: Callable[[dict[str, Seen]], Findings]) -> tuple[Findings, Report]:
    """What all test images attend to at the end: the findings, hubs, and the examples that show the claims."""
    say, folder, label = or_silent(run.progress), report_folder(run.out), "asking what all test images attend to"
    say(label, 0, 3)
    points = ask_datapoints(memory)
    seen = {
        dataset.name: ask_attention(memory, run.layers, run.last(dataset), run.datasets, points)
        for dataset in run.datasets
    }
    say(label, 1, 3)
    hubs = ask_hubs(memory, list(seen.values()))
    drawn = draw_hubs(folder / "hubs.png", hubs, run.datasets)
    say("drawing figures", 2, 3)
    found, examples = find(seen), {}
    for name, query in found.shown.items():
        if query is not None:
            beside = run.study.figures[name]
            examples[name] = draw_example(memory, query, run.layers, run.datasets, folder, name, beside)
            show_example(run.page, examples[name], beside)
    run.page.figure(
        drawn, "The greatest hubs, by weight and by cosine, which leaves out the length of keys (appendix A)."
    )
    say("drawing figures", 3, 3)
    return found, {"hubs": hubs, "examples": examples}


def _measure_single(run: Run) -> Report:
    """Networks of the seeds that follow; the first one's memory stays."""
    (dataset,) = run.datasets
    looks, seconds = _train_runs(run, RECIPE, run.moments, first=run.out)
    table_1, last = looks[-1]["cells"], run.last(dataset)

    def find(seen: dict[str, Seen]) -> Findings:
        sixes = np.flatnonzero(dataset.test.labels == SIX)
        greatest = [ask_greatest(memory, layer, last, sixes, run.datasets) for layer in run.layers]
        return single_findings(seen[dataset.name], greatest)

    # Each time the memory is opened, the keys that were held, gigabytes of them, have been let go.
    with open_recorded(run.out) as memory:
        found, report = _observe(run, memory, find)
        report |= _of_memory(memory, seconds)
        dates = ask_dates(memory, run.layers, last, ask_datapoints(memory))
    with open_recorded(run.out) as memory:
        trends = ask_trends(memory, run.layers, last)
    kernels = ask_kernels(run.out, dataset, run.layers, run.progress, run.study.kernels)
    claims = [*table_1_claims(table_1), *found.claims, *date_claims(dates, last.step), *trend_claims(trends)]
    return report | {
        "accuracy": {
            f"accuracy after {step:,} updates": sum(look["accuracy"]) / run.runs
            for step, look in reversed(list(zip((*run.moments, run.recipe.steps), looks, strict=True)))
        },
        "table_1": table_1,
        "error_norm_trends": trends,
        "kernels": kernels,
        "claims": [*claims, *kernel_claims(kernels)],
    }


def _measure_joint(run: Run) -> Report:
    """The images of both datasets are put together and gone through in a new order each epoch."""
    stream = mixed_batches(run.datasets, run.recipe, run.seed)
    trained = record(run.datasets, stream, run.recipe, run.seed, run.out, progress=run.progress)
    with open_recorded(run.out) as memory:
        found, report = _observe(run, memory, lambda seen: joint_findings(seen[run.datasets[-1].name]))
        accuracy = {f"accuracy on {one.name}": run.last(one).accuracy(memory) for one in run.datasets}
        return report | _of_memory(memory, trained.seconds) | {"accuracy": accuracy, "claims": found.claims}


def _measure_continual(run: Run) -> Report:
    """One dataset after the other, and what the memory makes of the forgetting: left out of the sum, the second gives
    the earlier network back.
    """
    first, second = pair = run.datasets[0], run.datasets[1]
    trained = train_in_succession(pair, run.recipe, run.seed, record_to=run.out, progress=run.progress)
    with open_recorded(run.out) as memory:
        judged = judge_moments(memory, trained, pair, run.recipe)
        spoilt = judged.interfered()
        found, report = _observe(
            run, memory, lambda seen: continual_findings(seen[first.name], seen[second.name], spoilt)
        )
        report |= _of_memory(memory, trained.seconds)
        report |= {"mask": without(second), "cancellation": dict(memory.cancellation(where=without(second)))}
        report["masks"] = sweep(memory, trained, pair, run.recipe, run.seed, run.progress)
    drawn = draw_masks(report_folder(run.out) / "masks.png", report["masks"], pair)
    run.page.figure(drawn, "Test accuracy with a part of the memory removed, and of a network retrained without it.")
    words = moments(pair)
    return report | {
        "accuracy": {
            f"{dataset}, {words[moment]}": reached
            for dataset, by_moment in judged.accuracy().items()
            for moment, reached in by_moment.items()
        },
        "claims": [*forgetting_claims(judged.recognised(first)), *found.claims],
    }


def _measure_compact(run: Run) -> Report:
    seconds = _record_one(run)
    with open_recorded(run.out) as memory:
        found = ask_compact(memory, run.datasets[0], run.recipe, run.seed)
        return found | _of_memory(memory, seconds) | {"claims": remarks(found)}


def _measure_cifar10(run: Run) -> Report:
    seconds = _record_one(run)
    with open_recorded(run.out) as memory:
        reached = run.last(run.datasets[0]).accuracy(memory)
        claims = [judge("single.cifar10", reached, percent(reached))]
        return _of_memory(memory, seconds) | {"accuracy": {"accuracy on CIFAR-10": reached}, "claims": claims}


def _record_one(run: Run) -> float:
    """Train on the one dataset; seconds of the updates."""
    (dataset,) = run.datasets
    stream = epochs(dataset, run.recipe, run.seed)
    return record([dataset], stream, run.recipe, run.seed, run.out, progress=run.progress).seconds


@dataclass(frozen=True)
class Variant:
    """The recipe of a study with one thing changed."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the recipe, by field."""
    split: Callable[[int], Split] = draw_split
    """Which of so many images are trained on."""
    replacement: bool = False
    """Whether an image may come twice before another comes once."""


RECIPE = Variant("the recipe")
VARIANTS = (
    Variant("another draw of the training images", split=lambda images: draw_split(images, 1)),
    Variant("all training images", split=every_row),
    Variant("batches drawn with replacement", replacement=True),
    Variant("no clipping", {"clip": float("inf")}),
    Variant("no momentum", {"momentum": 0.0}),
)


def _train_runs(
    run: Run, variant: Variant, at: Sequence[int] = (), first: Path | None = None
) -> tuple[list[Report], list[float]]:
    """Train `runs` networks; the accuracies of all and the cells of Table 1 `at` moments and at the end, and the
    seconds of each. The first memory stays in the folder `first`, the others are gone once they were asked.
    """
    dataset = run.datasets[0]
    recipe, own = replace(run.recipe, **variant.changes), replace(dataset, split=variant.split(len(dataset.train)))
    checkpoints = [*(Checkpoint(own, step) for step in at), run.last(own)]
    cells, accuracy, seconds, rows = [], [], [], own.split.trained
    run.out.mkdir(parents=True, exist_ok=True)
    for seed in range(run.seed, run.seed + run.runs):
        stays = first is not None and seed == run.seed
        place: AbstractContextManager[Any] = nullcontext(first) if stays else TemporaryDirectory(dir=run.out)
        with place as folder:
            order = drawn_rows(rows, recipe, seed) if variant.replacement else batch_rows(rows, recipe, seed, part=0)
            say = named(run.progress, f"{variant.name}, seed {seed}")
            trained = record(
                [own], batches(own, order), recipe, seed, Path(folder), moments=at, values=stays, progress=say
            )
            filled, reached = ask_checkpoints(Path(folder), run.layers, checkpoints)
            cells.append(filled)
            accuracy.append(reached)
            seconds.append(trained.seconds)
    looks = zip(zip(*accuracy, strict=True), zip(*cells, strict=True), strict=True)
    return [{"accuracy": list(reached), "cells": over_runs(filled)} for reached, filled in looks], seconds


def _measure_variants(run: Run) -> Report:
    """Train the recipe and each variant, and fill the cells of Table 1; no memory stays.

    Fewer updates are a variant, too, and no training of their own: the recipe's networks are looked at on their way.
    """
    (*earlier, last), _ = _train_runs(run, RECIPE, run.moments)
    variants = {RECIPE.name: last}
    variants |= {f"{step:,} updates": found for step, found in zip(run.moments, earlier, strict=True)}
    for variant in VARIANTS:
        (variants[variant.name],), _ = _train_runs(run, variant)
    short = {"no_target": "no, true", "no_output": "no, recognised", "yes": "yes"}
    columns = ["variant", "accuracy", *(f"{layer} {short[cell]}" for layer in PAPER for cell in CELLS), "cells met"]
    rows: list[list[Cell]] = [
        ["the paper", "97", *(in_words(*paper) for cells in PAPER.values() for paper in cells.values()), "-"]
    ]
    for name, found in variants.items():
        cells = (found["cells"][layer][cell] for layer in PAPER for cell in CELLS)
        means = (in_words(one["mean"], one["deviation"]) for one in cells)
        rows.append([name, f"{100 * np.mean(found['accuracy']):.1f}", *means, cells_met(found["cells"])])
    runs = "one run" if run.runs == 1 else f"mean and standard deviation of {run.runs} runs"
    caption = (
        f"Table 1 in per cent: {runs} of each variant, mean and standard deviation of five runs for the paper. "
        '"No" and "yes" say whether the network is right, the last column how many of the nine cells are met: '
        f"{MET}."
    )
    run.page.table("cells", caption, columns, rows)
    return {"variants": variants, "seconds": {}}


SINGLE = ImageStudy(
    "single",
    "Single task: MNIST (section 5.2)",
    ("mnist",),
    _measure_single,
    published={
        "accuracy after 5,000 updates": ("", "97.2 %, 97.4 %"),
        "accuracy after 3,000 updates": ("97 %", ""),
    },
    figures={
        "digit-6": PaperFigures("Figure 4", "Figure 5", "Figure 10"),
        "digit-3": PaperFigures("Figure 14", "Figure 15", "Figure 13"),
    },
    runs=5,
    moments=(3000,),
)
JOINT = ImageStudy(
    "joint",
    "Joint training: MNIST and Fashion-MNIST mixed (section 5.3)",
    ("mnist", "fashion-mnist"),
    _measure_joint,
    published={"accuracy on mnist": ("97 %", "96.1 %"), "accuracy on fashion-mnist": ("87 %", "87.0 %")},
    figures={
        "ankle-boot": PaperFigures("Figure 6", "Figure 7", "Figure 11"),
        "dress": PaperFigures("Figure 17", "Figure 18", "Figure 16"),
        "sandal": PaperFigures("Figure 20", "Figure 21", "Figure 19"),
    },
)
CONTINUAL = ImageStudy(
    "continual",
    "Continual learning: MNIST, then Fashion-MNIST (section 5.4)",
    ("mnist", "fashion-mnist"),
    _measure_continual,
    Recipe(steps=3000),
    in_succession=True,
    published={
        "mnist, after mnist": ("97 %", "96.4 %"),
        "mnist, at the end": ("45 %", "47.8 %"),
        "fashion-mnist, at the end": ("85 %", "87.6 %"),
        "mnist, at the end, fashion-mnist removed": ("as after MNIST", ""),
    },
    figures={
        "interference": PaperFigures("Figure 8", "Figure 9", "Figure 22"),
        "recognised-mnist": PaperFigures("Figure 27", "Figure 28", "Figure 26"),
        "recognised-fashion-mnist": PaperFigures("Figure 24", "Figure 25", "Figure 23"),
    },
)
COMPACT = ImageStudy(
    "compact",
    "The memory shuffled, sidestepped and compacted (remarks 3.1, 3.3 and 3.4)",
    ("mnist",),
    _measure_compact,
)
CIFAR10 = ImageStudy(
    "cifar10",
    f"CIFAR-10 ({CIFAR10_HOME}) with the paper's classifier (footnote 6)",
    ("cifar-10",),
    _measure_cifar10,
    published={"accuracy on CIFAR-10": ("not above 50 %", "")},
)
SINGLE_VARIANTS = ImageStudy(
    "single-variants",
    "Single task: what moves the cells of Table 1",
    ("mnist",),
    _measure_variants,
    runs=2,
    moments=(3000,),
    introduction="The single-task study with one thing changed at a time; no memory is kept. The recipe: {steps:,} "
    "updates of {recipe}. Each network is trained on {trained_on}. The runs of a variant have the recipe's seeds. A "
    "variant that draws other images also has their mean and deviation.",
)
