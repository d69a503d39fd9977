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
            "Its attention scores are exact for the slots that are stored."
            if layer.keys
            else "Record it with its keys."
        )
        raise Inexact(f"layer {layer.name!r} cannot be rebuilt: {found.reason}", hint=hint, field="layer")
    if at_end and not found.exact and unwatched(view, layer):
        found = reconstruction(view, layer, check).status
    if found.name != "approximate" or allow_inexact:
        return found
    if found.error is not None and found.error <= BOUND and (at_end or found.since is None):
        return found
    known = at_end or not unwatched(view, layer)
    raise Inexact(
        f"layer {layer.name!r} is {sentence(found)}",
        hint=f"Ask with allow_inexact=True to have it all the same{_elsewhere(found, known)}.",
        field="layer",
    )


def _elsewhere(found: Status, known: bool) -> str:
    """Where else in the training to ask; `known`: whether the moment that was asked for was looked at."""
    if not known:
        return ", or as of the end of the training, which is measured when it is asked for"
    return "" if found.since is None else f", or with at_step={found.since} or less"


def sentence(status: Status) -> str:
    """A status that is off, as the end of a sentence."""
    if status.error is None:
        return f"not known to be exact: {status.reason}"
    return f"{status}: {status.reason}"
