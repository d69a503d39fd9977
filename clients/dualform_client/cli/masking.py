"""What is said wherever a mask is offered: what it means, and how much the removed terms cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dualform.answers import Grade
from dualform.errors import BadInput, Inexact
from dualform.methods import Answers
from dualform_client.cli.printing import print_note

WHAT_A_MASK_MEANS = (
    "A mask takes terms out of this training's sum, by arithmetic; it is not retraining without them. What remains was "
    "learned beside what is masked."
)
WHAT_A_SOFTMAX_MASK_MEANS = (
    "A mask takes slots out of the softmax, and the weights of those that stay grow; what the others brought to the "
    "bias is taken out of it, by arithmetic. It is not retraining without them."
)


def cancellation(
    memory: Answers,
    where: str | Mapping[str, str] | None,
    at_step: int | None,
    layer: str | None = None,
    allow_inexact: bool = False,
) -> Mapping[str, float] | None:
    """By layer, the removed terms' sum of norms over the norm of their sum.

    None without a mask, and, with a note, where it is not measured under the training's optimizer. For masks that were
    answered: what else would be refused was refused with them.
    """
    if where is None:
        return None
    try:
        return memory.cancellation(where, at_step, layer, allow_inexact)
    except Inexact as unmeasured:
        print_note(unmeasured.message)
        return None


def one_mask(where: str | None, by_space: Sequence[tuple[str, str]]) -> str | dict[str, str] | None:
    """What --where and --where-space say together. Raises BadInput for both, or for a space given twice."""
    if not by_space:
        return where
    if where is not None:
        raise BadInput(
            "--where and --where-space are given together.",
            hint="Give one mask for all spaces, or one for each with --where-space.",
            field="where",
        )
    masks = dict(by_space)
    if len(masks) < len(by_space):
        raise BadInput("--where-space names a space twice.", hint="Join its masks with AND.", field="where")
    return masks


def describe_grade(grade: Grade, standing: float) -> str:
    """A sentence or two on a record that is not exact."""
    reason = f": {grade.reason.rstrip('.')}" if grade.reason else ""
    added = f" What moved outside the record, {standing:.2g} of the way, was added." if standing else ""
    return f"{grade}{reason}.{added}"


def describe(figures: Mapping[str, float]) -> str:
    """One sentence, or nothing where there are no figures."""
    if not figures:
        return ""
    listed = ", ".join(f"{layer} {figure:.3g}" for layer, figure in figures.items())
    meaning = "1: its terms all push one way; tens or hundreds: they mostly cancel each other"
    return f"Cancellation of what was masked ({meaning}): {listed}."
