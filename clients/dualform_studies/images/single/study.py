"""The paper's section 5.2: networks on MNIST, what their predictions attend to, and Table 1 over several runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from dualform_studies.assignment import Assignment
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.kernels.comparison import KernelsRecipe, ask_kernels
from dualform_studies.images.kernels.page import draw_kernels, kernel_claims
from dualform_studies.images.single.page import beside_paper, single_page
from dualform_studies.images.single.views import ask_single
from dualform_studies.images.table1.cells import ask_checkpoints, over_runs
from dualform_studies.images.table1.page import table_1_claims
from dualform_studies.images.training.network import layer_names
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.recorded import Checkpoint, record
from dualform_studies.images.training.stream import batch_rows, batches
from dualform_studies.pages.folder import Report, bytes_on_disk, check_free, report_folder
from dualform_studies.progress import Progress, named


@dataclass(frozen=True)
class SingleRecipe:
    training: Recipe = field(default_factory=lambda: Recipe(steps=5000))
    moments: tuple[int, ...] = (3000,)
    """Numbers of updates, ascending, after which the network is looked at beside the last: the paper's text's."""
    runs: int = 5
    kernels: KernelsRecipe = field(default_factory=KernelsRecipe)

    def with_steps(self, steps: int | None) -> SingleRecipe:
        training = self.training.with_steps(steps)
        return replace(self, training=training, moments=tuple(m for m in self.moments if m < training.steps))

    def checkpoints(self, dataset: Dataset) -> tuple[Checkpoint, ...]:
        earlier = (Checkpoint(dataset, moment) for moment in self.moments)
        return (*earlier, Checkpoint(dataset, self.training.steps, last=True))


SINGLE_RECIPE = SingleRecipe()


def run_single(assignment: Assignment, recipe: SingleRecipe | None = None) -> Report:
    """Train `runs` networks with the seeds that follow `seed`; the first one's memory is `out` and stays.

    `steps` updates each (5,000 where none are given), looked at after 3,000, too, which the paper's text names. Raises
    AlreadyExists where `out` holds something, and what `load_dataset` raises.
    """
    out, start = assignment.out, perf_counter()
    check_free(out)
    recipe = (recipe or SINGLE_RECIPE).with_steps(assignment.steps)
    runs = assignment.runs or recipe.runs
    dataset = load_dataset("mnist", assignment.data)
    layers, checkpoints = layer_names(recipe.training.widths(dataset)), recipe.checkpoints(dataset)
    cells, accuracy, seconds = [], [], []
    for number in range(runs):
        say = named(assignment.progress, f"run {number + 1} of {runs}")
        with _folder(out, number) as folder:
            seconds.append(
                _train(dataset, recipe, assignment.first_seed + number, folder, values=number == 0, progress=say)
            )
            filled, reached = ask_checkpoints(folder, layers, checkpoints)
            cells.append(filled)
            accuracy.append(reached)
    report: Report = {
        "study": "single",
        "command": assignment.command("single"),
        "seed": assignment.first_seed,
        "runs": runs,
        "steps": recipe.training.steps,
        "recipe": recipe.training.in_words(),
        "variant": recipe.training != SINGLE_RECIPE.training,
        "training_images": len(dataset.split.trained),
        "trained_on": dataset.trained_in_words(),
        "accuracy": {str(checkpoint.step): [run[at] for run in accuracy] for at, checkpoint in enumerate(checkpoints)},
        "table_1": {
            str(checkpoint.step): over_runs([run[at] for run in cells]) for at, checkpoint in enumerate(checkpoints)
        },
    }
    report["beside_paper"] = [row.plain() for row in beside_paper(report)]
    report |= ask_single(dataset, layers, checkpoints[-1], out, assignment.progress)
    of_table_1 = table_1_claims(report["table_1"][str(recipe.training.steps)])
    report["claims"] = [*(claim.plain() for claim in of_table_1), *report["claims"]]
    report["kernels"] = ask_kernels(out, dataset, layers, assignment.progress, recipe.kernels)
    draw_kernels(report_folder(out) / "kernels.png", report["kernels"])
    report["claims"] += [claim.plain() for claim in kernel_claims(report["kernels"])]
    report["disk_bytes"] = bytes_on_disk(out)
    report["seconds"] = {"recorded_training": seconds, "all": perf_counter() - start}
    single_page(out, report).write(report)
    return report


def _train(
    dataset: Dataset, recipe: SingleRecipe, seed: int, folder: Path, *, values: bool, progress: Progress | None
) -> float:
    stream = batches(dataset, batch_rows(dataset.split.trained, recipe.training, seed, part=0))
    return record(
        [dataset], stream, recipe.training, seed, folder, moments=recipe.moments, values=values, progress=progress
    )


@contextmanager
def _folder(out: Path, number: int) -> Iterator[Path]:
    """Where a run is recorded: the first stays, the others are gone once they were asked."""
    if number == 0:
        yield out
        return
    with TemporaryDirectory(dir=out, prefix="run-") as folder:
        yield Path(folder)
