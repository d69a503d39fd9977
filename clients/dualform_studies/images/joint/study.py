"""The paper's section 5.3: MNIST and Fashion-MNIST learned together, and attention across the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment
from dualform_studies.images.claims.crossing import crossing
from dualform_studies.images.claims.dates import Period
from dualform_studies.images.claims.examined import ask_all_attention, ask_hubs_and_dates
from dualform_studies.images.claims.joint import joint_findings
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.data.split import every_row
from dualform_studies.images.joint.page import beside_paper, joint_page
from dualform_studies.images.prediction.example import PaperFigures, draw_example
from dualform_studies.images.table1.cells import ask_accuracy
from dualform_studies.images.training.network import accuracy, build_network, layer_names
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.recorded import Checkpoint, record
from dualform_studies.images.training.stream import mixed_batches
from dualform_studies.images.training.updates import train
from dualform_studies.pages.folder import Report, bytes_on_disk, check_free, report_folder
from dualform_studies.progress import Progress, counting, or_silent
from dualform_studies.reconstructions import reconstruction_report
from dualform_studies.recorded_memory import open_recorded

JOINT_RECIPE = Recipe(steps=5000)

BESIDE = {
    "ankle-boot": PaperFigures("Figure 6", "Figure 7", "Figure 11"),
    "dress": PaperFigures("Figure 17", "Figure 18", "Figure 16"),
    "sandal": PaperFigures("Figure 20", "Figure 21", "Figure 19"),
}
"""The test images of Fashion-MNIST whose attention is drawn."""


def run_joint(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train on both datasets mixed; the memory is `out` itself, the page and report.json lie in `out/report`.

    `steps` updates (5,000 where none are given). The accuracies of two variants stand beside the recipe's own. Raises
    AlreadyExists where `out` holds something, and what `load_dataset` raises.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    recipe = (recipe or JOINT_RECIPE).with_steps(assignment.steps)
    datasets = tuple(load_dataset(name, assignment.data) for name in ("mnist", "fashion-mnist"))
    seconds = record(datasets, mixed_batches(datasets, recipe, seed), recipe, seed, out, progress=assignment.progress)
    report = _examine(out, datasets, recipe, assignment.progress)
    report |= {
        "study": "joint",
        "command": assignment.command("joint"),
        "seed": seed,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "variant": recipe != JOINT_RECIPE,
        "training_images": sum(len(dataset.split.trained) for dataset in datasets),
        "trained_on": datasets[0].trained_in_words(),
        "variants": _variants(datasets, recipe, seed, assignment.progress),
        "disk_bytes": bytes_on_disk(out),
    }
    report["beside_paper"] = [row.plain() for row in beside_paper(report)]
    report["seconds"] = {"recorded_training": seconds, "all": perf_counter() - start}
    joint_page(out, report, BESIDE).write(report)
    return report


def _variants(datasets: Sequence[Dataset], recipe: Recipe, seed: int, progress: Progress | None) -> Report:
    """Test accuracies by dataset of networks trained otherwise in one thing, without a record."""
    whole = [replace(dataset, split=every_row(len(dataset.train))) for dataset in datasets]
    images = sum(len(dataset.train) for dataset in datasets)
    variants = {
        "no clipping": (datasets, replace(recipe, clip=float("inf"))),
        f"all {images:,} training images": (whole, recipe),
    }
    report: Report = {}
    for name, (own, variant) in variants.items():
        network = build_network(variant.widths(own[0]), seed)
        tell = counting(progress, f"variant: {name}", variant.steps)
        stream = mixed_batches(own, variant, seed)
        train(network, variant.optimizer(network), stream, variant.clip, tell=tell)
        report[name] = {dataset.name: accuracy(network, dataset) for dataset in own}
    return report


def _examine(out: Path, datasets: Sequence[Dataset], recipe: Recipe, progress: Progress | None) -> Report:
    """Everything that the memory is asked, and the figures. Its keys, gigabytes of them, are let go on return."""
    with open_recorded(out) as memory:
        return _ask(memory, datasets, recipe, report_folder(out), progress)


def _ask(
    memory: Engine, datasets: Sequence[Dataset], recipe: Recipe, folder: Path, progress: Progress | None
) -> Report:
    say = or_silent(progress)
    layers = layer_names(recipe.widths(datasets[0]))
    checkpoints = {dataset.name: Checkpoint(dataset, recipe.steps, last=True) for dataset in datasets}
    say("asking what all test images attend to", 0, 3)
    attention = ask_all_attention(memory, layers, list(checkpoints.values()), datasets)
    points, fashion = attention.datapoints, checkpoints[datasets[1].name]
    found = joint_findings(attention.layers[datasets[1].name], points, fashion, fashion.classes_given(memory))
    say("drawing figures", 1, 3)
    examples = {
        name: draw_example(memory, choice.query, layers, datasets, folder, name, BESIDE[name], how=choice.how)
        for name, choice in found.shown.items()
    }
    queries = [choice.query for choice in found.shown.values()]
    periods = dict.fromkeys(checkpoints, Period(0, recipe.steps, f"step < {recipe.steps}"))
    measured, claims = ask_hubs_and_dates(memory, attention, queries, periods, folder)
    report: Report = measured | {
        "slots": sum(memory.info().slots.values()),
        "accuracy": {name: ask_accuracy(memory, checkpoint) for name, checkpoint in checkpoints.items()},
        "prevalence": [row.plain() for row in found.rows],
        "claims": [claim.plain() for claim in (*found.claims, *claims)],
        "examples": examples,
        "crossing": {name: crossing(layers, points, name) for name, layers in attention.layers.items()},
    }
    say("checking the reconstruction error", 2, 3)
    report["verify"] = {name: reconstruction_report(reconstruction) for name, reconstruction in memory.verify().items()}
    say("checking the reconstruction error", 3, 3)
    return report
