"""Whether a layer is answered as its record has it, or refused: what is asked of its status."""

from __future__ import annotations

from dualform.answers import Status
from dualform.errors import Inexact
from dualform.query.view import Check, View
from dualform.query.weights.exactness import status, unwatched
from dualform.query.weights.reconstruction import reconstruction
from dualform.store.layer import Layer

BOUND = 0.1
"""Beyond this share of the distance that the weights moved, nothing is answered unless it is asked for with
allow_inexact=True.
"""


def require(view: View, layer: Layer, at_step: int | None, allow_inexact: bool, check: Check) -> Status:
    """The status. Raises Inexact where a layer cannot be rebuilt, and where that would tell too little of its weights.

    That is so beyond BOUND, and at an earlier step than the end once the record has parted from the weights. Of a rule
    that was not watched, the end has the status that its reconstruction error gives it: a pass over the slots, once a
    snapshot.
    """
    found, at_end = status(view, layer, at_step), at_step is None or at_step == view.snapshot.steps
    if found.name == "scores only":
        hint = (
            "Its attention scores are exact for the stored slots."
            if layer.keys
            else "Record the training with keys=True."
        )
        raise Inexact(f"Layer {layer.name!r} cannot be reconstructed: {found.reason}", hint=hint, field="layer")
    if at_end and not found.exact and unwatched(view, layer):
        found = reconstruction(view, layer, check).status
    if found.name != "approximate" or allow_inexact:
        return found
    if found.error is not None and found.error <= BOUND and (at_end or found.since is None):
        return found
    raise Inexact(
        _refusal(layer, found),
        hint=f"Pass {_elsewhere(found, at_end or not unwatched(view, layer))}allow_inexact=True.",
        field="layer",
    )


def _elsewhere(found: Status, known: bool) -> str:
    """The step that can be asked for instead; `known`: whether the moment that was asked for was looked at."""
    if not known:
        return "at_step=None for the end of the training, which is measured, or "
    return "" if found.since is None else f"at_step={found.since}{' or less' if found.since else ''}, or "


def _refusal(layer: Layer, found: Status) -> str:
    since = "" if found.since is None else f" from step {found.since} on"
    text = f"Layer {layer.name!r} cannot be reconstructed exactly{since}: {found.reason}"
    if found.error is None:
        return f"{text} Its reconstruction error was not measured."
    limit = f", the limit {100 * BOUND:g} %" if found.error > BOUND else ""
    return f"{text} The reconstruction error is {100 * found.error:.3g} %{limit}."
