"""What the taps brought in one step, and its slots once all of it is there.

Shapes: B samples, `L...` token dimensions, d_in and d_out of a layer, n slots of a space.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.record.metadata import Metadata, Shape
from dualform.record.taps import Tap


@dataclass
class _Signal:
    """A layer's key and error signal, in memory of our own: the training may overwrite its buffers."""

    call: int
    keys: Tensor
    """float32[B * L..., d_in]."""
    errors: Tensor | None
    """float32[B * L..., d_out]; where no values are wanted, None or what holds NaN or infinity."""
    leading: tuple[int, ...]
    dtype: torch.dtype
    """What the training computed in."""


@dataclass
class Slots:
    """One step's new slots, aligned over the layers of each space."""

    shapes: dict[str, Shape]
    """By space."""
    rows: dict[str, tuple[Tensor, Tensor | None]]
    """Keys float32[n, d_in] and error signals float32[n, d_out] by layer; None for those that are not kept."""
    defects: dict[str, str] = field(default_factory=dict)
    """Layer -> why the record of this step does not tell its whole story."""


class StepRecord:
    """Collects one step. Gradients are what counts: a forward call may be repeated, or come to nothing."""

    def __init__(self, step: int, metadata: Metadata, first_call: int) -> None:
        self.step = step
        self.metadata = metadata
        self.first_call = first_call
        """Calls with a lower number belong to an earlier step."""
        self.slots: Slots | None = None
        """Set by `settle`; gradients that arrive later belong to no slot."""
        self.updated = False
        self.raw: set[str] = set()
        """Layers whose input asks for no gradient: raw data, which repeats."""
        self.reached: set[str] = set()
        """Layers that ran in training mode."""
        self._silent: dict[str, Tensor] = {}
        self._signals: dict[str, _Signal] = {}
        self._answered: dict[str, set[int]] = {}

    @property
    def empty(self) -> bool:
        return not self._signals

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: signal.dtype for name, signal in self._signals.items()}

    def called(self, tap: Tap, raw: bool) -> None:
        self.reached.add(tap.name)
        if raw:
            self.raw.add(tap.name)

    def called_without_gradient(self, tap: Tap, key: Tensor) -> None:
        self.reached.add(tap.name)
        if tap.name not in self._silent:
            self._silent[tap.name] = key.detach().to("cpu", torch.float32, copy=True)

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor) -> None:
        if self.slots is not None:
            return
        self._answered.setdefault(tap.name, set()).add(call)
        seen = self._signals.get(tap.name)
        if seen is not None and seen.call == call:
            # A second backward through the same call: gradients add up.
            more = self._kept(tap, error)
            if seen.errors is not None and more is not None:
                seen.errors += more
            elif seen.errors is None:
                seen.errors = more
        elif seen is None or call < seen.call:
            leading = tuple(key.shape[:-1]) or (1,)
            self._signals[tap.name] = _Signal(call, _owned(key, tap.d_in), self._kept(tap, error), leading, key.dtype)

    def _kept(self, tap: Tap, error: Tensor) -> Tensor | None:
        """Where values are not wanted, only what holds NaN or infinity is kept."""
        return _owned(error, error.shape[-1]) if tap.values or not _surely_finite(error) else None

    def overflowed(self) -> bool:
        """Whether float16 gradients overflowed, which a GradScaler answers by skipping the update: no slot then."""
        return any(
            s.dtype == torch.float16 and s.errors is not None and not s.errors.isfinite().all()
            for s in self._signals.values()
        )

    def spaces(self) -> dict[str, str]:
        """What a slot of each layer stands for, of those that ran."""
        ranks = {name: key.dim() - 1 for name, key in self._silent.items()}
        ranks |= {name: len(signal.leading) for name, signal in self._signals.items()}
        return {name: "token" if rank > 1 else "sample" for name, rank in ranks.items()}

    def settle(self, taps: Sequence[Tap], spaces: Mapping[str, str]) -> Slots:
        """Align what arrived; `spaces` tells each recorded layer's. Raises RecordingError where it does not align,
        and BadInput where the step's arguments do not fit it.
        """
        known = [tap for tap in taps if tap.name in spaces]
        shapes = self._shapes(known, spaces)
        self.metadata.check(list(shapes.values()))
        kept = {space: self.metadata.kept(shape) for space, shape in shapes.items()}
        slots = Slots(shapes, {})
        for tap in known:
            shape = shapes.get(spaces[tap.name])
            if shape is None:
                continue
            slots.rows[tap.name] = _chosen(*self._rows(tap, shape), kept[shape.space])
            if reason := self._defect(tap.name):
                slots.defects[tap.name] = reason
        self.slots = slots
        return slots

    def _shapes(self, taps: Sequence[Tap], spaces: Mapping[str, str]) -> dict[str, Shape]:
        first: dict[str, tuple[str, Shape]] = {}
        now = self.spaces()
        for tap in taps:
            signal = self._signals.get(tap.name)
            if signal is None:
                continue
            space = spaces[tap.name]
            if now[tap.name] != space:
                raise RecordingError(
                    f"layer {tap.name!r} had one {space} a row at first and has one {now[tap.name]} a row at step "
                    f"{self.step}: its input is {_said(signal.leading, tap.d_in)} now."
                )
            name, shape = first.setdefault(space, (tap.name, Shape(space, signal.leading)))
            if shape.leading != signal.leading:
                raise RecordingError(
                    f"layers {name!r} and {tap.name!r} saw different batches at step {self.step}: "
                    f"{list(shape.leading)} and {list(signal.leading)} {space}s.",
                    hint="One slot is one row of every layer: record those that see the same batch, with layers=.",
                )
        return {space: shape for space, (_, shape) in first.items()}

    def _rows(self, tap: Tap, shape: Shape) -> tuple[Tensor, Tensor | None]:
        signal = self._signals.get(tap.name)
        if signal is not None:
            return signal.keys, signal.errors
        keys = self._silent.get(tap.name)
        if keys is None or keys.numel() != shape.rows * tap.d_in:
            keys = torch.zeros(shape.rows, tap.d_in)
        errors = torch.zeros(shape.rows, tap.d_out) if tap.values else None
        return keys.reshape(shape.rows, tap.d_in).contiguous(), errors

    def _defect(self, name: str) -> str:
        calls = len(self._answered.get(name, ()))
        if calls > 1:
            return f"was called {calls} times at step {self.step}; one call a step can be a slot"
        if calls == 1:
            return ""
        if name in self._silent:
            return f"ran under torch.no_grad at step {self.step}: its inputs have no error signal"
        if name in self.reached:
            return f"got no gradient at step {self.step}: its output did not reach the loss"
        return f"was not called at step {self.step}"

    def why_unknown(self, tap: Tap) -> str:
        """Why a layer that this first step tells nothing of is left out."""
        what = "got no gradient" if tap.name in self.reached else "was not called"
        return f"{what} in the first recorded step, so what its slots stand for is unknown"

    def surely_finite(self, without: Collection[str] = ()) -> bool:
        """False where there may be NaN or infinity among the settled slots; `without` those of some layers."""
        assert self.slots is not None
        return all(
            _surely_finite(keys) and (errors is None or _surely_finite(errors))
            for name, (keys, errors) in self.slots.rows.items()
            if name not in without
        )

    def check_finite(self) -> None:
        """Raises RecordingError naming the first NaN or infinity of the settled slots."""
        assert self.slots is not None
        for name, parts in self.slots.rows.items():
            for what, part in zip(("key", "error signal"), parts, strict=True):
                if part is None:
                    continue
                bad = (~torch.isfinite(part)).any(dim=1).nonzero()
                if len(bad):
                    raise RecordingError(
                        f"the {what} of layer {name!r} at step {self.step}, row {int(bad[0])}, holds NaN or infinity.",
                        hint="This step was not recorded, what came before it is safe; look for a learning rate too "
                        "high or for missing values in the data.",
                    )


def _owned(tensor: Tensor, width: int) -> Tensor:
    copied = torch.empty((tensor.numel() // width, width), dtype=torch.float32)
    return copied.copy_(tensor.reshape(-1, width))


def _surely_finite(tensor: Tensor) -> bool:
    """Whether the sum is finite: NaN and infinity stay in it, and so, wrongly, may an overflow."""
    with torch.no_grad():
        return isfinite(float(tensor.sum()))


def _chosen(
    keys: Tensor, errors: Tensor | None, kept: np.ndarray[tuple[int], np.dtype[np.int64]] | None
) -> tuple[Tensor, Tensor | None]:
    if kept is None:
        return keys, errors
    chosen = torch.from_numpy(kept)
    return keys[chosen], None if errors is None else errors[chosen]


def _said(leading: tuple[int, ...], width: int) -> str:
    return str([*leading, width])
