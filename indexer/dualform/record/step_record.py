"""What the taps bring in one step.

Shapes: B rows, `L...` token dimensions, d_in and d_out of a layer.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.record.call_order import CallOrder, Moment
from dualform.record.key_form import HALVED, owned_rows
from dualform.record.lineage import Known, KnownRows
from dualform.record.metadata import Metadata
from dualform.record.owners import Owners
from dualform.record.passes import Pass, Passes
from dualform.record.projection import surely_finite
from dualform.record.signal import Signal
from dualform.record.taps import Tap
from dualform.store.batch import Product


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
        self.random_states: Mapping[str, bytes] = {}
        """By device, the state of its random number generator at the beginning; empty where nobody asked."""
        self._before = None if before is None else weakref.ref(before)
        self._owners = owners
        self.followed: KnownRows | None = None
        self.rows: dict[int, Known] = {}
        """By number of the call, what is known of the rows that its key holds."""
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
                f"Step {self.step} continues step {earlier.step}, which is not the one before it.",
                hint="If several steps share a forward pass, let each continue the previous one.",
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

    def known_rows(self) -> list[Known | None]:
        """What is known of the rows of each call, in the order of `leading`."""
        return [signal.rows for name in self._signals for signal in self.calls(name)]

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
