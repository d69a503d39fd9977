"""What the taps bring in one step, and what the training says of it meanwhile.

Shapes: B rows, `L...` token dimensions, d_in and d_out of a layer.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.record.call_order import CallOrder, Moment
from dualform.record.followed_rows import FollowedRows, Rows
from dualform.record.key_form import HALVED, owned_rows
from dualform.record.metadata import Metadata
from dualform.record.owners import Owners
from dualform.record.passes import Pass, Passes
from dualform.record.probes import ProbeTaker
from dualform.record.projection import surely_finite
from dualform.record.signal import Signal
from dualform.record.taps import Tap
from dualform.store.batch import Product

_ARRIVALS = 1 << 32
"""Numbers that calls of one backward pass of compiled code are counted down from: more than there are."""


class StepRecord:
    """Collects one step. Gradients are what counts: a forward call may be repeated, or come to nothing."""

    def __init__(
        self, step: int, metadata: Metadata, first_call: int, owners: Owners, before: StepRecord | None = None
    ) -> None:
        """`before`: the step that ran before it, whatever came of it."""
        self.step = step
        self.metadata = metadata
        self.first_call = first_call
        """Calls with a lower number were made in an earlier step."""
        self.since = first_call
        """Calls with a lower number belong to an earlier step."""
        self.settled = False
        """Set once its slots are made; gradients that arrive later belong to no slot."""
        self.updated: set[int] = set()
        """Numbers of the optimizers that have made an update of it."""
        self.missed: set[int] = set()
        """Numbers of the optimizers to whose parameters a gradient came once slots were made."""
        self.raw: set[str] = set()
        """Layers whose input asks for no gradient: raw data, which repeats."""
        self.reached: dict[str, str] = {}
        """Layer -> what became of its forward calls, where no gradient came."""
        self.misfits: dict[str, str] = {}
        """Layer -> why a call of it is no row of the layer that was recorded."""
        self.unseen: dict[str, str] = {}
        """Layer -> why a call of it could not be recorded at all."""
        self._before = None if before is None else weakref.ref(before)
        self._owners = owners
        self.rows: dict[int, Rows] = {}
        """By number of the call, those that its key holds, where they are followed."""
        self._order = CallOrder()
        self._moments: dict[int, Moment | None] = {}
        """By number of the call, when it was made; None where nothing tells."""
        self._passes = Passes(owners)
        self._copies: dict[tuple[int, int], int] = {}
        """Numbers of the weights' copies that gradients went through: by graph task, and the copy's own number."""
        self._arrived = 0
        """How many error signals came."""

    @property
    def _signals(self) -> dict[str, dict[int, Signal]]:
        return self._passes.whole.signals

    @property
    def fresh(self) -> dict[int, bool]:
        """By optimizer, whether no gradient of an earlier step was there when the first of this one's arrived."""
        return self._passes.whole.fresh

    @property
    def passes(self) -> Sequence[Pass]:
        """The backward passes that ran, in their order, of which the gradients of the first ones may be gone."""
        return self._passes.apart

    def goes_on(self, earlier: StepRecord) -> None:
        """Gradients of the forward calls of the step before it which arrive now belong to this one.

        Raises RecordingError for another step than that: the metadata said of this one would name the wrong samples.
        """
        if self._before is None or self._before() is not earlier:
            raise RecordingError(
                f"step {self.step} is said to continue step {earlier.step}, which is not the one that ran before it.",
                hint="Where several steps share a forward pass, let each continue the one right before it.",
            )
        self.since, self.rows = earlier.since, dict(earlier.rows)
        self.raw |= earlier.raw
        self._order, self._moments = earlier._order, dict(earlier._moments)

    def keep(self, first: int) -> None:
        """Leave out the passes before the `first` one."""
        for layer in self._passes.keep(first):
            self.reached[layer] = "its gradients were cleared before an update used them"

    @property
    def empty(self) -> bool:
        return not self._signals

    @property
    def layers(self) -> list[str]:
        """The layers that gradients reached."""
        return list(self._signals)

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: next(iter(signals.values())).dtype for name, signals in self._signals.items()}

    def leading(self) -> list[tuple[str, list[tuple[int, ...]]]]:
        """Each layer that gradients reached, with the leading dimensions of its calls."""
        return [(name, [signal.leading for signal in self.calls(name)]) for name in self._signals]

    def called(self, tap: Tap, raw: bool, number: int | None = None) -> None:
        """`number`: what the call will be known by, where its place among the others is known by now."""
        if number is not None:
            self._moments[number] = self._order.now()
        self.reached[tap.name] = "its output reached no loss in a recorded step"
        if raw:
            self.raw.add(tap.name)

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        self._order.without_gradient()
        self.reached.setdefault(tap.name, f"{why} in every recorded step")

    def called_unseen(self, tap: Tap) -> None:
        self.unseen[tap.name] = self.reached[tap.name] = (
            f"it was called under a torch.func transform at step {self.step}"
        )

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        now = self._passes.now(tap) if key.numel() else None
        if now is None:
            return
        if self.settled:
            self.missed |= self._owners.among(tap.trained).keys()
            return
        form, outputs = tap.key_form, error.shape[-1] if tap.values else tap.d_out
        if (form.width(key), outputs) != (tap.d_in, tap.d_out):
            self.misfits[tap.name] = (
                f"took {form.described(key)} to {outputs} at step {self.step}, where it took {tap.d_in} to {tap.d_out}"
            )
            return
        self._arrived += 1
        dtype = key.dtype if key.is_floating_point() else error.dtype
        product = None if cast is None else self._product(dtype, cast)
        signal = Signal(
            form.owned(key), self._kept(tap, error), form.leading(key), dtype, form, product, self.rows.get(call)
        )
        now.add(tap.name, call, signal)

    def _product(self, dtype: torch.dtype, cast: int) -> Product:
        """Of a call whose error signal came now."""
        copy = self._copies.setdefault((torch._C._current_graph_task_id(), cast), len(self._copies))
        return Product(HALVED[dtype], copy, self._arrived)

    def calls(self, layer: str) -> list[Signal]:
        """The calls of a layer whose gradient arrived, in forward order; in that of their second runs if checkpoints
        leave it in doubt.
        """
        signals = self._signals.get(layer, {})
        if len(signals) == 1:
            return list(signals.values())
        moments = {number: self._moments.get(number) or () for number in signals}
        again = any(len(moment) != 1 for moment in moments.values()) and all(moments.values())
        return [signals[number] for number in sorted(signals, key=lambda n: (moments[n] if again else (), n))]

    @property
    def disordered(self) -> list[str]:
        """Layers of which several calls ran again in checkpoints, and nothing tells in which order they were made."""
        return [
            layer
            for layer, signals in self._signals.items()
            if len(signals) > 1 and any(self._moments.get(number, ()) is None for number in signals)
        ]

    def _kept(self, tap: Tap, error: Tensor) -> Tensor | None:
        """Where values are not wanted, only what holds NaN or infinity is kept."""
        return owned_rows(error, error.shape[-1]) if tap.values or not surely_finite(error) else None


class Step:
    """A step while it runs, as `recorder.step(...)` yields it: what may be said after its forward pass has begun."""

    def __init__(self, record: StepRecord | None) -> None:
        """`record`: None where recording has stopped."""
        self._record = record

    @property
    def updated(self) -> bool:
        """Whether an optimizer has made an update of it."""
        return self._record is not None and bool(self._record.updated)

    def continues(self, earlier: Step) -> None:
        """Say that it is of the same batch as the step before it: a gradient of that one's forward calls which arrives
        now belongs to this one. So a generator that ran before the discriminator's update is recorded with its own.

        Raises RecordingError where `earlier` is another step than the one that ran right before.
        """
        if self._record is not None and earlier._record is not None:
            self._record.goes_on(earlier._record)

    def at(self, space: str, **columns: Any) -> None:
        """Say columns of the slots of one space, as `step(at={space: {…}})` does: one value, one for each row, or one
        for each token [B, L…]; `position` and `mask` too, and `row` where the model chooses the rows.

        To a routed space it is said before each call: the k-th saying of a column, or of `row` and `position`, belongs
        to the space's k-th call of the step that a gradient reaches. One value that is said once holds for all calls.
        Where there are not as many sayings as calls, a first step is refused, and later nothing of it is recorded,
        with a warning.

        Raises BadInput for what is no column, RecordingError once the step's update has been made.
        """
        if self._record is None:
            return
        if self._record.settled:
            raise RecordingError(
                f"step.at was called after the update of step {self._record.step}.",
                hint="Say it between the forward pass and optimizer.step().",
            )
        self._record.metadata.say(space, columns)


class Collector:
    """Who the taps of a training report to: it hands everything to the step that runs, or to the probe."""

    def __init__(
        self, owners: Owners, late: Callable[[Tap], None], refused: Callable[[Tap, RecordingError], None]
    ) -> None:
        """`late` is told of a gradient that came outside its step, `refused` of a call in a step without keys."""
        self.step: StepRecord | None = None
        """The step that runs."""
        self.probe: ProbeTaker | None = None
        """The probe that is being taken."""
        self._before: weakref.ref[StepRecord] | None = None
        """The step that began last: what it collected is not kept alive for it."""
        self._owners, self._late, self._refused = owners, late, refused
        self._calls = 0
        self.follows = False
        self._followed: FollowedRows | None = None
        self._told_unseen = False
        self._pass, self._arrivals = -1, 0
        self.began = torch.zeros((), dtype=torch.int64)

    def begin(self, step: int, metadata: Metadata) -> StepRecord:
        """Collect another step from now on."""
        self.began = torch.tensor(self._calls)  # another tensor: that of an earlier step may be waited for
        before = None if self._before is None else self._before()
        self.step = StepRecord(step, metadata, self._calls, self._owners, before)
        self._before = weakref.ref(self.step)
        self._followed = FollowedRows() if self.follows else None
        return self.step

    @property
    def followed(self) -> FollowedRows | None:
        return self._followed if self.forward_mode() == "step" else None

    def forward_mode(self) -> str | None:
        if self.probe is not None:
            return "probe"
        return None if self.step is None else "step"

    def probed(self, tap: Tap, key: Tensor) -> None:
        if self.probe is not None:
            self.probe.probed(tap, key)

    def called(self, tap: Tap, raw: bool, rows: Rows | None = None) -> int:
        if self.step is not None:
            self.step.called(tap, raw, self._calls)
            if rows is not None:
                self.step.rows[self._calls] = rows
        self._calls += 1
        return self._calls - 1

    def arrived(self, tap: Tap, raw: bool, began: int) -> int:
        if self.step is None or began < self.step.since:
            return -1
        backward = torch._C._current_graph_task_id()
        if backward != self._pass:
            self._calls += _ARRIVALS
            self._pass, self._arrivals = backward, self._calls
        self.step.called(tap, raw)
        self._arrivals -= 1
        return self._arrivals

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        if self.step is not None:
            self.step.called_without_gradient(tap, why)

    def unseen(self, tap: Tap) -> None:
        if self.step is None:
            return
        self.step.called_unseen(tap)
        if not self._told_unseen:
            self._told_unseen = True
            warnings.warn(
                f"layer {tap.name!r}: {self.step.unseen[tap.name]}. What such calls add to gradients is not recorded, "
                "here and wherever it happens again; layers whose weights are trained by it have a grade that says so. "
                "Train by loss.backward() what is to be recorded.",
                RuntimeWarning,
                stacklevel=2,
            )

    def refused(self, tap: Tap, error: RecordingError) -> None:
        if self.probe is not None:
            raise error
        self._refused(tap, error)

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        if self.step is not None and call >= self.step.since:
            self.step.received(tap, call, key, error, cast)
        else:
            self._late(tap)
