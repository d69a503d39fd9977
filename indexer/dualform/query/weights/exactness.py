"""How exact the record of a layer is as of a step, from what was measured while training.

It is called by the worst of its blocks, or "scores only" where it cannot be rebuilt: no values, no
keys, or an optimizer without an update rule.

Distances are the watch's. A gradient that the slots do not explain makes no layer inexact: where the watch found one
so, it is given as the reason. Of a block whose rule was not watched, or that moved in other numbers than the watched
ones alone, as an embedding of which few rows are used may, only a pass over the slots can tell (reconstruction.py).

Whether weights of half precision moved less than their rounding: updates below half a last bit leave them in place.

    || the record's weights - the real ones ||  >  || W_t - W_0 ||        the record moves them further than they moved
                                               <=  sum over updates of u ||W||        and by no more than rounding took

Only where a rule does not round its updates as the training did: one that does makes them stand still as well.

What the watch of the recorder logged of each parameter: how far it was from its record, and when.

A row says how the weights stood once its step was over. Between two rows they are known only if both are good.

What the watches of several runs logged of one parameter, as if one watch had seen the whole training.

A run was watched from its own beginning. The distance at the end of the runs before it, and what it began with beside
what they ended with, is added to its own in full. How far it moved from the first run's beginning (`way`) is known at
its end, from the weights; before that it is at least the difference of its own and what was before it.

How exact the blocks of a layer are, each by what its own training allows, and what the layer is called for it.

exact               each block is within EXACT of the distance that it moved, or within the rounding of its weights;
                    one that stood still beside the layer's others, and missed as little, is not asked
exact to bfloat16   within BFLOAT16 of it, or the rounding, where the block's training computed in bfloat16; and of
                    what is bfloat16 itself, or whose optimizer computes in it, nothing better is said
off                 anything else
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.answers import Status
from dualform.query.view import View
from dualform.query.weights.coefficients import BlockRules, Seam, coefficients, rule_of, seam, updates, weights
from dualform.query.weights.missing_terms import (
    deleted_meanwhile,
    deleted_meanwhile_note,
    deletion_note,
    first_sampled_step,
    sampled_note,
    why_scores_only,
)
from dualform.rules.half_precision import UNIT_ROUNDOFF, HalfType
from dualform.rules.update_rule import Doubles, ImageKind
from dualform.store.batch import TOLERANCE, UNEXPLAINED
from dualform.store.layer import PRECISIONS, Layer, Parameter
from dualform.store.reading.snapshot import Snapshot

Name: TypeAlias = Literal["exact", "exact to bfloat16", "approximate"]
NAMES: Sequence[Name] = ("exact", "exact to bfloat16", "approximate")
"""The best first."""
EXACT = 1e-3
STILL = 1e-5
"""Of the distance that a layer moved: no output tells whether a parameter moved less. So little moves the bias of
attention's keys under SGD, whose gradient is rounding alone.
"""
BFLOAT16 = 2.0**-7


@dataclass(frozen=True)
class BlockDistance:
    """How far the record is from one block. Norms of all of its numbers."""

    block: Parameter
    accumulated: float
    """|| the record's - the real one ||."""
    way: float
    """How far it moved."""
    rounding: float
    """What rounding of float32 weights alone may account for."""

    @property
    def share(self) -> float:
        """Of how far the block moved."""
        if not self.way:
            return math.inf if self.accumulated else 0.0
        return self.accumulated / self.way

    def within(self, limit: float) -> bool:
        return self.share <= limit or self.accumulated <= self.rounding


def name_of(view: View, misses: Sequence[BlockDistance]) -> Name:
    """What a layer is called, from the misses of its blocks, or of those that were measured: what the worst is."""
    asked = _without_still_blocks(misses) or misses  # a layer that stood still as a whole is asked as a whole
    return max((name_of_block(view, miss) for miss in asked), key=NAMES.index, default="exact")


def name_of_block(view: View, miss: BlockDistance) -> Name:
    coarse = _computed_in_bfloat16(view, miss.block)
    # One entry of bfloat16 weights that was rounded to the other side is seldom among those that are watched.
    if miss.share <= EXACT or (not coarse and miss.within(EXACT)):
        return "exact to bfloat16" if _at_best_bfloat16(view, miss) else "exact"
    return "exact to bfloat16" if coarse and miss.within(BFLOAT16) else "approximate"


def precision(view: View, blocks: Iterable[Parameter]) -> str:
    """The coarsest type that any layer was computed in that holds one of some blocks."""
    return min((holder.dtype for holder in view.holders(blocks)), key=PRECISIONS.index)


def _without_still_blocks(misses: Sequence[BlockDistance]) -> list[BlockDistance]:
    """Without blocks that stood still beside the others: what such a one misses is in the layer's error alone."""
    still = STILL * math.hypot(*(miss.way for miss in misses))
    return [miss for miss in misses if not (miss.way <= still and miss.accumulated <= still)]


def _computed_in_bfloat16(view: View, block: Parameter) -> bool:
    """Whether the training computed a block's gradient, or an update of it, in bfloat16."""
    return precision(view, [block]) == "bfloat16" or bool(rule_of(view.snapshot, block.block_name).precision)


def _at_best_bfloat16(view: View, miss: BlockDistance) -> bool:
    """Whether a block is bfloat16 itself and its updates were rounded, or its optimizer computes in it."""
    if "bfloat16" in BlockRules(view.snapshot, miss.block).halves:
        return True
    return bool(rule_of(view.snapshot, miss.block.block_name).precision) and miss.accumulated > 0


Steps = NDArray[np.int64]
NUMBERS = ("one_step", "accumulated", "way", "rounding", "noise")
_ACCUMULATED, _WAY, _ROUNDING = 1, 2, 3
_NO_DISTANCES = (0.0, math.inf, 1.0, 0.0, 0.0)


def of_run(run: Snapshot, block: str) -> tuple[Steps, Doubles]:
    """int64[n] steps and float64[n, 5] NUMBERS that the watch of one run logged."""
    table = run.table("watch")
    own = table.filter(pc.equal(table["parameter"], block))
    return own["step"].to_numpy(), np.column_stack([own[name].to_numpy() for name in NUMBERS])


def of_runs(view: View, block: Parameter) -> tuple[Steps, Doubles, tuple[Seam, ...]]:
    """As `of_run`, of all runs of a memory, and where they part."""
    found, seams, before = list[tuple[Steps, Doubles]](), list[Seam](), np.zeros(5)
    for number, run in enumerate(view.snapshot.runs):
        steps, rows = of_run(run, block.block_name)
        if not _untouched(view, block, number):
            steps, rows = _with_end(steps, rows, run.steps)
        if number:
            between = seam(view, block, number)
            before = _before(run, block, before, between)
            rows = _after(before, rows)
            if between is not None:
                seams.append(between)
                steps, rows = np.append(0, steps), np.vstack([before, rows])
        if (way := _way(view, block, number)) is not None:
            rows[steps >= run.steps - 1, _WAY] = way
        found.append((steps + view.snapshot.first_steps[number], rows))
        before = rows[-1] if len(rows) else before
    return np.concatenate([steps for steps, _ in found]), np.vstack([rows for _, rows in found]), tuple(seams)


def _untouched(view: View, block: Parameter, run: int) -> bool:
    """Whether a block is of a layer that was first reached in a later run, and did not move until then."""
    runs = view.snapshot.runs
    if _reached(runs[run], block.block_name) or run + 1 == len(runs):
        return False
    if updates(runs[run], block.block_name, runs[run].steps):
        return False
    began, ended = (block.block_of(weights(view, number, "initial")[block.name]) for number in (run, run + 1))
    return began.tobytes() == ended.tobytes()


def _reached(run: Snapshot, block: str) -> bool:
    return any(own.block_name == block for layer in run.layers.values() for own in layer.parameters)


def _with_end(steps: Steps, rows: Doubles, recorded: int) -> tuple[Steps, Doubles]:
    """With a row for the run's last step: that of the last one that was logged, for the run ended as it stood then."""
    if not recorded or (len(steps) and steps[-1] >= recorded - 1):
        return steps, rows
    end = np.array(_NO_DISTANCES)
    if len(rows):
        end = np.append(0.0, rows[-1, 1:])
    return np.append(steps, recorded - 1), np.vstack([rows, end])


def _before(run: Snapshot, block: Parameter, end: Doubles, between: Seam | None) -> Doubles:
    """float64[5]: what is wrong from the beginning of a run, at most, while the run goes on.

    Weight decay shrinks what is wrong with the weights; that is not counted on. Of rules that are run again no more is
    known.
    """
    gain = 1.0
    if _reached(run, block.block_name) and BlockRules(run, block).linear:
        gain = max(1.0, abs(coefficients(run, block.block_name).initial))
    apart = between.distance if between else 0.0
    return np.array([apart, gain * (end[_ACCUMULATED] + apart), end[_WAY], gain * end[_ROUNDING], 0.0])


def _after(before: Doubles, rows: Doubles) -> Doubles:
    """The rows of a run, measured from the first run's beginning."""
    found = rows.copy()
    found[:, _ACCUMULATED] += before[_ACCUMULATED]
    found[:, _ROUNDING] = np.hypot(rows[:, _ROUNDING], before[_ROUNDING])
    found[:, _WAY] = np.abs(rows[:, _WAY] - before[_WAY])
    return found


def _way(view: View, block: Parameter, run: int) -> float | None:
    """How far the weights moved up to the end of a run; None where it was cut off, and not resumed from there."""
    final, initial = weights(view, run, "final").get(block.name), weights(view, 0, "initial")[block.name]
    if final is None and run + 1 < len(view.snapshot.runs) and seam(view, block, run + 1) is None:
        final = weights(view, run + 1, "initial").get(block.name)
    if final is None:
        return None
    return float(np.linalg.norm(block.block_of(final).astype(np.float64) - block.block_of(initial).astype(np.float64)))


STANDS_OUT = 8.0
"""A one-step distance this many times what rounding may account for is a jump."""


@dataclass(frozen=True, eq=False)
class Distances:
    """One block's rows, in the order they were logged; arrays of one length."""

    parameter: str
    step: NDArray[np.int64]
    one_step: Doubles
    accumulated: Doubles
    way: Doubles
    rounding: Doubles
    noise: Doubles
    seams: tuple[Seam, ...] = ()
    """Where a run did not begin as the one before ended."""

    @property
    def nbytes(self) -> int:
        return 6 * self.step.nbytes

    def around(self, at_step: int) -> NDArray[np.int64]:
        """The rows that bear witness once `at_step` steps were taken: those of that moment, else its neighbours.

        The end of a training that was cut off is its last row. Empty where there is none at all.
        """
        low, high = np.searchsorted(self.step, [at_step - 1, at_step])
        if low < high:
            return np.arange(low, high)
        return np.array([row for row in (low - 1, low) if 0 <= row < len(self.step)], dtype=np.int64)

    def jump(self, last: int) -> int | None:
        """The step of the first row up to row `last` whose one-step distance stands out; None where none does."""
        found = np.flatnonzero(self.one_step[: last + 1] > STANDS_OUT * self.noise[: last + 1])
        return int(self.step[found[0]]) if len(found) else None


def distances(view: View, layer: Layer) -> list[Distances]:
    """Of each block of a layer."""
    return [_of_block(view, block) for block in layer.parameters]


def _of_block(view: View, block: Parameter) -> Distances:
    return view.cache.get(("distances", block.block_name), lambda: _read(view, block))


def _read(view: View, block: Parameter) -> Distances:
    runs = view.snapshot.runs
    if len(runs) > 1:
        steps, numbers, seams = of_runs(view, block)
        return replace(Distances(block.block_name, steps, *numbers.T), seams=seams)
    steps, numbers = of_run(runs[0], block.block_name)
    return Distances(block.block_name, steps, *numbers.T)


def moved_less_than_rounding(view: View, precision: str, misses: Sequence[BlockDistance], steps: int) -> str:
    """What is said of a layer whose weights did so in its first steps, one sentence; empty for any other.

    `precision`: what the layer was computed in; `misses`: of its blocks, as the watch measured them.
    """
    apart, went = (math.hypot(*lengths) for lengths in ([m.accumulated for m in misses], [m.way for m in misses]))
    unit = UNIT_ROUNDOFF.get(precision)
    if unit is None or not went < apart < math.inf:
        return ""
    initial = view.stored_weights("initial")
    blocks = [miss.block.block_of(initial[miss.block.name]).astype(np.float64) for miss in misses]
    if any((HalfType(precision)(block) != block).any() for block in blocks):
        return ""  # they are float32, which holds such updates
    made = len(updates(view.snapshot, misses[0].block.block_name, steps))
    last_bit = unit * math.hypot(*(float(np.linalg.norm(block)) for block in blocks))
    if apart > made * last_bit:
        return ""
    return (
        f"its weights moved less than rounding: its updates were smaller than half a last bit of {precision} weights "
        f"({last_bit:.1e} of all of them), so that {made} updates moved them by {went:.1e}, and would have moved them "
        f"by about {apart:.1e} unrounded."
    )


_UNMEASURED = "the training was cut off before its weights were held against the record"


def status(view: View, layer: Layer, at_step: int | None = None) -> Status:
    """The status of a layer once `at_step` recorded steps were taken; None for all. Reads no slot."""
    stop = view.snapshot.steps if at_step is None else at_step
    if reason := why_scores_only(view, layer, stop):
        return Status("scores only", reason=reason + _lacks(view, layer))
    if stop == 0:
        return Status("exact", 0.0, 0.0)
    if part := deleted_meanwhile(view, layer, stop):
        return Status("approximate", since=part.first_step, reason=deleted_meanwhile_note(part))
    first = first_sampled_step(view, layer)
    if first is not None and first < stop:
        return Status(
            "approximate", since=first, reason=f"{sampled_note(view, layer)}: what the others brought is missing."
        )
    found = _measured(view, layer, stop)
    return replace(found, reason=deletion_note(view, layer, stop)) if not found.reason else found


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
