"""A GPT-2 by the Hugging Face Trainer: `dualform study gpt2`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from dualform_studies.assignment import Assignment
from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.gpt2.examples import ask_examples, choose_examples
from dualform_studies.networks.gpt2.figures import draw_agreement, draw_likeness
from dualform_studies.networks.gpt2.likeness import agreement, likeness
from dualform_studies.networks.gpt2.masks import ask_masks, own_against_others
from dualform_studies.networks.gpt2.page import gpt2_page
from dualform_studies.networks.gpt2.predictions import (
    EMBEDDINGS,
    ask_hits,
    ask_predictions,
    best_passage,
    chosen_rows,
)
from dualform_studies.networks.gpt2.recipe import Recipe
from dualform_studies.networks.gpt2.text import Fables
from dualform_studies.networks.gpt2.training import log_probabilities, train
from dualform_studies.pages.folder import Report, bytes_on_disk, check_free, report_folder
from dualform_studies.progress import Progress
from dualform_studies.text.corpora import load_corpus

RECIPE = Recipe()
_READ = "SELECT DISTINCT sample FROM slots ORDER BY sample"


def run_gpt2(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    Raises AlreadyExists where `out` holds something, MissingPackage without Transformers, and what `load_corpus`
    raises.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    recipe = (recipe or RECIPE).with_steps(assignment.steps)
    fables = Fables(load_corpus("aesop", assignment.data), recipe)
    network, seconds = train(fables, recipe, seed, out)
    report: Report = {
        "study": "gpt2",
        "command": assignment.command("gpt2"),
        "seed": seed,
        "seconds": {"training": seconds},
        **describe(fables, recipe, network),
        **ask(out, fables, recipe, network, seed, assignment.progress),
    }
    report["seconds"]["all"] = perf_counter() - start
    gpt2_page(out, report).write(report)
    return report


def describe(fables: Fables, recipe: Recipe, network: Any) -> Report:
    """What was trained on what, and how well the test text is foretold: nats a token."""
    test = torch.from_numpy(fables.passages(fables.test))
    logs = log_probabilities(network, test)[:, :-1]
    counts = np.bincount(fables.train.ids, minlength=fables.vocabulary) + 1
    alone = -np.log(counts / counts.sum())[fables.passages(fables.test)[:, 1:]]
    return {
        "steps": recipe.steps,
        "width": recipe.width,
        "recipe": recipe.in_words(),
        "parameters": int(sum(parameter.numel() for parameter in network.parameters())),
        "tokens": {"train": len(fables.train), "test": len(fables.test), "vocabulary": fables.vocabulary},
        "passages": len(fables.passages(fables.train)),
        "length": fables.length,
        "fables": len(fables.titles),
        "passes": recipe.steps * recipe.batch / len(fables.passages(fables.train)),
        "nats": {
            "network": float(-logs.gather(-1, test[:, 1:, None]).mean()),
            "frequencies": float(alone.mean()),
        },
    }


def ask(out: Path, fables: Fables, recipe: Recipe, network: Any, seed: int, progress: Progress | None) -> Report:
    """What the command line answers."""
    start = perf_counter()
    memory = CommandLine(out)
    info, verify = memory.ask("info"), memory.ask("verify")
    layers = [one["name"] for one in info["layers"] if one["name"] not in EMBEDDINGS]
    predictions = ask_predictions(memory, fables, chosen_rows(fables, recipe.asked))
    passages = fables.passages(fables.test)
    own = log_probabilities(network, torch.from_numpy(passages)).flatten(0, 1)[predictions.rows].argmax(-1).numpy()
    hits = ask_hits(memory, fables, layers, predictions.rows, progress)
    same, by_chance = agreement(hits)
    examples = choose_examples(fables, predictions)
    told = ask_examples(memory, fables, predictions, hits, examples, progress)
    draw = np.random.default_rng(seed)
    chosen = _spread(examples, len(predictions.rows), recipe.masks)
    best = [best_passage(hits, number) for number in chosen]
    read = [row["sample"] for row in memory.ask("sql", _READ)["rows"]]
    others = draw.choice(np.setdiff1d(read, best), recipe.masks, replace=False)
    masks = ask_masks(memory, network, passages, predictions, chosen, best, others.tolist(), progress)
    found = likeness(fables, predictions, hits)
    folder = report_folder(out)
    draw_likeness(folder / "likeness.png", found)
    draw_agreement(folder / "agreement.png", layers, same)
    return {
        "disk_bytes": bytes_on_disk(out),
        "slots": info["slots"],
        "skipped": info["skipped"],
        "verify": verify,
        "predictions": {
            "asked": len(predictions.rows),
            "right": float((predictions.said == predictions.true).mean()),
            "as_the_network": float((predictions.said == own).mean()),
        },
        "likeness": found,
        "agreement": {
            "by_layer": dict(zip(layers, _mean_of_others(same), strict=True)),
            "chance": by_chance,
        },
        "examples": told,
        "masks": masks | own_against_others(masks) | {"titles": _titles(fables, masks["masked"])},
        "commands": memory.commands,
        "asking_seconds": perf_counter() - start,
    }


def _spread(examples: dict[str, int], asked: int, count: int) -> list[int]:
    """The examples, and others evenly among all that were asked: `count` predictions at most."""
    evenly = np.linspace(0, asked - 1, count).round().astype(int).tolist()
    return list(dict.fromkeys([*examples.values(), *evenly]))[:count]


def _mean_of_others(same: Any) -> list[float]:
    count = len(same)
    return ((same.sum(1) - 1) / max(1, count - 1)).tolist()  # type: ignore[no-any-return]


def _titles(fables: Fables, passages: list[int]) -> list[str]:
    """The fable that each passage begins in."""
    return [fables.titles[fables.fables[passage * fables.length]] for passage in passages]
