"""Adam's update in one compiled loop, of the whole and of what a mask leaves at once: the bits that adam.py gives.

With arrays an update takes some thirty passes over a parameter's numbers, which for a batch of usual size cost more
than the products that make its gradient.
"""

from __future__ import annotations

import numpy as np

from dualform import kernels
from dualform.kernels.arguments import AdamUpdate
from dualform.kernels.workers import divide
from dualform.rules.moments import counted
from dualform.rules.rounding import correction, factor
from dualform.rules.update_rule import Doubles, Settings, State

_PIECE = 1 << 16
"""Numbers that a worker takes at once."""


def advance_both(
    whole: State, remaining: State, gradient: Doubles, stays: Doubles | None, settings: Settings
) -> tuple[State, State] | None:
    """As UpdateRule says. None where the loop was not compiled, and for what it does not know: AMSGrad, buffers of
    another shape than the weight's, and counts of updates that differ.
    """
    held = [own for state in (whole, remaining) for kind, own in state.buffers.items() if kind != "step"]
    if settings.get("amsgrad") or kernels.library() is None or any(own.shape != whole.weight.shape for own in held):
        return None
    count = counted(whole)
    if not count.size or count.min() != count.max():
        return None
    states = [whole] if stays is None else [whole, remaining]
    averages = [_buffer(state, "exp_avg") for state in states]
    squares, how = _buffer(whole, "exp_avg_sq"), _update(settings, np.asarray(count.reshape(-1)[0]))
    own = (None,) * 3 if stays is None else (remaining.weight, averages[1], stays)

    def work(_: int, start: int) -> None:
        stop = min(start + _PIECE, whole.weight.size)
        kernels.adam(how, start, stop, whole.weight, averages[0], squares, gradient, *own)

    if whole.weight.size <= _PIECE:
        work(0, 0)
    else:
        divide(range(0, whole.weight.size, _PIECE), work)
    after = State(whole.weight, {**whole.buffers, "exp_avg": averages[0], "exp_avg_sq": squares, "step": count})
    return after, remaining if stays is None else State(remaining.weight, {**remaining.buffers, "exp_avg": averages[1]})


def _buffer(state: State, kind: str) -> Doubles:
    """Zeros where the optimizer has none yet."""
    found = state.buffers.get(kind)
    return np.zeros_like(state.weight) if found is None else found


def _update(settings: Settings, count: Doubles) -> AdamUpdate:
    decay, decoupled = settings["weight_decay"], settings["decoupled_weight_decay"]
    share_of_gradient = factor(1 - settings["beta1"], settings)
    return AdamUpdate(
        sign=-1.0 if settings["maximize"] else 1.0,
        coupled=0.0 if decoupled else decay,
        share=share_of_gradient,
        rest=1 - share_of_gradient,
        share_of_squares=factor(1 - settings["beta2"], settings),
        rest_of_squares=factor(settings["beta2"], settings),
        correction=float(correction(settings["beta2"], count, settings)),
        rate=float(settings["lr"] / correction(settings["beta1"], count, settings)),
        eps=settings["eps"],
        left=1 - settings["lr"] * decay if decay and decoupled else 1.0,
        rounds=bool(decay and decoupled and settings["rounds_factors"]),
    )
