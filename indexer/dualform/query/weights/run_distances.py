"""What the watches of several runs logged of one parameter, as if one watch had seen the whole training.

A run was watched from its own beginning. The distance at the end of the runs before it, and what it began with beside
what they ended with, is added to its own in full. How far it moved from the first run's beginning (`way`) is known at
its end, from the weights; before that it is at least the difference of its own and what was before it.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dualform.query.view import View
from dualform.query.weights.block_rules import BlockRules
from dualform.query.weights.coefficients import coefficients, updates
from dualform.query.weights.seams import Seam, seam, weights
from dualform.rules.update_rule import Doubles
from dualform.store.parameter import Parameter
from dualform.store.snapshot import Snapshot

Steps = NDArray[np.int64]
NUMBERS = ("one_step", "accumulated", "way", "rounding", "noise")
_ACCUMULATED, _WAY, _ROUNDING = 1, 2, 3
_UNMEASURED = (0.0, math.inf, 1.0, 0.0, 0.0)


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
    end = np.array(_UNMEASURED)
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
