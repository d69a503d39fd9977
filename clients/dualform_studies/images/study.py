"""The studies of images: a configuration for each, and the course that they share.

A study trains the paper's network on its datasets, recorded into the folder of its run, asks the memory, and writes a
page with the paper's figures, its claims, and its figures beside the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment, Progress, named, or_silent
from dualform_studies.claims import Beside, Claim, judge
from dualform_studies.images.attention import (
    Datapoints,
    LayerAttention,
    ask_attention,
    ask_datapoints,
    ask_greatest,
    ask_key_norms,
)
from dualform_studies.images.compact import ask_compact, remarks
from dualform_studies.images.datasets import CIFAR10_HOME, Dataset, Split, draw_split, every_row, load_dataset
from dualform_studies.images.dates import ask_dates, date_claims
from dualform_studies.images.error_norm import ask_trends, trend_claims
from dualform_studies.images.hubs import ask_hubs, draw_hubs, hubs_report
from dualform_studies.images.kernels import KernelsRecipe, ask_kernels, kernel_claims
from dualform_studies.images.masking import draw_masks, parts, retrain, sweep
from dualform_studies.images.observations import (
    SIX,
    Findings,
    choose_recognised_as,
    continual_findings,
    crossing_prevalence,
    forgetting_claims,
    joint_findings,
    single_findings,
)
from dualform_studies.images.prediction import PaperFigures, draw_example, show_example
from dualform_studies.images.table1 import (
    CELLS,
    MET,
    PAPER,
    ask_accuracy,
    ask_checkpoints,
    beside_table_1,
    cells_met,
    in_words,
    over_runs,
    table_1_claims,
)
from dualform_studies.images.training import (
    Checkpoint,
    Recipe,
    batch_rows,
    batches,
    drawn_rows,
    judge_moments,
    layer_names,
    mixed_batches,
    moments,
    record,
    train_in_succession,
    weights_by_moment,
    without,
)
from dualform_studies.recorded_memory import open_recorded, verify_report
from dualform_studies.report import Cell, Page, Report, bytes_on_disk, check_free, percent, report_folder


@dataclass(frozen=True)
class ImageStudy:
    name: str
    title: str
    datasets: tuple[str, ...]
    """That are learned, in this order where they are learned one after another."""
    measure: Callable[[Run], Report]
    """Trains and asks. The report has at least "claims" and "accuracy", the latter by the words of `published`."""
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=5000))
    published: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Accuracies by what they are of: that of the paper's text, and that of its code, which was run again."""
    figures: Mapping[str, PaperFigures] = field(default_factory=dict)
    """By example, the figures of the paper that it stands beside."""
    runs: int = 1
    moments: tuple[int, ...] = ()
    """Numbers of updates, ascending, after which the network is looked at beside the last."""
    kernels: KernelsRecipe = field(default_factory=KernelsRecipe)


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a study."""

    study: ImageStudy
    assignment: Assignment
    recipe: Recipe
    datasets: tuple[Dataset, ...]

    @property
    def out(self) -> Path:
        return self.assignment.out

    @property
    def seed(self) -> int:
        return self.assignment.first_seed

    @property
    def runs(self) -> int:
        return self.assignment.runs or self.study.runs

    @property
    def progress(self) -> Progress | None:
        return self.assignment.progress

    @property
    def moments(self) -> tuple[int, ...]:
        return tuple(moment for moment in self.study.moments if moment < self.recipe.steps)

    @property
    def layers(self) -> tuple[str, ...]:
        return layer_names(self.recipe.widths(self.datasets[0]))

    def record(self) -> float:
        """Train on the one dataset; seconds of the updates."""
        stream = batches(self.datasets[0], batch_rows(self.datasets[0].split.trained, self.recipe, self.seed, part=0))
        return record(self.datasets, stream, self.recipe, self.seed, self.out, progress=self.progress)


def run_images(study: ImageStudy, assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    `steps` updates in place of the recipe's. Raises AlreadyExists where `out` holds something, and what `load_dataset`
    raises.
    """
    start = perf_counter()
    check_free(assignment.out)
    recipe = (recipe or study.recipe).with_steps(assignment.steps)
    datasets = tuple(load_dataset(name, assignment.data) for name in study.datasets)
    run = Run(study, assignment, recipe, datasets)
    report: Report = {
        "study": study.name,
        "command": assignment.command(study.name),
        "seed": run.seed,
        "runs": run.runs,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "variant": recipe != study.recipe,
        "trained_on": datasets[0].trained_in_words(),
    }
    page = Page(run.out, study.title)
    page.paragraph(
        f"{'A variant of the' if report['variant'] else 'The'} recipe of the paper's code: {recipe.steps:,} updates of "
        f"{report['recipe']}. Of each dataset the network is trained on {report['trained_on']}."
    )
    report |= study.measure(run)
    report |= {"claims": [claim.plain() for claim in report["claims"]], "disk_bytes": bytes_on_disk(run.out)}
    report["beside_paper"] = [] if report["variant"] else [row.plain() for row in _beside(study, report)]
    report["seconds"] = {"recorded_training": report.pop("recorded_seconds"), "all": perf_counter() - start}
    for name, example in report.get("examples", {}).items():
        show_example(page, example, study.figures[name])
    _show(page, "hubs", "The greatest hubs, by weight and by cosine, which leaves out the length of keys (appendix A).")
    _show(page, "masks", "Test accuracy with a part of the memory removed, and of a network retrained without it.")
    page.write(report)
    return report


def _beside(study: ImageStudy, report: Report) -> Iterator[Beside]:
    for what, (text, code) in study.published.items():
        if what in report["accuracy"]:
            yield Beside(what, percent(report["accuracy"][what]), text, code)
    if "table_1" in report:
        yield from beside_table_1(report["table_1"], report["steps"])


def _show(page: Page, name: str, caption: str) -> None:
    path = report_folder(page.run) / f"{name}.png"
    if path.is_file():
        page.figure(path, caption)


@dataclass(frozen=True, eq=False)
class Asked:
    """What all test images attend to at the end of a training, by the name of their dataset."""

    attention: Mapping[str, Sequence[LayerAttention]]
    checkpoints: Mapping[str, Checkpoint]
    given: Mapping[str, NDArray[np.int64]]
    """int64[n]: the class that the network gives each test image."""
    datapoints: Datapoints


def _ask(run: Run, memory: Engine, updates: int, observe: Callable[[Asked], Findings]) -> Report:
    """Claims and the examples that show them, hubs, and the reconstruction error, of a memory of so many updates."""
    say, folder = or_silent(run.progress), report_folder(run.out)
    say("asking what all test images attend to", 0, 3)
    points = ask_datapoints(memory)
    checkpoints = {dataset.name: Checkpoint(dataset, updates, last=True) for dataset in run.datasets}
    asked = Asked(
        {name: ask_attention(memory, run.layers, one, run.datasets, points) for name, one in checkpoints.items()},
        checkpoints,
        {name: checkpoint.classes_given(memory) for name, checkpoint in checkpoints.items()},
        points,
    )
    say("asking what all test images attend to", 1, 3)
    norms = {layer: ask_key_norms(memory, layer) for layer in run.layers}
    both = [(checkpoints[name], attention) for name, attention in asked.attention.items()]
    hubs = hubs_report(ask_hubs(memory, both, points, norms), points)
    draw_hubs(folder / "hubs.png", hubs, run.datasets)
    say("drawing figures", 2, 3)
    found = observe(asked)
    examples = {
        name: draw_example(memory, query, run.layers, run.datasets, folder, name, run.study.figures[name])
        for name, query in found.shown.items()
        if query is not None
    }
    say("drawing figures", 3, 3)
    return {
        "slots": sum(memory.info().slots.values()),
        "claims": list(found.claims),
        "hubs": hubs,
        "examples": examples,
        "verify": verify_report(memory),
    }


def _measure_single(run: Run) -> Report:
    """Networks of the seeds that follow; the first one's memory stays."""
    (dataset,) = run.datasets
    checkpoints = _checkpoints(run, dataset)
    cells, accuracy, seconds = [], [], []
    for number in range(run.runs):
        with _folder(run.out, number) as folder:
            stream = batches(dataset, batch_rows(dataset.split.trained, run.recipe, run.seed + number, part=0))
            seconds.append(
                record(
                    run.datasets,
                    stream,
                    run.recipe,
                    run.seed + number,
                    folder,
                    moments=run.moments,
                    values=number == 0,
                    progress=named(run.progress, f"run {number + 1} of {run.runs}"),
                )
            )
            filled, reached = ask_checkpoints(folder, run.layers, checkpoints)
            cells.append(filled[-1])
            accuracy.append(reached)
    table_1 = over_runs(cells)
    # Each time the memory is opened, the keys that were held, gigabytes of them, have been let go.
    with open_recorded(run.out) as memory:
        report = _ask(run, memory, run.recipe.steps, lambda asked: _observe_single(run, memory, asked))
        dates = ask_dates(memory, run.layers, checkpoints[-1], ask_datapoints(memory))
    with open_recorded(run.out) as memory:
        trends = ask_trends(memory, run.layers, checkpoints[-1])
    kernels = ask_kernels(run.out, dataset, run.layers, run.progress, run.study.kernels)
    claims = [*table_1_claims(table_1), *report["claims"], *date_claims(dates)]
    claims += [*trend_claims(trends), *kernel_claims(kernels)]
    return report | {
        "accuracy": {
            f"accuracy after {one.step:,} updates": sum(found) / len(found)
            for one, found in reversed(list(zip(checkpoints, zip(*accuracy, strict=True), strict=True)))
        },
        "table_1": table_1,
        "error_norm_trends": trends,
        "kernels": kernels,
        "claims": claims,
        "recorded_seconds": seconds,
    }


def _checkpoints(run: Run, dataset: Dataset) -> list[Checkpoint]:
    return [*(Checkpoint(dataset, step) for step in run.moments), Checkpoint(dataset, run.recipe.steps, last=True)]


@contextmanager
def _folder(out: Path, number: int) -> Iterator[Path]:
    """Where a run is recorded: the first stays, the others are gone once they were asked."""
    if number == 0:
        yield out
        return
    with TemporaryDirectory(dir=out, prefix="run-") as folder:
        yield Path(folder)


def _observe_single(run: Run, memory: Engine, asked: Asked) -> Findings:
    (dataset,) = run.datasets
    checkpoint, sixes = asked.checkpoints[dataset.name], np.flatnonzero(dataset.test.labels == SIX)
    greatest = {layer: np.zeros((len(dataset.test), len(dataset.label_names))) for layer in run.layers}
    for layer, weights in greatest.items():
        weights[sixes] = ask_greatest(memory, layer, checkpoint, sixes, run.datasets)
    attention, given = asked.attention[dataset.name], asked.given[dataset.name]
    return single_findings(attention, greatest, asked.datapoints, checkpoint, given)


def _measure_joint(run: Run) -> Report:
    """The images of both datasets are put together and gone through in a new order each epoch."""
    stream = mixed_batches(run.datasets, run.recipe, run.seed)
    seconds = record(run.datasets, stream, run.recipe, run.seed, run.out, progress=run.progress)
    name = run.datasets[-1].name
    with open_recorded(run.out) as memory:
        report = _ask(
            run,
            memory,
            run.recipe.steps,
            lambda asked: joint_findings(
                asked.attention[name], asked.datapoints, asked.checkpoints[name], asked.given[name]
            ),
        )
        reached = {
            f"accuracy on {dataset.name}": ask_accuracy(memory, Checkpoint(dataset, run.recipe.steps, last=True))
            for dataset in run.datasets
        }
    return report | {"accuracy": reached, "recorded_seconds": seconds}


_RECOGNISED = (7, 3)
"""The paper's two other examples: an MNIST "7" and a Fashion-MNIST dress."""


def _measure_continual(run: Run) -> Report:
    """One dataset after the other, and what the memory makes of the forgetting: left out of the sum, the second gives
    the earlier network back.
    """
    first, second = pair = run.datasets[0], run.datasets[1]
    trained = train_in_succession(pair, run.recipe, run.seed, record_to=run.out, progress=run.progress)
    chosen = parts(second)
    retrained = retrain(trained, chosen, pair, run.recipe, run.seed, run.progress)
    with open_recorded(run.out) as memory:
        judged = judge_moments(weights_by_moment(memory, trained, pair, run.recipe), pair, run.recipe)
        spoilt = np.zeros(len(first.test), dtype=np.bool_)
        spoilt[judged.interfered()] = True

        def observe(asked: Asked) -> Findings:
            found = continual_findings(
                asked.attention[first.name],
                crossing_prevalence(asked.attention[second.name], asked.datapoints, second.name),
                asked.checkpoints[first.name],
                second.name,
                asked.given[first.name],
                spoilt,
            )
            recognised = {
                f"recognised-{dataset.name}": choose_recognised_as(dataset, asked.given[dataset.name], label)
                for dataset, label in zip(pair, _RECOGNISED, strict=True)
            }
            return replace(found, shown={**found.shown, **recognised})

        report = _ask(run, memory, 2 * run.recipe.steps, observe)
        report |= {"mask": without(second), "cancellation": dict(memory.cancellation(where=without(second)))}
        masks = sweep(memory, chosen, retrained, trained, pair, run.recipe, run.progress)
    draw_masks(report_folder(run.out) / "masks.png", masks, pair)
    words = {moment: said.replace("\n", " ") for moment, said in moments(pair).items()}
    return report | {
        "accuracy": {
            f"{dataset}, {words[moment]}": reached
            for dataset, by_moment in judged.accuracy().items()
            for moment, reached in by_moment.items()
        },
        "masks": masks,
        "claims": [*forgetting_claims(judged.recognised(first)), *report["claims"]],
        "recorded_seconds": trained.seconds,
    }


def _measure_compact(run: Run) -> Report:
    seconds = run.record()
    with open_recorded(run.out) as memory:
        found = ask_compact(memory, run.datasets[0], run.recipe, run.seed)
        slots, verify = sum(memory.info().slots.values()), verify_report(memory)
    return found | {"slots": slots, "verify": verify, "claims": list(remarks(found)), "recorded_seconds": seconds}


def _measure_cifar10(run: Run) -> Report:
    seconds = run.record()
    with open_recorded(run.out) as memory:
        reached = ask_accuracy(memory, Checkpoint(run.datasets[0], run.recipe.steps, last=True))
        slots, verify = sum(memory.info().slots.values()), verify_report(memory)
    claims: list[Claim] = [judge("single.cifar10", reached, percent(reached))]
    return {
        "slots": slots,
        "accuracy": {"accuracy on CIFAR-10": reached},
        "verify": verify,
        "claims": claims,
        "recorded_seconds": seconds,
    }


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


@dataclass(frozen=True)
class Variant:
    """The recipe of SINGLE with one thing changed."""

    name: str
    change: Callable[[Recipe], Recipe] = lambda recipe: recipe
    split: Callable[[int], Split] = draw_split
    """Which of so many images are trained on."""
    replacement: bool = False
    """Whether an image may come twice before another comes once."""


RECIPE = Variant("the recipe")
VARIANTS = (
    Variant("another draw of the training images", split=lambda images: draw_split(images, 1)),
    Variant("all training images", split=every_row),
    Variant("batches drawn with replacement", replacement=True),
    Variant("no clipping", lambda recipe: replace(recipe, clip=float("inf"))),
    Variant("no momentum", lambda recipe: replace(recipe, momentum=0.0)),
)


def run_variants(assignment: Assignment, study: ImageStudy = SINGLE) -> Report:
    """Train the recipe and each variant `runs` times (2 where none are given) and fill the cells of Table 1.

    No memory stays. Fewer updates are a variant, too, and no training of their own: the recipe's networks are looked at
    on their way. Raises as `run_images`.
    """
    start = perf_counter()
    check_free(assignment.out)
    assignment.out.mkdir(parents=True, exist_ok=True)
    recipe, runs = study.recipe.with_steps(assignment.steps), assignment.runs or 2
    dataset = load_dataset("mnist", assignment.data)
    run = Run(study, replace(assignment, runs=runs), recipe, (dataset,))
    *earlier, last = _fill(run, RECIPE)
    variants = {RECIPE.name: last}
    variants |= {f"{step:,} updates": found for step, found in zip(run.moments, earlier, strict=True)}
    for variant in VARIANTS:
        (variants[variant.name],) = _fill(replace(run, study=replace(study, moments=())), variant)
    report: Report = {
        "study": "single-variants",
        "command": assignment.command("single-variants"),
        "seed": run.seed,
        "runs": runs,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "trained_on": dataset.trained_in_words(),
        "variants": variants,
        "seconds": {"all": perf_counter() - start},
    }
    page = Page(assignment.out, "Single task: what moves the cells of Table 1")
    page.paragraph(
        f"The single-task study with one thing changed at a time; no memory is kept. The recipe: {recipe.steps:,} "
        f"updates of {report['recipe']}. Each network is trained on {report['trained_on']}. The runs of a variant have "
        "the recipe's seeds. A variant that draws other images also has their mean and deviation."
    )
    _show_variants(page, report)
    page.write(report)
    return report


def _fill(run: Run, variant: Variant) -> list[Report]:
    """By checkpoint: the accuracies of all runs, and the cells."""
    (dataset,) = run.datasets
    recipe, own = variant.change(run.recipe), replace(dataset, split=variant.split(len(dataset.train)))
    cells, accuracy, rows = [], [], own.split.trained
    for seed in range(run.seed, run.seed + run.runs):
        say = named(run.progress, f"{variant.name}, seed {seed}")
        with TemporaryDirectory(dir=run.out, prefix="run-") as folder:
            order = drawn_rows(rows, recipe, seed) if variant.replacement else batch_rows(rows, recipe, seed, part=0)
            stream = batches(own, order)
            record([own], stream, recipe, seed, Path(folder), moments=run.moments, values=False, progress=say)
            filled, reached = ask_checkpoints(Path(folder), run.layers, _checkpoints(run, own))
            cells.append(filled)
            accuracy.append(reached)
    return [
        {"accuracy": list(reached), "cells": over_runs(filled)}
        for reached, filled in zip(zip(*accuracy, strict=True), zip(*cells, strict=True), strict=True)
    ]


def _show_variants(page: Page, report: Report) -> None:
    short = {"no_target": "no, true", "no_output": "no, recognised", "yes": "yes"}
    columns = ["variant", "accuracy", *(f"{layer} {short[cell]}" for layer in PAPER for cell in CELLS), "cells met"]
    rows: list[list[Cell]] = [
        ["the paper", "97", *(in_words(*paper) for cells in PAPER.values() for paper in cells.values()), "-"]
    ]
    for name, found in report["variants"].items():
        cells = (found["cells"][layer][cell] for layer in PAPER for cell in CELLS)
        means = (in_words(one["mean"], one["deviation"]) for one in cells)
        rows.append([name, f"{100 * np.mean(found['accuracy']):.1f}", *means, cells_met(found["cells"])])
    runs = "one run" if report["runs"] == 1 else f"mean and standard deviation of {report['runs']} runs"
    caption = (
        f"Table 1 in per cent: {runs} of each variant, mean and standard deviation of five runs for the paper. "
        '"No" and "yes" say whether the network is right, the last column how many of the nine cells are met: '
        f"{MET}."
    )
    page.table("cells", caption, columns, rows)
