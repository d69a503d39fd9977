"""A ResNet-18 by Lightning: `dualform study resnet18`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np

from dualform_studies.assignment import Assignment
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset
from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.drawn_examples import draw_examples
from dualform_studies.networks.resnet18.attention import Attention, Doubles, Ints, ask_attention
from dualform_studies.networks.resnet18.masks import ask_masks, draw_masks
from dualform_studies.networks.resnet18.network import ResNet18
from dualform_studies.networks.resnet18.page import resnet18_page
from dualform_studies.networks.resnet18.recipe import Recipe
from dualform_studies.networks.resnet18.training import QUERY_SET, logits, pictures, train, trained_rows
from dualform_studies.networks.study import run_network
from dualform_studies.pages.folder import Report, bytes_on_disk
from dualform_studies.progress import Progress

RECIPE = Recipe()


def run_resnet18(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw, as `run_network` does.

    Raises MissingPackage without Lightning, and what `load_dataset` raises.
    """
    out, seed = assignment.out, assignment.first_seed

    def train_and_ask(recipe: Recipe) -> Report:
        dataset = load_dataset("fashion-mnist", assignment.data)
        network, seconds = train(dataset, recipe, seed, out, probed_rows(dataset, recipe, seed))
        return {
            "seconds": {"training": seconds},
            **ask(out, dataset, recipe, network, seed, assignment.progress),
        }

    return run_network("resnet18", assignment, recipe or RECIPE, train_and_ask, resnet18_page)


def probed_rows(dataset: Dataset, recipe: Recipe, seed: int) -> Ints:
    """int64[q]: test images, drawn at random, in the order of their file."""
    return np.sort(np.random.default_rng(seed).choice(len(dataset.test), recipe.asked, replace=False))


def ask(out: Path, dataset: Dataset, recipe: Recipe, network: ResNet18, seed: int, progress: Progress | None) -> Report:
    """What was trained, what the command line answers of it, and what the network does under masks of the memory."""
    start, memory, draw = perf_counter(), CommandLine(out), np.random.default_rng(seed)
    info, verify = memory.ask("info"), memory.ask("verify")
    layers = [one["name"] for one in info["layers"]]
    rows = probed_rows(dataset, recipe, seed)
    true = dataset.test.labels[rows]
    answer = np.array(memory.ask("output", "--layer", layers[-1], "--query", QUERY_SET)["outputs"])
    test = pictures(dataset, dataset.test)
    own, said = logits(network, test), answer.argmax(1)
    attention = ask_attention(memory, out, layers, len(rows), progress)
    examples = [
        _example(dataset, kind, number, rows, answer, attention)
        for kind, number in draw_examples(said == true, draw).items()
    ]
    learned = trained_rows(dataset, recipe)
    masks = draw_masks(learned, dataset.train.labels[learned], [examples[0]["said"]], draw)
    return {
        "recipe": asdict(recipe) | {"words": recipe.in_words(), "updates": recipe.updates},
        "parameters": int(sum(parameter.numel() for parameter in network.parameters())),
        "class_names": list(dataset.label_names),
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
        "attention": {layer: _in_all(dataset, one, said, true) for layer, one in attention.items()},
        "examples": examples,
        "masked_images": int((dataset.train.labels[learned] == examples[0]["said"]).sum()),
        "masks": ask_masks(
            memory, network, test, dataset.test.labels, pictures(dataset, dataset.train, learned), masks, progress
        ),
        "commands": memory.commands,
        "asking_seconds": perf_counter() - start,
    }


def _in_all(dataset: Dataset, attention: Attention, said: Ints, true: Ints) -> Report:
    """Of one layer, over all test images: how often the class, and the class of the image, that draws most is the one
    predicted or the true one; how many images lead, and for what share of the test images the most frequent does."""
    leading, images = attention.leading_classes, attention.leading_images
    rows, counts = np.unique(images, return_counts=True)
    return {
        "places": attention.places,
        "said": float((leading == said).mean()),
        "true": float((leading == true).mean()),
        "image_said": float((dataset.train.labels[images] == said).mean()),
        "images": len(rows),
        "leads_for": dict(zip(map(str, rows.tolist()), (counts / len(images)).tolist(), strict=True)),
    }


def _example(
    dataset: Dataset, kind: str, number: int, rows: Ints, answer: Doubles, attention: dict[str, Attention]
) -> Report:
    powers = np.exp(answer[number] - answer[number].max())
    row = int(rows[number])
    return {
        "kind": kind,
        "row": row,
        "pixels": dataset.test.pixels[row].tobytes().hex(),
        "label": int(dataset.test.labels[row]),
        "said": int(answer[number].argmax()),
        "probability": float(powers.max() / powers.sum()),
        "layers": [
            {
                "layer": layer,
                "image": (leading := int(one.leading_images[number])),
                "pixels": dataset.train.pixels[leading].tobytes().hex(),
                "label": int(dataset.train.labels[leading]),
                "of_mean": _of_mean(one.of_images[number]),
                "leading_class": int(one.leading_classes[number]),
                "class_of_mean": _of_mean(one.of_classes[number]),
            }
            for layer, one in attention.items()
        ],
    }


def _of_mean(attention: Doubles) -> float | None:
    """The greatest in multiples of the mean; None where some are negative, so that a mean may be nothing."""
    return None if attention.min() < 0 or not attention.any() else float(attention.max() / attention.mean())
