"""Boosted training beside free training, and why head 1 forgets."""

from __future__ import annotations

from collections.abc import Mapping

from dualform_studies.memorisation.basis.claims import BOOSTING, boosting_claims
from dualform_studies.memorisation.boosting.falls import HeadOne
from dualform_studies.memorisation.boosting.falls_figure import draw_falls
from dualform_studies.memorisation.boosting.falls_statements import (
    FALL_IN_WORDS,
    curved_before,
    small_steps,
    statements_table,
)
from dualform_studies.memorisation.boosting.figure import draw_ways
from dualform_studies.memorisation.boosting.tables import falls, ways
from dualform_studies.memorisation.boosting.ways import WAYS
from dualform_studies.memorisation.transformer.ensemble import Ensemble
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.pages.claims import Claim
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page


def boosting_chapter(
    page: Page, trained: Mapping[str, Ensemble], head_one: Mapping[str, HeadOne], recipe: Recipe
) -> tuple[list[Claim], Report]:
    folder, seeds = report_folder(page.run), len(trained["free"].next_tokens)
    claims = boosting_claims(trained)
    page.heading(BOOSTING)
    page.paragraph(
        f"Head 1 learns alone for {recipe.steps:,} updates and is frozen, then head 2 learns for "
        f"{recipe.later_steps:,}, then head 3; the text does not say whether the embeddings go on learning meanwhile, "
        f"so both are run, each with more updates than free training has. {seeds} seeds, each with facts and a "
        "start of its own. Which optimizer trains the heads the text leaves open, too. The claim is judged by SGD with "
        "momentum, under which a slot of the memory has one coefficient; Adam stands beside as a variant."
        + ("" if claims else " The seeds are too few to tell whether boosting knows less, and no claim is judged.")
    )
    page.figure(
        draw_ways(folder / "boosting.png", trained, recipe),
        "Accuracy while training: the median over the seeds, shaded from the first quartile to the third. Right: "
        "every seed at its end, with medians.",
    )
    page.show(ways(trained))
    page.paragraph(why_it_falls(head_one))
    page.figure(
        draw_falls(folder / "falls.png", head_one),
        "Head 1 learning alone. Above, left: by SGD and by Adam, with other steps. Right: the greatest curvature of "
        "each seed's loss in what learns, up to its fall (filled) or, where it does not fall, up to its end (open), "
        "over the one that gradient descent with momentum follows, 2 (1 + momentum) / learning rate. Below: the "
        "accuracy and that curvature of the seeds that fall by SGD, moved so that they fall at 0, each and their "
        "median.",
    )
    page.show(falls(head_one), statements_table([small_steps(head_one), curved_before(head_one)]))
    return claims, {
        "ways": {name: [round(25 * known) for known in trained[name].curve.accuracy[-1].tolist()] for name in WAYS},
        "falls": {name: int(one.fell.sum()) for name, one in head_one.items()},
    }


def why_it_falls(found: Mapping[str, HeadOne]) -> str:
    """What the two tests say of falls, in a paragraph."""
    sgd, fell = found["SGD"], {name: f"{int(one.fell.sum())} of {len(one.fell)}" for name, one in found.items()}
    if not sgd.fell.any():
        return f"By SGD, head 1 never falls ({FALL_IN_WORDS}) in {len(sgd.fell)} seeds."
    steps, curved = small_steps(found), curved_before(found)
    return (
        f"By SGD, head 1 falls in {fell['SGD']} seeds: {FALL_IN_WORDS}. {steps.ours} (p = {steps.p:.2g}). "
        + (
            "So it is the optimizer that loses more than one head would have to. "
            if steps.shown
            else "It is not shown that smaller steps lose less, so a fall may be a matter of what one head can hold. "
        )
        + f"As for how curved the loss was: {curved.ours} (p = {curved.p:.2g}). "
        + (
            "So falls go with steps that overshoot. "
            if curved.shown
            else "Seeds that fell are not shown to differ from the others in this, so it does not tell why they fell. "
        )
        + f"By Adam {fell['Adam']} seeds fall, {fell['Adam, ε']} with a larger ε, and {fell['Adam, small']} with "
        "smaller steps."
    )
