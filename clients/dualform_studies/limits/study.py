"""Potentials and limits (the paper's section 6 and appendix D): `dualform study limits`."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from dualform_studies.assignment import Assignment
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.limits.claims import limits_claims
from dualform_studies.limits.costs import Trial, compare_rerun, measure, scoring_seconds
from dualform_studies.limits.page import limits_page
from dualform_studies.limits.storage import GPT_3, TRAININGS, in_bytes, storage_report
from dualform_studies.pages.claims import Beside
from dualform_studies.pages.folder import Report, check_free
from dualform_studies.progress import or_silent

LIMITS_RECIPE = Recipe(steps=200)
"""The paper's network and optimizer; its inputs are digits of 8 x 8 pixels, so that no dataset is needed."""
_LENGTHS = {"short": 4, "middle": 2, "long": 1}
"""Folders of the trainings, and by what the updates of the longest are divided in each."""


def run_limits(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Measure costs on small memories, `out/short`, `out/middle` and `out/long`; the page lies in `out/report`.

    `steps` updates (200 where none are given) for the long one, half and a quarter of them for the others. Raises
    AlreadyExists where `out` holds something, and MissingPackage without scikit-learn.
    """
    out, start, say = assignment.out, perf_counter(), or_silent(assignment.progress)
    check_free(out)
    recipe = (recipe or LIMITS_RECIPE).with_steps(assignment.steps)
    trial = Trial(recipe, assignment.first_seed)
    trials = {
        name: replace(trial, recipe=recipe.with_steps(max(1, recipe.steps // part))) for name, part in _LENGTHS.items()
    }
    turns, measured = len(trials) + 1, []
    for done, (name, one) in enumerate(trials.items()):
        say("measuring what it costs", done, turns)
        measured.append(measure(one, out / name))
    say("measuring what it costs", turns - 1, turns)
    for costs, seconds in zip(measured, scoring_seconds([out / name for name in trials], trial.layers), strict=True):
        costs["scoring_seconds"] = seconds
    report: Report = {
        "study": "limits",
        "command": assignment.command("limits"),
        "seed": assignment.first_seed,
        "recipe": recipe.in_words(),
        "storage": [storage_report(training) for training in TRAININGS],
        "measured": measured,
        "rerun": compare_rerun(trials["short"], out / "short", out / "reran"),
    }
    say("measuring what it costs", turns, turns)
    gpt_3 = storage_report(GPT_3)
    report["claims"] = [claim.plain() for claim in limits_claims(report)]
    report["beside_paper"] = [
        Beside(f"keys of {GPT_3.name}", f"{in_bytes(gpt_3['key_bytes'])} ({gpt_3['what']})", gpt_3["text"]).plain()
    ]
    report["seconds"] = {"all": perf_counter() - start}
    limits_page(out, report).write(report)
    return report
