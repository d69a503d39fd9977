"""What no slot explains of a network as of a step: norms, running statistics, biases of no layer.

No mask moves them: they are as all of training left them by that step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from dualform.errors import Inexact
from dualform.query.view import View
from dualform.query.weights.seams import weights


@dataclass(frozen=True)
class OtherParameters:
    """A state dict whose recorded blocks are still to be rebuilt."""

    arrays: Mapping[str, NDArray[Any]]
    as_at_the_end: frozenset[str]
    """Those that are known of the end of the training alone, and stand as they were then."""


def as_of(view: View, at_step: int | None) -> OtherParameters:
    """Every parameter and buffer as it was once `at_step` recorded steps were taken; None for all.

    Raises Inexact where the recorder kept some, and not of that step: it names the nearest that has them.
    """
    snapshot, final = view.snapshot, view.stored_weights("final")
    stop = snapshot.steps if at_step is None else at_step
    number = bisect_right(snapshot.first_steps, stop) - 1
    run, before = snapshot.runs[number], snapshot.first_steps[number]
    if stop == before:
        return OtherParameters(weights(view, number, "initial"), frozenset())
    if run.others is None:
        return OtherParameters(final, frozenset(_may_have_moved(view, final)))
    if stop == snapshot.steps and snapshot.ended:
        return OtherParameters(final, frozenset())
    row = run.others.at(stop - before)
    if row is None:
        moments = [
            before,
            *(before + moment for moment in run.others.moments),
            *([snapshot.steps] if snapshot.ended else []),
        ]
        nearest = min(moments, key=lambda moment: abs(moment - stop))
        raise Inexact(
            f"Parameters outside the recorded layers are unknown at step {stop}: {_listed(sorted(run.others.names))}.",
            hint=f"Pass at_step={nearest}, the nearest step that has them. Outputs of single layers need none.",
            field="at_step",
        )
    return OtherParameters({**final, **row}, frozenset(_may_have_moved(view, final) - row.keys()))


def _may_have_moved(view: View, final: Mapping[str, NDArray[Any]]) -> set[str]:
    """What does not end with the bits that it began with; all of it where the end is not known."""
    if not view.snapshot.ended:
        return set(final)
    initial = view.stored_weights("initial")

    def moved() -> set[str]:
        return {name for name, own in final.items() if name not in initial or own.tobytes() != initial[name].tobytes()}

    return view.cache.get(("moved by the end",), moved)


def _listed(names: list[str]) -> str:
    """A few of them, and how many there are."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
