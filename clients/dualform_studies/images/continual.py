"""The paper's section 5.4: MNIST, then Fashion-MNIST, and what the memory makes of the forgetting.

The second dataset spoils what was learned of the first; left out of the sum, it gives the earlier network back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch

from dualform.query.engine import Engine, open_memory
from dualform_studies.assignment import Assignment
from dualform_studies.certificates import certificate_report, relative_errors
from dualform_studies.images.continual_page import beside_paper, continual_page
from dualform_studies.images.download import load_dataset
from dualform_studies.images.example import (
    PaperFigures,
    choose_interference,
    choose_recognised,
    draw_example,
)
from dualform_studies.images.figures import draw_accuracies
from dualform_studies.images.masking import parts, sweep
from dualform_studies.images.masking_figures import draw_last_steps, draw_masks
from dualform_studies.images.network import build_network, layer_names
from dualform_studies.images.recipe import Recipe
from dualform_studies.images.retraining import retrain
from dualform_studies.images.succession import (
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

_MISTAKE = (1, 3)
"""The paper's example: a "1" taken for a "3", for the attention that it gives to Fashion-MNIST's dresses."""
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
    out, seed, progress, start = assignment.out, assignment.seed, assignment.progress, perf_counter()
    check_free(out)
    recipe = (recipe or Recipe()).with_steps(assignment.steps)
    pair = load_dataset("mnist", assignment.data), load_dataset("fashion-mnist", assignment.data)
    plain = train_in_succession(pair, recipe, seed, progress=named(progress, "unrecorded"))
    recorded = train_in_succession(pair, recipe, seed, record_to=out, progress=named(progress, "recorded"))
    chosen = parts(pair, recipe)
    retrained = retrain(recorded, chosen, pair, recipe, seed, progress)
    with open_memory(out) as memory:
        report = _examine(memory, recorded, pair, recipe, seed, out, progress)
        report["masks"] = sweep(memory, chosen, retrained, recorded, pair, recipe, progress)
    draw_masks(report_folder(out) / "masks.png", report["masks"], pair)
    draw_last_steps(report_folder(out) / "last-steps.png", report["masks"], pair)
    report["beside_paper"] = [row.plain() for row in beside_paper(report["accuracy"], moments(pair))]
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
    say("checking the certificate", 1, 4)
    verified = memory.verify()
    initial = dict(build_network(recipe.widths(pair[0]), seed).state_dict())
    say("asking for cancellation", 2, 4)
    report: Report = {
        "study": "continual",
        "seed": seed,
        "steps": 2 * recipe.steps,
        "recipe": recipe.in_words(),
        "training_images": sum(len(dataset.split.trained) for dataset in pair),
        "trained_on": pair[0].trained_in_words(),
        "mask": without(pair[1]),
        "slots": sum(memory.info().slots.values()),
        "accuracy": judged.accuracy(),
        "verify": {name: certificate_report(certificate) for name, certificate in verified.items()},
        "weights_as_of_first": relative_errors(trained.after_first, weights["as_of_first"], initial, layers),
        "cancellation": dict(memory.cancellation(where=without(pair[1]))),
        "disk_bytes": bytes_on_disk(out),
        "interference": {
            "spoilt": len(judged.interfered()),
            "mistake": list(_MISTAKE),
            "like_the_papers": len(judged.interfered(_MISTAKE)),
        },
    }
    say("drawing figures", 3, 4)
    report["examples"] = _draw(memory, judged, layers, report_folder(out))
    say("drawing figures", 4, 4)
    return report


def _draw(memory: Engine, judged: Verdict, layers: Sequence[str], folder: Path) -> dict[str, Report]:
    """One example of interference where there is one, and one test image of each dataset recognised at the end."""
    draw_accuracies(folder / "accuracy.png", judged.accuracy(), moments(judged.pair))
    chosen = {"interference": choose_interference(memory, judged, layers[-1], _MISTAKE)}
    for dataset, label in reversed(list(zip(judged.pair, _RECOGNISED, strict=True))):
        given = judged.classes["final"][dataset.name]
        query = choose_recognised(dataset, given, label) or choose_recognised(dataset, given)
        chosen[f"recognised-{dataset.name}"] = query
    return {
        name: draw_example(memory, query, layers, judged.pair, folder, name, _BESIDE[name], masked=judged.masked(query))
        for name, query in chosen.items()
        if query is not None
    }
