"""How exact the record of a layer is as of a step, as measured while the training ran.

It is called by the worst of its blocks (block_status.py), or "scores only" where it cannot be rebuilt: no values, no
keys, or an optimizer without an update rule.

Distances are the watch's. A gradient that the slots do not explain makes no layer inexact: where the watch found one
so, it is given as the reason. Of a block whose rule was not watched, or that moved in other numbers than the watched
ones alone, as an embedding of which few rows are used may, only a pass over the slots can tell (reconstruction.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from dualform.answers import Status
from dualform.query.view import View
from dualform.query.weights import deleted_terms, dropped_terms
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.block_status import EXACT, BlockDistance, name_of, precision
from dualform.query.weights.distances import Distances, distances
from dualform.query.weights.moves_below_rounding import moved_less_than_rounding
from dualform.query.weights.scores_only import why_scores_only
from dualform.query.weights.seams import Seam
from dualform.rules.update_rule import ImageKind
from dualform.store.batch import TOLERANCE, UNEXPLAINED
from dualform.store.layer import Layer
from dualform.store.parameter import Parameter

_UNMEASURED = "the training was cut off before its weights were held against the record"


def status(view: View, layer: Layer, at_step: int | None = None) -> Status:
    """The status of a layer once `at_step` recorded steps were taken; None for all. Reads no slot."""
    stop = view.snapshot.steps if at_step is None else at_step
    if reason := why_scores_only(view, layer, stop):
        return Status("scores only", reason=reason + _lacks(view, layer))
    if stop == 0:
        return Status("exact", 0.0, 0.0)
    if part := deleted_terms.lost_meanwhile(view, layer, stop):
        return Status("approximate", since=part.first_step, reason=deleted_terms.said_meanwhile(part))
    first = dropped_terms.first_step(view, layer)
    if first is not None and first < stop:
        return Status(
            "approximate", since=first, reason=f"{dropped_terms.said(view, layer)}: what the others brought is missing."
        )
    found = _measured(view, layer, stop)
    return replace(found, reason=deleted_terms.said(view, layer, stop)) if not found.reason else found


def with_precision(view: View, layer: Layer, found: Status) -> Status:
    """An exact status that also says where the weights are finer than the record."""
    initial = view.stored_weights("initial")
    if not found.exact or found.reason or all(initial[block.name].dtype != np.float64 for block in layer.parameters):
        return found
    return replace(found, reason="float64 weights; keys and error signals are stored in float32.")


def _measured(view: View, layer: Layer, stop: int) -> Status:
    """As the watch had it."""
    found, why = status_of_watched(view, layer, stop), unwatched(view, layer)
    if not why:
        return found
    if found.name == "approximate":  # it is so whatever the others are; how far the layer is, nobody knows
        return replace(found, error=None, rounding=None)
    return Status("approximate", reason=f"{why} while training; `verify` measures the end of it.")


def status_of_watched(view: View, layer: Layer, stop: int) -> Status:
    """The status that the blocks of a layer have together that were watched; exact for none."""
    found = _seen(view, layer, stop)
    known = [seen for seen in found if seen is not None]
    if len(known) < len(found):
        return Status("approximate", reason=f"{_UNMEASURED}.")
    error = _joint([seen.accumulated for seen in known], known)
    rounding = _joint([seen.rounding for seen in known], known)
    seams = _seams(known, stop)
    if (name := name_of(view, known)) != "approximate" and not seams:
        unseen = _unseen(view, layer, known, stop)
        if unseen:
            return Status("approximate", error, rounding, *unseen)
        return Status(name, error, rounding, reason=_rounded_away(error, rounding) if name == "exact" else "")
    if not math.isfinite(error) and seams:
        return Status("approximate", since=seams[0].step, reason=_first_of(seams))
    if math.isnan(error) and not _defects(view, layer, stop):
        unmeasured = _UNMEASURED if view.snapshot.cut_off else "the update rule makes NaN or infinity of the record"
        return Status("approximate", reason=f"{unmeasured}.")
    if still := moved_less_than_rounding(view, layer.dtype, known, stop):
        return Status("approximate", reason=still)
    jumps = [step for seen in known if (step := seen.of.jump(seen.row)) is not None]
    since = min(jumps, default=None)
    reason = _first_of([seam for seam in seams if seam.step == since]) or _reason(view, layer, stop, since)
    if not math.isfinite(error):  # no way to hold the distance against, or nothing there to look at
        return Status("approximate", since=since, reason=reason)
    return Status("approximate", error, rounding, since, reason)


def _rounded_away(error: float, rounding: float) -> str:
    """Why weights are exact though the record misses much of the distance that they moved."""
    if error <= EXACT:
        return ""
    if math.isinf(rounding):
        return "its weights did not move: each of its updates was smaller than their rounding."
    moved = "less than rounding" if rounding >= 1.0 else "in small steps"
    return (
        f"its weights moved {moved}: float32 rounding alone may account for {rounding:.1e} of the distance, and the "
        "record misses no more."
    )


def stood_still(view: View, layer: Layer) -> bool:
    """Whether the layer's weights moved less than their rounding by the end, so that no share of their distance
    tells anything.
    """
    stop = view.snapshot.steps
    known = [seen for seen in _seen(view, layer, stop) if seen is not None]
    return name_of(view, known) == "approximate" and bool(moved_less_than_rounding(view, layer.dtype, known, stop))


def roundings(view: View, layer: Layer) -> dict[str, float]:
    """By block, what rounding may account for by the end, of those that were watched."""
    known = [seen for seen in _seen(view, layer, view.snapshot.steps) if seen is not None]
    return {seen.block.block_name: seen.rounding for seen in known}


def _seams(known: Sequence[_Seen], stop: int) -> list[Seam]:
    """Where runs part before a step, in order."""
    return sorted((s for seen in known for s in seen.of.seams if s.step < stop), key=lambda seam: seam.step)


def _first_of(seams: Sequence[Seam]) -> str:
    """What the first of some seams says, as one sentence; empty where there is none."""
    return f"{seams[0].reason} (from step {seams[0].step} on)." if seams else ""


def unwatched(view: View, layer: Layer) -> str:
    """Why a block of the layer was not held against the record while training, a clause; empty where all were.

    Raises Inexact where a block has no update rule.
    """
    if optimizer := _moved_by(view, layer, ""):
        return f"{optimizer} was not watched"
    for block, of in zip(layer.parameters, distances(view, layer), strict=True):
        if len(of.way) and not of.way[-1] and _moved(view, block):
            return f"none of the watched numbers of {block.block_name} moved"
    return ""


def _moved(view: View, block: Parameter) -> bool:
    """Whether any number of a block was another at the end; False where there are no final weights of its shape."""
    final, initial = (view.stored_weights(which).get(block.name) for which in ("final", "initial"))
    if final is None or initial is None or final.shape != initial.shape:
        return False
    return not np.array_equal(block.block_of(final), block.block_of(initial))


def _moved_by(view: View, layer: Layer, image: ImageKind) -> str:
    """The name of the first optimizer of a layer's blocks whose rule is watched through this image; empty for none."""
    for block in layer.parameters:
        if BlockRules(view.snapshot, block).first.commutes_with == image:
            return view.snapshot.optimizer_of(block.block_name).name
    return ""


@dataclass(frozen=True)
class _Seen(BlockDistance):
    """What the watch says of one block as of a step."""

    of: Distances
    row: int


def _seen(view: View, layer: Layer, at_step: int) -> list[_Seen | None]:
    """Of each block that is watched, the worst of the rows around a step; None where there is none."""
    found = list[_Seen | None]()
    for block, of in zip(layer.parameters, distances(view, layer), strict=True):
        if BlockRules(view.snapshot, block).first.commutes_with:
            rows = [
                _Seen(block, float(of.accumulated[row]), float(of.way[row]), float(of.rounding[row]), of, int(row))
                for row in of.around(at_step)
            ]
            found.append(max(rows, key=lambda seen: (not seen.within(EXACT), seen.share), default=None))
    return found


def _joint(lengths: Sequence[float], known: Sequence[_Seen]) -> float:
    """The norm over all parameters, relative to the distance they moved."""
    length, way = math.hypot(*lengths), math.hypot(*(seen.way for seen in known))
    if not way:
        return math.inf if length else 0.0
    return length / way


def _unseen(view: View, layer: Layer, known: Sequence[_Seen], stop: int) -> tuple[int, str] | None:
    """Step and reason of a defect since the weights were last looked at, as where a recording was cut off; or None."""
    last = min((int(seen.of.step[-1]) for seen in known), default=stop)
    defects = [(step, reason) for step, reason in _defects(view, layer, stop) if step > last]
    return (defects[0][0], f"{defects[0][1].rstrip('.')}, and its weights were not seen since.") if defects else None


def _defects(view: View, layer: Layer, stop: int) -> list[tuple[int, str]]:
    """Step and reason of what may be wrong with a layer before a step, in order."""
    table = view.snapshot.table("defects")
    own = table.filter(pc.and_(pc.equal(table["layer"], layer.name), pc.less(table["step"], stop)))
    return sorted(zip(own["step"].to_pylist(), own["reason"].to_pylist(), strict=True), key=lambda row: row[0])


def _lacks(view: View, layer: Layer) -> str:
    """The first thing that is known to be wrong with the slots of a layer of scores only, as one more sentence."""
    defects = _defects(view, layer, view.snapshot.steps)
    return f" From step {defects[0][0]} on, {defects[0][1].rstrip('.')}." if defects else ""


def _reason(view: View, layer: Layer, stop: int, since: int | None) -> str:
    """What happened at `since`; the first thing that is known to be wrong where no step stands out."""
    known = _defects(view, layer, stop)
    defects = known if since is None else [(step, reason) for step, reason in known if step == since]
    # What is told once goes on: an earlier gradient that slots do not explain names the cause of this one.
    earlier = [(step, reason) for step, reason in known if since is not None and step < since and UNEXPLAINED in reason]
    if not defects and earlier and since is not None and _unexplained(view, layer, since) > TOLERANCE:
        defects = earlier
    if defects:
        step, reason = defects[0]
        return f"{reason.rstrip('.')} (from step {step} on)."
    coarsest = precision(view, layer.parameters)
    share = 0.0 if since is None else _unexplained(view, layer, since)
    # Of half precision, what rounding may leave is no defect; what it may not was told of where it began.
    rounded = share > TOLERANCE and coarsest != "float32"
    if share > TOLERANCE and not rounded:
        return f"{share:.1e} of the gradient of step {since} is not in the recorded slots."
    if since is not None and not rounded:
        if optimizer := _moved_by(view, layer, "entries"):  # what was written is a defect
            return f"{optimizer}'s update of step {since} was not what its rule makes of the record."
        return f"weights were changed outside the optimizer's update, after that of step {since}."
    if coarsest != "float32":
        return f"rounding of gradients and weights to {coarsest}."
    if _moved_by(view, layer, "entries") or _moved_by(view, layer, ""):
        return "float32 rounding of small steps, or of gradients near zero, which the optimizer scales up."
    return "float32 rounding of small steps."


def _unexplained(view: View, layer: Layer, step: int) -> float:
    """The largest share of a parameter's gradient that the slots of a step do not explain."""
    table = view.snapshot.table("factors")
    own = table.filter(pc.equal(table["step"], step))
    names = {block.block_name for block in layer.parameters}
    rows = zip(own["parameter"].to_pylist(), own["residual"].to_pylist(), strict=True)
    return max((math.inf if np.isnan(r) else r for name, r in rows if name in names), default=0.0)
