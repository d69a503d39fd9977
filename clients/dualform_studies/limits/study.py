"""Potentials and limits (the paper's section 6 and appendix D): `dualform study limits`."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from dualform_studies.assignment import Assignment
from dualform_studies.images.recipe import Recipe
from dualform_studies.limits.claims import limits_claims
from dualform_studies.limits.costs import Trial, compare_replay, measure
from dualform_studies.limits.page import limits_page
from dualform_studies.limits.storage import TRAININGS, in_bytes, storage_report
from dualform_studies.pages.claims import Beside
from dualform_studies.pages.folder import Report, check_free
from dualform_studies.progress import or_silent

LIMITS_RECIPE = Recipe(steps=200)
"""The paper's network and optimizer; its inputs are digits of 8 x 8 pixels, so that no dataset is needed."""
_LONGER = 4
"""How many times the updates of the short training the long one takes."""


def run_limits(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Measure costs on two small memories, `out/short` and `out/long`; the page lies in `out/report`.

    `steps` updates (200 where none are given) for the long one, a quarter of them for the short one. Raises
    AlreadyExists where `out` holds something, and MissingPackage without scikit-learn.
    """
    out, start, say = assignment.out, perf_counter(), or_silent(assignment.progress)
    check_free(out)
    recipe = (recipe or LIMITS_RECIPE).with_steps(assignment.steps)
    trial = Trial(recipe, assignment.first_seed)
    short = replace(trial, recipe=recipe.with_steps(max(1, recipe.steps // _LONGER)))
    say("measuring what it costs", 0, 3)
    measured = [measure(short, out / "short")]
    say("measuring what it costs", 1, 3)
    measured.append(measure(trial, out / "long"))
    say("measuring what it costs", 2, 3)
    report: Report = {
        "study": "limits",
        "command": assignment.command("limits"),
        "seed": assignment.first_seed,
        "recipe": recipe.in_words(),
        "storage": [storage_report(training) for training in TRAININGS],
        "measured": measured,
        "replay": compare_replay(short, out / "short", out / "replayed"),
    }
    say("measuring what it costs", 3, 3)
    report["claims"] = [claim.plain() for claim in limits_claims(report)]
    report["beside_paper"] = [
        Beside(f"keys of {row['name']}", in_bytes(row["key_bytes"]), row["text"], row["code"]).plain()
        for row in report["storage"]
        if row["text"] or row["code"]
    ]
    report["seconds"] = {"all": perf_counter() - start}
    limits_page(out, report).write(report)
    return report
