"""Where one run of a training ends and the next begins: whether the optimizer went on with what it had left."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dualform.query.view import View
from dualform.query.weights.coefficients import updates
from dualform.rules import named
from dualform.store.durable_files import checksum
from dualform.store.mark import Mark, digest_of, named_buffers
from dualform.store.mark_place import why_misplaced
from dualform.store.parameter import Parameter
from dualform.store.snapshot import Snapshot


@dataclass(frozen=True)
class Seam:
    """A block that a run did not begin as the run before ended it."""

    step: int
    """The later run's first step."""
    distance: float
    """Norm of the difference of the weights; inf where it is not known what the optimizer went on with."""
    reason: str


def seam(view: View, block: Parameter, run: int) -> Seam | None:
    """Between a run, from 1 on, and the one before; None where all is as it was left.

    Buffers are compared of the whole parameter, of which runs keep one checksum each.
    """
    before, after = view.snapshot.runs[run - 1], view.snapshot.runs[run]
    earlier, later = f"run {run - 1} ({before.path})", f"run {run} ({after.path})"
    step = view.snapshot.first_steps[run]
    if (mark := _resumed(view, run)) is not None:
        why = view.cache.get(("misplaced", run), lambda: why_misplaced(view.snapshot.runs[:run], mark))
        what = f"{later} was resumed from a moment of {earlier} that was counted wrongly: {why}"
        return Seam(step, math.inf, what) if why else None
    ended = weights(view, run - 1, "final").get(block.name)
    if ended is None:
        return Seam(step, math.inf, f"{earlier} was cut off, so the weights that it ended with are not known")
    began, ended = block.block_of(weights(view, run, "initial")[block.name]), block.block_of(ended)
    if began.tobytes() != ended.tobytes():
        distance = float(np.linalg.norm(began.astype(np.float64) - ended.astype(np.float64)))
        return Seam(step, distance or math.inf, f"{later} did not begin with the weights that {earlier} ended with")
    for kind, found in _buffers(after, block).items():
        if found != before.manifest.buffers.get(block.name, {}).get(kind):
            return Seam(step, math.inf, f"{later} did not begin with the {kind} that {earlier} left")
    return None


def _resumed(view: View, run: int) -> Mark | None:
    """The mark of the run before with which a run began, at its last step that counts: the network and what the
    optimizers kept, to the bit. None where it has none.
    """
    before, after = view.snapshot.runs[run - 1], view.snapshot.runs[run]

    def held() -> Mark | None:
        began = digest_of(after.initial().items()), digest_of(named_buffers(after.buffers()))
        marks = [mark for mark in before.manifest.marks if mark.step == before.steps]
        return next((mark for mark in reversed(marks) if (mark.weights, mark.buffers) == began), None)

    return view.cache.get(("resumed", run), held)


def weights(view: View, run: int, which: Literal["initial", "final"]) -> Mapping[str, NDArray[Any]]:
    """A run's state dict as it was stored; empty where its training was cut off before its end."""
    held = view.cache.get(("weights of a run", run, which), lambda: _Arrays(view.snapshot.runs[run], which))
    return held.arrays


def _buffers(run: Snapshot, block: Parameter) -> dict[str, str | None]:
    """The checksum of each buffer that a run's updates went on with, as it was at the beginning; None where missing."""
    rule = named(run.optimizer_of(block.block_name).rule)
    if rule is None or not any(rule.keeps(update.settings) for update in updates(run, block.block_name, run.steps)):
        return {}
    held = run.buffers().get(block.name, {})
    return {
        kind: checksum(held[kind].tobytes()) if kind in held else None for kind in (*rule.buffers, *rule.statistics)
    }


class _Arrays:
    def __init__(self, run: Snapshot, which: Literal["initial", "final"]) -> None:
        self.arrays: Mapping[str, NDArray[Any]] = (run.initial() if which == "initial" else run.final()) or {}
        self.nbytes = sum(array.nbytes for array in self.arrays.values())
