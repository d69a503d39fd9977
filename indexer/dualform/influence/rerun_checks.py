"""What a rerun of a recorded training is held against: keys and error signals row by row, the size of the loss, and
what happened to gradients on the way to the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import Inexact
from dualform.influence.slot_window import SlotWindow
from dualform.query.view import View
from dualform.record.example_signals import all_trained, signal_rows, tapped_with
from dualform.record.module_taps import taps_of_recorded
from dualform.record.signal_taker import SignalTaker
from dualform.record.taps import Tap

if TYPE_CHECKING:
    from dualform.influence.recorded_training import Gradient, Update

_KEYS, _ERRORS, _EQUAL = 1e-3, 1e-2, 1e-3
"""How far keys, error signals and ratios that should be equal may be apart, of their size."""
_MEASURED = 3e-5
"""How far the measured factor of a gradient that nothing scaled may be from 1."""
_TOLD = 0.05
"""By how much something must vary over the training to tell what does not vary with it."""
_SAME_INPUTS = "batches must return the rows of each step as the training saw them, in their order. "
_NO_RANDOM = "For a network with dropout, record with keep_random=True."
_RANDOM = (
    "Dropout is drawn from torch's default generators as they were at the beginning of the step, in training mode: "
    "what the step drew before the forward pass, batches must draw, too."
)
_ROUNDS = (
    " Since earlier steps were equal, it may also be that this machine rounds otherwise than the one that trained: "
    "around the kinks of ReLU that grows."
)
_WHOLE = 10
"""Steps at which every layer is held against the record."""


class Ratio:
    """What the recorded loss of a step is of the mean of its rows' losses: one number, or one times the rows."""

    def __init__(self) -> None:
        self._of_mean: float | None = None
        self._of_sum: float | None = None
        self._seen: tuple[float, float, int] | None = None
        """The ratio, the loss and the rows of the first step that told."""
        self._varied = False
        """Whether losses or rows differ between steps, so that a ratio that does not is a constant."""

    def check(self, step: int, rows: int, found: float, loss: float) -> None:
        """Raises Inexact where a step's ratio is another one than the steps' before."""
        if self._seen is None:
            self._of_mean, self._of_sum, self._seen = found, found / rows, (found, loss, rows)
            return
        self._varied |= abs(loss - self._seen[1]) > _TOLD * abs(self._seen[1])
        if self._of_mean is not None and abs(found / self._of_mean - 1) > _EQUAL:
            self._of_mean = None
        if self._of_sum is not None and abs(found / rows / self._of_sum - 1) > _EQUAL:
            self._of_sum = None
        if self._of_mean is None and self._of_sum is None:
            raise Inexact(
                f"The recorded loss of step {step} is {found:.4g} times the mean of train_loss, unlike earlier steps.",
                hint="train_loss must return, for each row, its part of the loss that was trained.",
                field="train_loss",
            )

    def require_told(self) -> None:
        """Raises Inexact where the loss could be any function of the mean: it was always about the same."""
        if self._seen is None or self._varied:
            return
        found, _, rows = self._seen
        plain = [1.0, float(rows), *(1 / own for own in range(2, 65)), *(rows / own for own in range(2, 65))]
        if min(abs(found / own - 1) for own in plain) > _EQUAL:
            raise Inexact(
                f"The recorded loss is {found:.4g} times the mean of train_loss, which hardly changed in training, so "
                "it is not known whether it is a constant times it.",
                hint="train_loss must return, for each row, its part of the loss that was trained.",
                field="train_loss",
            )

    def of(self, rows: int) -> float:
        if self._of_mean is not None:
            return _plain(self._of_mean)
        return 1.0 if self._of_sum is None else _plain(self._of_sum) * rows


def _plain(ratio: float) -> float:
    """A ratio that was measured as 1, or 1 / k, to rounding: a rerun with it has the training's own bits."""
    return next((own for own in (1.0, *(1 / k for k in range(2, 65))) if abs(ratio / own - 1) < _MEASURED), ratio)


class Record:
    """Keys and error signals of the recorded layers, which each step of a rerun is held against."""

    def __init__(
        self,
        view: View,
        taps: Mapping[str, Tap],
        parameters: Mapping[str, nn.Parameter],
        reader: ThreadPoolExecutor,
    ) -> None:
        self._taps, self._taker, self._parameters = taps, SignalTaker(), parameters
        layers = {name: view.snapshot.layer(name) for name in taps}
        self._axes = {name: layer.batch_dim for name, layer in layers.items()}
        self._windows = {
            name: SlotWindow(view, layer, np.zeros(len(view.slot_steps(layer)), np.int64), reader)
            for name, layer in layers.items()
        }
        self._every = max(1, view.snapshot.steps // _WHOLE)
        self._last = view.snapshot.steps - 1
        self._random = "random_states" in view.snapshot.manifest.tables()
        self._smallest = min(layers, key=lambda name: layers[name].d_in + layers[name].d_out)

    @classmethod
    @contextmanager
    def attached(cls, view: View, model: nn.Module) -> Iterator[Record]:
        """Raises Inexact for a memory that has no layer with keys and values, BadInput for another model."""
        whole = {layer.name: layer for layer in view.snapshot.layers.values() if layer.keys and layer.values}
        if not whole:
            raise Inexact(
                "No layer has both keys and values, so a rerun cannot be held against the record.",
                hint="Record the training with keys and values.",
                field="path",
            )
        taps = taps_of_recorded(model, whole.keys(), view.stored_weights("initial"))
        with ThreadPoolExecutor(1, "dualform-adjoint") as reader:
            yield cls(view, taps, dict(model.named_parameters()), reader)

    @contextmanager
    def taking(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Takes keys and error signals of the passes within, at weights."""
        self._taker.begin()
        with tapped_with(self._taps.values(), self._parameters, weights), all_trained(self._parameters.values()):
            try:
                for tap in self._taps.values():
                    tap.attach(self._taker)
                yield
            finally:
                for tap in self._taps.values():
                    tap.detach()

    def ratio(self, step: int) -> float | None:
        """What the recorded error signals of a step are of those that came last; None where all are 0.

        Raises Inexact where rows differ: of every layer at some steps, of the smallest one at each.
        """
        every = step % self._every == 0 or step == self._last
        pairs = dict[str, tuple[NDArray[Any], NDArray[Any]]]()
        for name, tap in self._taps.items():
            if not every and name != self._smallest:
                continue
            recorded = self._windows[name].between(step, step)
            calls = [signal_rows(tap, key, error, self._axes[name]) for key, error in self._taker.of(tap)]
            keys = np.concatenate([own for own, _ in calls] or [recorded.keys[:0]])
            errors = np.concatenate([own for _, own in calls] or [recorded.errors[:0]])
            if keys.shape != recorded.keys.shape or _apart(keys, recorded.keys) > _KEYS:
                raise Inexact(
                    f"The rerun differs from the record at step {step}: layer {name!r} gets other inputs.",
                    hint=_SAME_INPUTS + (_RANDOM if self._random else _NO_RANDOM) + (_ROUNDS if step else ""),
                    field="batches",
                )
            pairs[name] = errors.astype(np.float64), recorded.errors
        size = sum(float((own * own).sum()) for own, _ in pairs.values())
        ratio = sum(float((own * its).sum()) for own, its in pairs.values()) / size if size else 0.0
        for name, (mine, its) in pairs.items():
            if _apart(ratio * mine, its) > _ERRORS:
                raise Inexact(
                    f"The rerun differs from the record at step {step}: layer {name!r} gets other error signals.",
                    hint="train_loss must return, for each row, its part of the loss that was trained, all of it.",
                    field="train_loss",
                )
        return ratio if size else None


def _apart(own: NDArray[Any], recorded: NDArray[Any]) -> float:
    """How far two arrays are apart, of the size of the second one."""
    size = float(np.linalg.norm(recorded))
    return float(np.linalg.norm(own - recorded)) / size if size else float(np.linalg.norm(own) > 0)


def factor_of(update: Update, gradient: Gradient) -> float:
    """What happened to the gradient of an update on the way to the optimizer. Nothing can be told of parts that are 0.
    Raises Inexact where parameters differ.
    """
    told = [factor for name, factor in update.factors.items() if name in gradient.parts and gradient.parts[name].any()]
    if not told:
        return 1.0
    if max(told) - min(told) > _EQUAL * max(map(abs, told)):
        raise otherwise_scaled(
            f"The update after step {update.last_step} scaled the gradients of parameters differently."
        )
    found = float(np.median(told))
    return 1.0 if abs(found - 1) <= _MEASURED else found


def scaling_of(scaled: Sequence[tuple[float, float]]) -> tuple[float | None, float]:
    """The norm that gradients were clipped to, if any, or what all of them were multiplied by; from the factors of
    gradients and their norms. Raises Inexact for any other change, and where it cannot be told which it was.
    """
    factors, norms = np.array(scaled or [(1.0, 1.0)]).T
    if np.abs(factors - 1).max() <= _MEASURED:
        return None, 1.0
    if np.ptp(factors) <= _MEASURED * np.abs(factors).max():
        if np.ptp(norms) <= _TOLD * norms.max():
            raise otherwise_scaled(
                "All gradients were scaled alike, and have about the same norm: by clipping, or a constant."
            )
        return None, float(np.median(factors))
    clipped = factors < 1 - _MEASURED
    limits = factors[clipped] * (norms[clipped] + 1e-6)
    limit = float(np.median(limits)) if len(limits) else math.nan
    fits = len(limits) > 1 and np.abs(limits / limit - 1).max() <= 10 * _EQUAL
    fits = fits and bool((factors[~clipped] <= 1 + _MEASURED).all())
    if not (fits and bool((norms[~clipped] <= limit * (1 + 10 * _EQUAL)).all())):
        raise otherwise_scaled("The training scaled gradients otherwise than clip_grad_norm_ with one max_norm does.")
    return limit, 1.0


def otherwise_scaled(what: str) -> Inexact:
    hint = "An adjoint follows clip_grad_norm_ over all parameters, in two updates or more, and no other change."
    return Inexact(what, hint=hint, field="path")
