"""A GPT-2 by the Hugging Face Trainer: `dualform study gpt2`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from dualform_studies.assignment import Assignment
from dualform_studies.networks.command_line import CommandLine
from dualform_studies.networks.drawn_examples import draw_examples
from dualform_studies.networks.gpt2.examples import ask_examples
from dualform_studies.networks.gpt2.likeness import agreement, likeness
from dualform_studies.networks.gpt2.masks import ask_masks
from dualform_studies.networks.gpt2.page import gpt2_page
from dualform_studies.networks.gpt2.predictions import (
    EMBEDDINGS,
    ask_hits,
    ask_predictions,
    beside_network,
    chosen_rows,
    first_asked,
)
from dualform_studies.networks.gpt2.recipe import Recipe
from dualform_studies.networks.gpt2.text import Fables
from dualform_studies.networks.gpt2.training import log_probabilities, train
from dualform_studies.networks.study import run_network
from dualform_studies.pages.folder import Report, bytes_on_disk
from dualform_studies.progress import Progress
from dualform_studies.text.corpora import load_corpus

RECIPE = Recipe()
_READ = "SELECT DISTINCT sample FROM slots ORDER BY sample"


def run_gpt2(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw, as `run_network` does.

    Raises MissingPackage without Transformers, and what `load_corpus` raises.
    """
    out, seed = assignment.out, assignment.first_seed

    def train_and_ask(recipe: Recipe) -> Report:
        fables = Fables(load_corpus("aesop", assignment.data), recipe)
        network, seconds = train(fables, recipe, seed, out)
        return {
            "seconds": {"training": seconds},
            **describe(fables, recipe, network),
            **ask(out, fables, recipe, network, seed, assignment.progress),
        }

    return run_network("gpt2", assignment, recipe or RECIPE, train_and_ask, gpt2_page)


def describe(fables: Fables, recipe: Recipe, network: Any) -> Report:
    """What was trained on what, and how well the test text is predicted: nats a token."""
    test = torch.from_numpy(fables.passages(fables.test))
    logs = log_probabilities(network, test)[:, :-1]
    counts = np.bincount(fables.train.ids, minlength=fables.vocabulary) + 1
    alone = -np.log(counts / counts.sum())[fables.passages(fables.test)[:, 1:]]
    return {
        "steps": recipe.steps,
        "width": recipe.width,
        "blocks": recipe.blocks,
        "heads": recipe.heads,
        "first": first_asked(fables),
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
    """What the command line answers, and what the network does under masks of the memory."""
    start, draw = perf_counter(), np.random.default_rng(seed)
    memory = CommandLine(out)
    info, verify = memory.ask("info"), memory.ask("verify")
    layers = [one["name"] for one in info["layers"] if one["name"] not in EMBEDDINGS]
    predictions = ask_predictions(memory, fables, chosen_rows(fables, recipe.asked))
    passages = fables.passages(fables.test)
    own = log_probabilities(network, torch.from_numpy(passages)).flatten(0, 1)[predictions.rows].numpy()
    hits = ask_hits(memory, fables, layers, predictions.rows, progress)
    chosen = draw_examples(predictions.said == predictions.true, draw)
    examples = ask_examples(memory, fables, predictions, hits, chosen, progress)
    best = list(dict.fromkeys(example["passage"] for example in examples))
    read = [row["sample"] for row in memory.ask("sql", _READ)["rows"]]
    others = draw.choice(np.setdiff1d(read, best), recipe.masks, replace=False).tolist()
    masks = ask_masks(memory, network, passages, predictions, [*best, *others], progress)
    return {
        "disk_bytes": bytes_on_disk(out),
        "slots": info["slots"],
        "skipped": info["skipped"],
        "verify": verify,
        "predictions": {
            "asked": len(predictions.rows),
            "right": float((predictions.said == predictions.true).mean()),
            **beside_network(predictions.said, own),
        },
        "likeness": likeness(fables, predictions, hits),
        "agreement": agreement(hits),
        "examples": examples,
        "masks": [mask | {"title": _title(fables, mask["passage"])} for mask in masks],
        "commands": memory.commands,
        "asking_seconds": perf_counter() - start,
    }


def _title(fables: Fables, passage: int) -> str:
    """The fable that a passage begins in."""
    return str(fables.titles[fables.fables[passage * fables.length]])
