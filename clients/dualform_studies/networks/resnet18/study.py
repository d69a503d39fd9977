"""A ResNet-18 by Lightning: `dualform study resnet18`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dualform_studies.assignment import Assignment
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.resnet18.attention import LabelSums, ask_best, ask_images, ask_labels
from dualform_studies.networks.resnet18.figures import draw_images, draw_labels
from dualform_studies.networks.resnet18.masks import ask_label_masks, label_masks
from dualform_studies.networks.resnet18.network import ResNet18
from dualform_studies.networks.resnet18.page import resnet18_page
from dualform_studies.networks.resnet18.recipe import Recipe
from dualform_studies.networks.resnet18.training import logits, pictures, train
from dualform_studies.pages.folder import Report, bytes_on_disk, check_free, report_folder
from dualform_studies.progress import Progress

RECIPE = Recipe()
_FEW = 4
"""Places of a layer whose best single datapoints are looked for: each query reads every key."""


def run_resnet18(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    Raises AlreadyExists where `out` holds something, MissingPackage without Lightning, and what `load_dataset` raises.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    recipe = (recipe or RECIPE).with_steps(assignment.steps)
    dataset = load_dataset("fashion-mnist", assignment.data)
    network, seconds = train(dataset, recipe, seed, out, probed_rows(dataset, recipe, seed))
    report: Report = {
        "study": "resnet18",
        "command": assignment.command("resnet18"),
        "seed": seed,
        "seconds": {"training": seconds},
        **ask(out, dataset, recipe, network, seed, assignment.progress),
    }
    report["seconds"]["all"] = perf_counter() - start
    resnet18_page(out, report).write(report)
    return report


def probed_rows(dataset: Dataset, recipe: Recipe, seed: int) -> NDArray[np.int64]:
    """int64[q]: test images, drawn by chance, in the order of their file."""
    return np.sort(np.random.default_rng(seed).choice(len(dataset.test), recipe.asked, replace=False))


def ask(out: Path, dataset: Dataset, recipe: Recipe, network: ResNet18, seed: int, progress: Progress | None) -> Report:
    """What was trained, and what the command line answers of it."""
    start, memory = perf_counter(), CommandLine(out)
    info, verify = memory.ask("info"), memory.ask("verify")
    layers = [one["name"] for one in info["layers"]]
    rows = probed_rows(dataset, recipe, seed)
    true = dataset.test.labels[rows]
    answer = np.array(memory.ask("output", "--layer", layers[-1], "--query", "test")["outputs"])
    own, said = logits(network, pictures(dataset, dataset.test)), answer.argmax(1)
    sums = ask_labels(memory, layers, len(rows), progress)
    labels = {
        layer: {"said": float((one.leading == said).mean()), "true": float((one.leading == true).mean())}
        | {"places": one.places}
        for layer, one in sums.items()
    }
    best = {layer: _best(memory, layer, one, said) for layer, one in sums.items() if one.places <= _FEW}
    chosen = _examples(answer, said, true)
    images = ask_images(memory, sums, list(chosen.values()), progress)
    examples = [
        _example(dataset, kind, at, number, rows, answer, sums, images)
        for at, (kind, number) in enumerate(chosen.items())
    ]
    masked = list(dict.fromkeys(int(said[number]) for number in chosen.values()))[: recipe.masks]
    test = pictures(dataset, dataset.test)
    asked_masks = label_masks(masked, recipe.masks)
    masks = ask_label_masks(memory, network, test, dataset.test.labels, asked_masks, progress)
    folder = report_folder(out)
    for example in examples:
        draw_images(folder / f"images-{example['kind']}.png", dataset, example)
    draw_labels(folder / "labels.png", layers, labels)
    return {
        "recipe": asdict(recipe) | {"words": recipe.in_words(), "updates": recipe.updates},
        "parameters": int(sum(parameter.numel() for parameter in network.parameters())),
        "label_names": list(dataset.label_names),
        "accuracy": float((own.argmax(1) == dataset.test.labels).mean()),
        "asked": {
            "images": len(rows),
            "right": float((said == true).mean()),
            "as_the_network": float((said == own[rows].argmax(1)).mean()),
        },
        "disk_bytes": bytes_on_disk(out),
        "slots": info["slots"],
        "skipped": info["skipped"],
        "verify": verify,
        "labels": labels,
        "best": best,
        "examples": examples,
        "masks": masks,
        "commands": memory.commands,
        "asking_seconds": perf_counter() - start,
    }


def _best(memory: CommandLine, layer: str, sums: LabelSums, said: NDArray[np.int64]) -> Report:
    """Of the single datapoints that draw most, how many have the label that is said; and the share of the queries that
    the image which leads most often leads for."""
    labels, samples = ask_best(memory, layer)
    _, counts = np.unique(samples, return_counts=True)
    return {
        "said": float((labels == np.repeat(said, sums.places)).mean()),
        "images": len(counts),
        "most_frequent": float(counts.max() / len(samples)),
    }


def _examples(answer: NDArray[np.float64], said: NDArray[np.int64], true: NDArray[np.int64]) -> dict[str, int]:
    """Numbers of probed images: the surest that is right, the surest that is wrong, the least sure that is right."""
    lead = np.sort(answer, 1)[:, -1] - np.sort(answer, 1)[:, -2]
    right, wrong = np.flatnonzero(said == true), np.flatnonzero(said != true)
    found = {}
    if len(right):
        found["right"] = int(right[lead[right].argmax()])
    if len(wrong):
        found["wrong"] = int(wrong[lead[wrong].argmax()])
    if len(right) > 1:
        found["unsure"] = int(right[lead[right].argmin()])
    return found


def _example(
    dataset: Dataset,
    kind: str,
    at: int,
    number: int,
    rows: NDArray[np.int64],
    answer: NDArray[np.float64],
    sums: Mapping[str, LabelSums],
    images: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]],
) -> Report:
    row = int(rows[number])
    powers = np.exp(answer[number] - answer[number].max())
    layers = []
    for layer, (samples, means) in images.items():
        leading = int(samples[means[at].argmax()])
        own = sums[layer].means[number]
        layers.append(
            {
                "layer": layer,
                "image": leading,
                "label": int(dataset.train.labels[leading]),
                "of_mean": _of_mean(means[at]),
                "leading_label": int(sums[layer].leading[number]),
                "label_of_mean": _of_mean(own),
            }
        )
    return {
        "kind": kind,
        "row": row,
        "label": int(dataset.test.labels[row]),
        "said": int(answer[number].argmax()),
        "probability": float(powers.max() / powers.sum()),
        "layers": layers,
    }


def _of_mean(attention: NDArray[np.float64]) -> float | None:
    """The greatest in multiples of the mean; None where some are negative, so that a mean may be nothing."""
    return None if attention.min() < 0 or not attention.any() else float(attention.max() / attention.mean())
