"""What is said wherever a mask is offered: what it means, how much the removed terms cancel or how far it moves the
weights, and whose the status is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from dualform.answers import Cancellation, Status
from dualform.answers.cancellation import WHOSE_STATUS
from dualform.errors import BadInput, Inexact
from dualform.methods import Answers
from dualform_client.cli.printing import print_note

_NOTHING = "moves nothing"
WHAT_A_SOFTMAX_MASK_MEANS = (
    "A mask takes slots out of the softmax, and the weights of those that stay grow; what the others brought to the "
    f"bias is taken out of it, by arithmetic. It is not retraining without them. {WHOSE_STATUS}"
)


def cancellation(
    memory: Answers,
    where: str | Mapping[str, str] | None,
    at_step: int | None,
    layer: str | None = None,
    allow_inexact: bool = False,
) -> Cancellation | None:
    """By layer, how much the removed terms cancel, or how far the mask moves the weights.

    None without a mask, and, with a note, where a server of an earlier version does not measure it under the training's
    optimizer. For masks that were answered: what else would be refused was refused with them.
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


def describe_status(status: Status, unrecorded_change: float) -> str:
    """A sentence or two on a record that is not exact, or in which more stands than its slots."""
    reason = f": {status.reason.rstrip('.')}" if status.reason else ""
    beside = f" What stands in it beside the slots is {unrecorded_change:.2g} of the distance that its weights moved."
    return f"{status}{reason}.{beside if unrecorded_change > 0 else ''}"


def describe(removed: Cancellation | None) -> str:
    """A sentence for each kind of figures; nothing where nothing was measured."""
    if removed is None:
        return ""
    said = []
    if removed.figures:
        moved = {layer: f"{figure:.3g}" for layer, figure in removed.items() if not isnan(figure)}
        listed = ", ".join(f"{layer} {moved.get(layer, _NOTHING)}" for layer in removed)
        meaning = "1: its terms all push one way; tens or hundreds: they mostly cancel each other"
        said.append(f"Cancellation of what was masked ({meaning}): {listed}.")
    if removed.concentrations:
        listed = ", ".join(
            f"{layer} {_NOTHING if isnan(one.share) else f'{one.share:.0%}, {one.greatest:.2g}'}"
            for layer, one in removed.concentrations.items()
        )
        meaning = (
            "share of the squared distance from the whole in 1 % of the entries; furthest move of an entry, in "
            "multiples of the distance that the layer's weights moved"
        )
        said.append(f"Concentration of the mask ({meaning}): {listed}.")
    if removed.scan.sample:
        said.append(f"These figures stand on {removed.scan.sample}.")
    return " ".join(said)


def figures(removed: Cancellation | None) -> dict[str, Any]:
    """As JSON has them; null where nothing was measured."""
    return {"cancellation": None, "concentration": {}, "unmoved": []} if removed is None else removed.record()
