"""The study `joint`: MNIST and Fashion-MNIST mixed (the paper's section 5.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment, Progress, counting, or_silent
from dualform_studies.claims import Beside, Claim, claims_table
from dualform_studies.images.attention import TOP, Datapoints, LayerAttention
from dualform_studies.images.datasets import Dataset, every_row, load_dataset
from dualform_studies.images.dates import Period
from dualform_studies.images.observations import (
    EVERY,
    SOME,
    Findings,
    Prevalence,
    choose_showing,
    crossing,
    crossing_claim,
    crossing_prevalence,
    crossing_table,
    near_others,
    over_layers,
    prevalence_claim,
)
from dualform_studies.images.prediction import PaperFigures, draw_example, show_example, strongest_table
from dualform_studies.images.survey import ask_all_attention, ask_hubs_and_dates, show_dates, show_hubs, show_prevalence
from dualform_studies.images.table1 import ask_accuracy
from dualform_studies.images.training import (
    Checkpoint,
    Recipe,
    accuracy,
    build_network,
    layer_names,
    mixed_batches,
    named_recipe,
    record,
    train,
)
from dualform_studies.recorded_memory import open_recorded, reconstruction_report, reconstruction_table
from dualform_studies.report import Page, Report, Table, bytes_on_disk, check_free, percent, report_folder

DRESS, COAT, SANDAL, BOOT = 3, 4, 5, 9
_DIGITS = "mnist"
_OWN = f"all {TOP} best images are boots"
_COAT = "coat has the greatest sum"
_GAINS = "the query's own class has a greater share of all attention at the last layer than at the first"
_CLIMBS = "the rank of the query's own class among the sums is better at the last layer than at the first"
_NEAR = f"MNIST is among the {TOP} best images"
_FAR = f"MNIST is not among the {TOP} best images"
_FIVE = f"an MNIST 5 is among the {TOP} best images"
_DISAGREES = "the class of the greatest sum is not the one recognised"


def joint_findings(
    attention: Sequence[LayerAttention], datapoints: Datapoints, checkpoint: Checkpoint, given: NDArray[np.int64]
) -> Findings:
    """The observations of Fashion-MNIST, whose test images are the checkpoint's.

    `given` is int64[n], the class that the network gives each test image.
    """
    dataset = checkpoint.dataset
    labels = dataset.test.labels
    right = given == labels
    first, last = attention[0], attention[-1]
    own = first.columns(dataset.name, labels)
    before, after = (one.shares[np.arange(len(own)), own] for one in (first, last))
    gains = after > before
    climbs = last.ranks(own) < first.ranks(own)
    leader = {one.layer: np.array([label for _, label in one.groups])[one.leading()] for one in attention}
    coat = first.leading() == first.columns(dataset.name, np.array([COAT]))
    near = near_others(attention, datapoints, dataset.name)
    five = (datapoints.image_datasets == _DIGITS) & (datapoints.image_labels == SANDAL)
    boots_alone = (datapoints.image_datasets == dataset.name) & (datapoints.image_labels == BOOT)
    fives = {one.layer: five[one.best].any(axis=1) for one in attention}
    all_own = {first.layer: boots_alone[first.best].all(axis=1)}

    everything = "recognised Fashion-MNIST test images"
    boot = "recognised boots", right & (labels == BOOT)
    dress = "recognised dresses", right & (labels == DRESS)
    sandal = "recognised sandals", right & (labels == SANDAL)
    boot_own = over_layers(_OWN, *boot, all_own)[0]
    boot_coat = over_layers(_COAT, *boot, {first.layer: coat})[0]
    boot_gains = Prevalence(_GAINS, last.layer, *boot, gains)
    boot_near = over_layers(_NEAR, *boot, near)
    dress_far = over_layers(_FAR, *dress, {layer: ~seen for layer, seen in near.items()}, EVERY)
    sandal_five = over_layers(_FIVE, *sandal, fives, SOME)
    sandal_differs = over_layers(_DISAGREES, *sandal, {layer: label != given for layer, label in leader.items()})
    crossed = crossing_prevalence(attention, datapoints, dataset.name)
    behind = right & (first.ranks(own) > 1)
    rows = [
        boot_own,
        boot_coat,
        boot_gains,
        Prevalence(_CLIMBS, last.layer, *boot, climbs),
        Prevalence(_GAINS, last.layer, everything, right, gains),
        Prevalence(_CLIMBS, last.layer, everything, right, climbs),
        Prevalence(_CLIMBS, last.layer, f"{everything}, not first at {first.layer}", behind, climbs),
        *boot_near,
        *dress_far,
        *sandal_five,
        *sandal_differs,
        *over_layers(_DISAGREES, everything, right, {layer: label != given for layer, label in leader.items()}),
        *crossed,
    ]
    claims = [
        *prevalence_claim("joint.boots", boot_own),
        *prevalence_claim("joint.coat", boot_coat),
        *prevalence_claim("joint.gains", boot_gains),
        *prevalence_claim("joint.digits", boot_near[-1]),
        crossing_claim("joint.crossing", crossed),
        *prevalence_claim("joint.dress", dress_far[-1]),
        *prevalence_claim("joint.five", sandal_five[-1]),
        *prevalence_claim("joint.sandal", sandal_differs[-1]),
    ]
    chosen = {
        "ankle-boot": choose_showing(dataset, given, [boot_coat, boot_gains, boot_near[-1], boot_own]),
        "dress": choose_showing(dataset, given, [dress_far[-1]]),
        "sandal": choose_showing(dataset, given, [sandal_five[-1], sandal_differs[-1]]),
    }
    return Findings(rows, claims, {name: choice for name, choice in chosen.items() if choice is not None})


_TEXT = {"mnist": "97 %", "fashion-mnist": "87 %"}
_CODE = {"mnist": "96.1 %", "fashion-mnist": "87.0 %"}
"""Accuracies: those that section 5.3 names, and those that its code gave when it was run again."""


def beside_paper(report: Report) -> Iterator[Beside]:
    """Accuracies beside the paper's; none of a variant."""
    for name, reached in report["accuracy"].items():
        if not report["variant"]:
            yield Beside(f"accuracy on {name}", percent(reached), _TEXT[name], _CODE[name])


def joint_page(out: Path, report: Report, beside: Mapping[str, PaperFigures]) -> Page:
    page = Page(out, "Joint training: MNIST and Fashion-MNIST mixed (section 5.3)")
    page.paragraph(
        f"One network learns both datasets by {named_recipe(variant=report['variant'])}: {report['steps']:,} updates "
        f"of {report['recipe']}. Of each dataset it is trained on {report['trained_on']}. The images of both are put "
        "together and gone through in a new order each epoch. A datapoint's dataset in the memory is that of its "
        "image."
    )
    page.show(_accuracy_table(report), claims_table([Claim(**claim) for claim in report["claims"]]))
    page.heading("Attention across datasets")
    page.paragraph(
        "The paper sees attention from Fashion-MNIST to MNIST grow towards the late layers: at layer-0 the best images "
        "are mostly of the query's own class, at layer-2 some of the three best are of the other dataset, and the sum "
        "of the right class gains."
    )
    page.show(crossing_table(report["crossing"]), strongest_table(report["examples"]))
    show_prevalence(page, report["prevalence"])
    for name, example in report["examples"].items():
        show_example(page, name, example, beside[name])
    show_hubs(page, report["hubs"])
    show_dates(page, report["dates"])
    page.heading("The reconstruction error")
    page.show(reconstruction_table(report["verify"]))
    return page


def _accuracy_table(report: Report) -> Table:
    names = list(report["accuracy"])
    measured = {"this training": report["accuracy"]}
    measured |= {f"variant: {name}": found for name, found in report["variants"].items()}
    rows = [(network, *(percent(found[name], ".2f") for name in names)) for network, found in measured.items()]
    if not report["variant"]:
        rows.append(("the paper's text", *(_TEXT[name] for name in names)))
        rows.append(("the paper's code, run again", *(_CODE[name] for name in names)))
    caption = (
        "Test accuracy. Each variant is trained with the same seed, changed in one thing, and not recorded; where all "
        "images are trained on, all of them give the mean and deviation that normalise them, too."
    )
    return Table("accuracy", caption, ("network", *names), rows)


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
