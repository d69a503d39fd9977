"""How exact the record of a layer is as of a step, as measured while the training ran.

    exact               each parameter is within EXACT of the way that it went, or within the rounding of its weights;
                        one that stood still beside the layer's others, and missed as little, is not asked
    exact to bfloat16   within BFLOAT16 of it, or the rounding, where the training computed in bfloat16, or where
                        weights are bfloat16 themselves
    off                 anything else
    scores only         the layer cannot be rebuilt: no values, no keys, or an optimizer without an update rule

Distances are the watch's. What gradients do not explain is a reason, no verdict. Of a rule that was not watched, only a
pass over the slots can tell (certificate.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow.compute as pc

from dualform.answers import Grade
from dualform.query.view import View
from dualform.query.weights.coefficients import rule_of
from dualform.query.weights.distances import Distances, distances
from dualform.query.weights.seams import Seam
from dualform.query.weights.standstill import moved_less_than_rounding
from dualform.rules import named
from dualform.rules.update_rule import ImageKind
from dualform.store.batch import TOLERANCE
from dualform.store.layer import PRECISIONS, Layer
from dualform.store.parameter import Parameter
from dualform.store.stored_optimizer import StoredOptimizer

EXACT = 1e-3
STILL = 1e-5
"""Of a layer's way: no output tells whether a parameter went less. So far goes the bias of attention's keys under SGD,
whose gradient is rounding alone.
"""
BFLOAT16 = 2.0**-7
_UNMEASURED = "the training was cut off before its weights were held against the record"


def grade(view: View, layer: Layer, at_step: int | None = None) -> Grade:
    """The grade of a layer once `at_step` recorded steps were taken; None for all. Reads no slot."""
    if reason := why_scores_only(view, layer):
        return Grade("scores only", reason=reason + _lacks(view, layer))
    stop = view.snapshot.steps if at_step is None else at_step
    if stop == 0:
        return Grade("exact", 0.0, 0.0)
    if optimizer := unwatched(view, layer):
        reason = f"{optimizer} was not watched while training; `verify` measures the end of it."
        return Grade("off", reason=reason)
    found = [_reading(of, stop) for of in distances(view, layer)]
    known = [reading for reading in found if reading is not None]
    if len(known) < len(found):
        return Grade("off", reason=f"{_UNMEASURED}.")
    error = _joint([reading.accumulated for reading in known], known)
    rounding = _joint([reading.rounding for reading in known], known)
    seams = _seams(known, stop)
    if (name := _name(view, layer, known)) != "off" and not seams:
        unseen = _unseen(view, layer, known, stop)
        return Grade("off", error, rounding, *unseen) if unseen else Grade(name, error, rounding)
    if not math.isfinite(error) and seams:
        return Grade("off", since=seams[0].step, reason=_first_of(seams))
    if math.isnan(error) and not _defects(view, layer, stop):
        unmeasured = _UNMEASURED if view.snapshot.cut_off else "the update rule makes NaN or infinity of the record"
        return Grade("off", reason=f"{unmeasured}.")
    if still := _stood_still(view, layer, known, stop):
        return Grade("off", reason=still)
    jumps = [step for reading in known if (step := reading.of.jump(reading.row)) is not None]
    since = min(jumps, default=None)
    reason = _first_of([seam for seam in seams if seam.step == since]) or _reason(view, layer, stop, since)
    if not math.isfinite(error):  # no way to hold the distance against, or nothing there to look at
        return Grade("off", since=since, reason=reason)
    return Grade("off", error, rounding, since, reason)


def stood_still(view: View, layer: Layer) -> bool:
    """Whether the layer's weights moved less than their rounding by the end, so that no share of their way tells
    anything.
    """
    stop = view.snapshot.steps
    known = [reading for of in distances(view, layer) if (reading := _reading(of, stop)) is not None]
    return _name(view, layer, known) == "off" and bool(_stood_still(view, layer, known, stop))


def _stood_still(view: View, layer: Layer, known: Sequence[_Reading], stop: int) -> str:
    accumulated, way = [reading.accumulated for reading in known], [reading.way for reading in known]
    return moved_less_than_rounding(view, layer, layer.dtype, accumulated, way, stop)


def _seams(known: Sequence[_Reading], stop: int) -> list[Seam]:
    """Where runs part before a step, in order."""
    return sorted((s for reading in known for s in reading.of.seams if s.step < stop), key=lambda seam: seam.step)


def _first_of(seams: Sequence[Seam]) -> str:
    """What the first of some seams says, as one sentence; empty where there is none."""
    return f"{seams[0].reason} (from step {seams[0].step} on)." if seams else ""


def unwatched(view: View, layer: Layer) -> str:
    """The optimizer of a block of the layer that was not held against the record while training; empty where all were.

    Raises Inexact where a block has no update rule.
    """
    return _moved_by(view, layer, "")


def _moved_by(view: View, layer: Layer, image: ImageKind) -> str:
    """The name of the first optimizer of a layer's blocks whose rule is watched through this image; empty for none."""
    blocks = [block.block_name for block in layer.parameters]
    found = [name for name in blocks if rule_of(view.snapshot, name).commutes_with == image]
    return view.snapshot.optimizer_of(found[0]).name if found else ""


def halved(view: View, layer: Layer) -> bool:
    """Whether the training computed the layer, or an update of it, in bfloat16."""
    rules = [rule_of(view.snapshot, block.block_name) for block in layer.parameters]
    return _precision(view, layer) == "bfloat16" or any(rule.precision == "bfloat16" for rule in rules)


def why_scores_only(view: View, layer: Layer) -> str:
    """Why a layer cannot be rebuilt, one sentence; empty where it can."""
    if not layer.keys:
        return "neither keys nor error signals were recorded (keys=False)."
    for block in layer.parameters:
        if reason := _why_not_rebuilt(view.snapshot.optimizer_of(block.block_name), block):
            return reason
    if not layer.values:
        return f"{layer.reason or 'its error signals were not recorded (values=False)'}."
    return ""


def _why_not_rebuilt(optimizer: StoredOptimizer, block: Parameter) -> str:
    """As `why_scores_only`, of one block and the optimizer that moved it."""
    if not optimizer.rule:
        reason = optimizer.reason or f"there is no update rule for {optimizer.name}"
        return f"{reason.rstrip('.')}."
    rule = named(optimizer.rule)
    if rule is None:
        return f"its update rule {optimizer.rule!r} is not known here (dualform.rules.register tells of it)."
    if not rule.commutes_with and (block.rows or block.columns):
        return f"{optimizer.name} is run again on whole parameters, of which this layer stands for a part."
    return ""


@dataclass(frozen=True)
class _Reading:
    """What the watch says of one parameter as of a step."""

    of: Distances
    row: int
    accumulated: float
    way: float
    rounding: float

    @property
    def share(self) -> float:
        """Distance relative to the way."""
        if not self.way:
            return math.inf if self.accumulated else 0.0
        return self.accumulated / self.way

    def within(self, limit: float) -> bool:
        return self.share <= limit or self.accumulated <= self.rounding


def _reading(of: Distances, at_step: int) -> _Reading | None:
    """The worst of the rows around a step."""
    rows = of.around(at_step)
    found = [_Reading(of, int(r), float(of.accumulated[r]), float(of.way[r]), float(of.rounding[r])) for r in rows]
    return max(found, key=lambda reading: (not reading.within(EXACT), reading.share), default=None)


def _name(view: View, layer: Layer, known: Sequence[_Reading]) -> Literal["exact", "exact to bfloat16", "off"]:
    in_bfloat16 = halved(view, layer)
    known = _moved(known) if layer.dtype == "float32" else known
    if all(reading.share <= EXACT or (not in_bfloat16 and reading.within(EXACT)) for reading in known):
        # One entry of bfloat16 weights that was rounded to the other side is seldom among those that are watched.
        return "exact to bfloat16" if _of_bfloat16(view, layer) else "exact"
    if in_bfloat16 and all(reading.within(BFLOAT16) for reading in known):
        return "exact to bfloat16"
    return "off"


def _moved(known: Sequence[_Reading]) -> list[_Reading]:
    """Without parameters that stood still beside the others: what such a one misses is in the layer's error alone."""
    still = STILL * math.hypot(*(reading.way for reading in known))
    return [reading for reading in known if not (reading.way <= still and reading.accumulated <= still)]


def _precision(view: View, layer: Layer) -> str:
    """The coarsest type that any layer was computed in that holds one of this one's blocks."""
    own = {block.block_name for block in layer.parameters}
    holders = [o for o in view.snapshot.layers.values() if not own.isdisjoint(b.block_name for b in o.parameters)]
    return min((holder.dtype for holder in holders), key=PRECISIONS.index)


def _of_bfloat16(view: View, layer: Layer) -> bool:
    """Whether weights are bfloat16 themselves, and their updates rounded."""
    return any(view.snapshot.manifest.halved.get(block.name) == "bfloat16" for block in layer.parameters)


def _joint(lengths: Sequence[float], known: Sequence[_Reading]) -> float:
    """The norm over all parameters, relative to the way they went."""
    length, way = math.hypot(*lengths), math.hypot(*(reading.way for reading in known))
    if not way:
        return math.inf if length else 0.0
    return length / way


def _unseen(view: View, layer: Layer, known: Sequence[_Reading], stop: int) -> tuple[int, str] | None:
    """Step and reason of a defect since the weights were last looked at, as where a recording was cut off; or None."""
    seen = min(int(reading.of.step[-1]) for reading in known)
    defects = [(step, reason) for step, reason in _defects(view, layer, stop) if step > seen]
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
    defects = _defects(view, layer, stop)
    if since is not None:
        defects = [(step, reason) for step, reason in defects if step == since]
    if defects:
        step, reason = defects[0]
        return f"{reason.rstrip('.')} (from step {step} on)."
    if since is not None and (share := _unexplained(view, layer, since)) > TOLERANCE:
        return f"{share:.1e} of the gradient of step {since} is not in the recorded slots."
    if since is not None and (optimizer := _moved_by(view, layer, "entries")):  # what was written is a defect
        return f"{optimizer}'s update of step {since} was not what its rule makes of the record."
    if since is not None:
        return f"weights were changed outside the optimizer's update, after that of step {since}."
    if (precision := _precision(view, layer)) != "float32":
        return f"rounding of gradients and weights to {precision}."
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
