"""The paper's section 5.4: MNIST, then Fashion-MNIST, and what the memory makes of the forgetting.

The second dataset spoils what was learned of the first; left out of the sum, it gives the earlier network back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from dualform.query.engine import Engine
from dualform_studies.assignment import Assignment
from dualform_studies.images.claims.continual import MISTAKE, choose_recognised_as, continual_findings
from dualform_studies.images.claims.crossing import crossing, crossing_prevalence
from dualform_studies.images.claims.dates import Period
from dualform_studies.images.claims.examined import ask_all_attention, ask_hubs_and_dates
from dualform_studies.images.claims.forgetting import forgetting_claims
from dualform_studies.images.claims.prevalence import Choice
from dualform_studies.images.continual.masking import parts, sweep
from dualform_studies.images.continual.masking_figures import draw_last_steps, draw_masks
from dualform_studies.images.continual.page import beside_paper, continual_page
from dualform_studies.images.continual.retraining import retrain
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.prediction.example import PaperFigures, draw_example
from dualform_studies.images.prediction.figures import draw_accuracies
from dualform_studies.images.training.network import build_network, layer_names
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.recorded import Checkpoint
from dualform_studies.images.training.succession import (
    Pair,
    TrainedNetwork,
    Verdict,
    judge,
    moments,
    train_in_succession,
    weights_by_moment,
    without,
)
from dualform_studies.pages.folder import (
    Report,
    bytes_on_disk,
    check_free,
    report_folder,
)
from dualform_studies.progress import Progress, named, or_silent
from dualform_studies.reconstructions import reconstruction_errors, reconstruction_report
from dualform_studies.recorded_memory import open_recorded

CONTINUAL_RECIPE = Recipe(steps=3000)
"""On each of the two datasets."""

_RECOGNISED = (7, 3)
"""The paper's two other examples: an MNIST "7" and a Fashion-MNIST dress."""
_BESIDE = {
    "interference": PaperFigures("Figure 8", "Figure 9", "Figure 22"),
    "recognised-fashion-mnist": PaperFigures("Figure 24", "Figure 25", "Figure 23"),
    "recognised-mnist": PaperFigures("Figure 27", "Figure 28", "Figure 26"),
}


def run_continual(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, mask, retrain and draw; the memory is `out`, the page and report.json lie in `out/report`.

    `steps` updates on each dataset (3,000 where none are given). The same training is run unrecorded, too, to see that
    recording changed nothing. Raises AlreadyExists where `out` holds something, and what `load_dataset` raises.
    """
    out, seed, progress, start = assignment.out, assignment.first_seed, assignment.progress, perf_counter()
    check_free(out)
    recipe = (recipe or CONTINUAL_RECIPE).with_steps(assignment.steps)
    pair = load_dataset("mnist", assignment.data), load_dataset("fashion-mnist", assignment.data)
    plain = train_in_succession(pair, recipe, seed, progress=named(progress, "unrecorded"))
    recorded = train_in_succession(pair, recipe, seed, record_to=out, progress=named(progress, "recorded"))
    chosen = parts(pair, recipe)
    retrained = retrain(recorded, chosen, pair, recipe, seed, progress)
    with open_recorded(out) as memory:
        report = _examine(memory, recorded, pair, recipe, seed, out, progress)
        report["masks"] = sweep(memory, chosen, retrained, recorded, pair, recipe, progress)
    draw_masks(report_folder(out) / "masks.png", report["masks"], pair)
    draw_last_steps(report_folder(out) / "last-steps.png", report["masks"], pair)
    report["beside_paper"] = [row.plain() for row in beside_paper(report, moments(pair))]
    report["command"] = assignment.command("continual")
    report["unharmed"] = all(torch.equal(plain.final[name], recorded.final[name]) for name in plain.final)
    report["seconds"] = {"recorded_training": recorded.seconds, "all": perf_counter() - start}
    continual_page(out, report, pair, _BESIDE).write(report)
    return report


def _examine(
    memory: Engine, trained: TrainedNetwork, pair: Pair, recipe: Recipe, seed: int, out: Path, progress: Progress | None
) -> Report:
    """Everything that the memory is asked, and the figures."""
    layers = layer_names(recipe.widths(pair[0]))
    say = or_silent(progress)
    say("rebuilding networks", 0, 4)
    weights = weights_by_moment(memory, trained, pair, recipe)
    judged = judge(weights, pair, recipe)
    say("checking the reconstruction error", 1, 4)
    verified = memory.verify()
    initial = dict(build_network(recipe.widths(pair[0]), seed).state_dict())
    say("asking for cancellation", 2, 4)
    report: Report = {
        "study": "continual",
        "seed": seed,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "variant": recipe != CONTINUAL_RECIPE,
        "training_images": sum(len(dataset.split.trained) for dataset in pair),
        "trained_on": pair[0].trained_in_words(),
        "mask": without(pair[1]),
        "slots": sum(memory.info().slots.values()),
        "accuracy": judged.accuracy(),
        "verify": {name: reconstruction_report(reconstruction) for name, reconstruction in verified.items()},
        "weights_as_of_first": reconstruction_errors(trained.after_first, weights["as_of_first"], initial, layers),
        "cancellation": dict(memory.cancellation(where=without(pair[1]))),
        "disk_bytes": bytes_on_disk(out),
        "interference": {
            "spoilt": len(judged.interfered()),
            "mistake": list(MISTAKE),
            "like_the_papers": len(judged.interfered(MISTAKE)),
        },
    }
    say("asking what all test images attend to", 3, 4)
    report |= _ask_attention(memory, judged, layers, recipe, report_folder(out))
    draw_accuracies(report_folder(out) / "accuracy.png", judged.accuracy(), moments(pair))
    say("asking what all test images attend to", 4, 4)
    return report


def _ask_attention(memory: Engine, judged: Verdict, layers: Sequence[str], recipe: Recipe, folder: Path) -> Report:
    """Claims and the examples that show them, attention across datasets, hubs and dates."""
    first, second = judged.pair
    given = {dataset.name: judged.classes["final"][dataset.name] for dataset in judged.pair}
    checkpoints = [Checkpoint(dataset, 2 * recipe.steps, last=True) for dataset in judged.pair]
    attention = ask_all_attention(memory, layers, checkpoints, judged.pair)
    spoilt = np.zeros(len(first.test), dtype=np.bool_)
    spoilt[judged.interfered()] = True
    found = continual_findings(
        attention.layers[first.name],
        crossing_prevalence(attention.layers[second.name], attention.datapoints, second.name),
        checkpoints[0],
        second.name,
        given[first.name],
        spoilt,
    )
    chosen = dict(found.shown)
    for dataset, label in reversed(list(zip(judged.pair, _RECOGNISED, strict=True))):
        choice = choose_recognised_as(dataset, given[dataset.name], label)
        chosen |= {} if choice is None else {f"recognised-{dataset.name}": choice}
    periods = {
        first.name: Period(0, recipe.steps, f"step < {recipe.steps}", f"the training on {first.name}"),
        second.name: Period(
            recipe.steps, 2 * recipe.steps, f"step >= {recipe.steps}", f"the training on {second.name}"
        ),
    }
    measured, claims = ask_hubs_and_dates(
        memory, attention, [choice.query for choice in chosen.values()], periods, folder
    )
    forgotten = forgetting_claims(judged.recognised(first))
    return measured | {
        "prevalence": [row.plain() for row in found.rows],
        "claims": [claim.plain() for claim in (*forgotten, *found.claims, *claims)],
        "crossing": {name: crossing(own, attention.datapoints, name) for name, own in attention.layers.items()},
        "examples": {name: _draw(memory, judged, choice, layers, folder, name) for name, choice in chosen.items()},
    }


def _draw(memory: Engine, judged: Verdict, choice: Choice, layers: Sequence[str], folder: Path, name: str) -> Report:
    query, beside = choice.query, _BESIDE[name]
    masked = judged.masked(query)
    return draw_example(memory, query, layers, judged.pair, folder, name, beside, masked=masked, how=choice.how)
