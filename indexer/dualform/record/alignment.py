"""Fits the calls of one step into extents: which layers' calls saw the same slots, and which layers part from them.

Shapes: B rows, `L...` token dimensions, d_in and d_out of a layer, n slots of an extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from torch import Tensor

from dualform.errors import BadInput, RecordingError
from dualform.record.spaces import Space, Spaces
from dualform.record.step_record import Signal, StepRecord
from dualform.record.taps import Tap


@dataclass(frozen=True)
class Shape:
    """One call of a space: its slots lie row after row."""

    space: Space
    call: int
    leading: tuple[int, ...]
    """(B,), or (B, L...) where the space has tokens."""
    moved: int
    """The axis that the batch had in the training."""

    @property
    def rows(self) -> int:
        return self.leading[0]

    @property
    def length(self) -> int | None:
        """Positions of a row, over all token dimensions; None where a slot is a row."""
        return prod(self.leading[1:]) if self.space.tokens else None

    @property
    def slots(self) -> int:
        return prod(self.leading)

    def __str__(self) -> str:
        return str(list(self.leading))


@dataclass
class Alignment:
    """The calls of one step that became slots."""

    shapes: dict[tuple[str, int], Shape] = field(default_factory=dict)
    """By space and call, in the order of the layers."""
    calls: dict[str, list[tuple[Shape, Signal]]] = field(default_factory=dict)
    """By layer, in the model's order."""
    parted: dict[str, str] = field(default_factory=dict)
    """Layer -> why its calls are no slots of this step."""

    def of_call(self, call: int) -> list[Shape]:
        return [shape for (_, number), shape in self.shapes.items() if number == call]


class Aligner:
    """Aligns one step. At the first step a layer that parts from the others is refused; later it has no slots."""

    def __init__(self, record: StepRecord, taps: Sequence[Tap], spaces: Spaces, first: bool) -> None:
        self._record, self._spaces, self._first = record, spaces, first
        self._metadata = record.metadata
        self._taps = [tap for tap in taps if record.calls(tap.name)]
        self._calls = {tap.name: record.calls(tap.name) for tap in self._taps}
        self._made: dict[str, Space] = {}
        self._of = {tap.name: spaces.space_of(tap.name, self._calls[tap.name][0].leading) for tap in self._taps}
        self.parted: dict[str, str] = {}

    def align(self) -> Alignment:
        """Raises BadInput where what was said of the batch fits no layer, and RecordingError at the first step."""
        self._check_ranks()
        for name in dict.fromkeys(self._of.values()):
            self._made[name] = self._spaces.known.get(name) or self._space(name)
            self._check_said_axis(self._made[name])
        fitted = {tap.name: self._fitted(tap) for tap in self._present()}
        shapes = self._shapes(fitted)
        self._check_rows(shapes, fitted)
        found = Alignment(parted=self.parted)
        for tap in self._present():
            found.calls[tap.name] = list(zip(fitted[tap.name], self._calls[tap.name], strict=True))
            found.shapes |= {(shape.space.name, shape.call): shapes[shape.space.name, shape.call]
                             for shape in fitted[tap.name]}  # fmt: skip
            if tap.name not in self._spaces.layers:
                tokens = len(self._calls[tap.name][0].leading) > 1
                self._spaces.admit(tap.name, self._made[self._of[tap.name]], tokens)
        self._check_square(found)
        return found

    def _present(self) -> list[Tap]:
        return [tap for tap in self._taps if tap.name not in self.parted]

    def _part(self, layer: str, message: str, hint: str) -> None:
        if self._first:
            raise RecordingError(f"{message}.", hint=hint)
        self.parted.setdefault(layer, message)

    def _check_ranks(self) -> None:
        for tap in self._taps:
            known = tap.name in self._spaces.layers
            tokens = tap.name in self._spaces.token_layers if known else len(self._calls[tap.name][0].leading) > 1
            for signal in self._calls[tap.name]:
                if (len(signal.leading) > 1) != tokens:
                    before, now = ("tokens", "rows") if tokens else ("rows", "tokens")
                    self._part(
                        tap.name,
                        f"layer {tap.name!r} was called with {before} at first and is called with {now} at step "
                        f"{self._record.step}: its input is {[*signal.leading, tap.d_in]}",
                        hint="Record a layer by one kind of slots, or leave it out with layers=.",
                    )

    def _members(self, space: str) -> list[Tap]:
        return [tap for tap in self._present() if self._of[tap.name] == space]

    def _space(self, name: str) -> Space:
        """A space that is seen for the first time."""
        members = self._members(name)
        deep = [tap for tap in members if len(self._calls[tap.name][0].leading) > 1]
        routed = any(self._spaces.routed(tap.name) for tap in members)
        if routed or not deep:
            return Space(name, tokens=bool(deep) and not routed, routed=routed, axis=0)
        said = self._metadata.batch_dim(name)
        return Space(name, tokens=True, routed=False, axis=self._told(name, deep) if said is None else said)

    def _told(self, space: str, layers: Sequence[Tap]) -> int | None:
        """Which axis is the batch, as the layers' own modules tell; None where none does."""
        told = [tap for tap in layers if tap.batch_dim is not None]
        for tap in told:
            if tap.batch_dim != told[0].batch_dim:
                self._part(
                    tap.name,
                    f"layers {told[0].name!r} and {tap.name!r} of space {space!r} have the batch in axis "
                    f"{told[0].batch_dim} and {tap.batch_dim}",
                    hint="Say batch_dim= in recorder.step, or give one of them another space, with spaces=.",
                )
        axis = told[0].batch_dim if told else None
        if axis != 1:
            return axis
        for tap in layers:
            leading = self._calls[tap.name][0].leading
            if tap.batch_dim is None and leading[0] == leading[1] > 1:
                self._part(
                    tap.name,
                    f"layer {told[0].name!r} has the batch in axis 1, and which axis of layer {tap.name!r} is the "
                    f"batch cannot be seen from {list(leading)}",
                    hint="Say batch_dim= in recorder.step, which holds for all layers.",
                )
        return axis

    def _check_said_axis(self, space: Space) -> None:
        said = self._metadata.batch_dim(space.name)
        if said is not None and space.tokens and (space.axis or 0) != said:
            raise BadInput(
                f"batch_dim of space {space.name!r} was {space.axis or 0} at first and is {said} now.",
                hint="The batch stays in one axis.",
                field="batch_dim",
            )

    def _fitted(self, tap: Tap) -> list[Shape]:
        """The shape of each call of a layer; the layer parts where one fits none."""
        space = self._made[self._of[tap.name]]
        shapes = []
        for number, signal in enumerate(self._calls[tap.name]):
            leading, axis = signal.leading, space.axis or 0
            if space.routed:
                leading = (prod(leading),)
            elif space.tokens and len(leading) == 1:
                leading = self._unfolded(tap, number, leading)
            elif not space.tokens and len(leading) > 1:
                self._part(
                    tap.name,
                    f"layer {tap.name!r} saw {list(leading)} at step {self._record.step}, and space {space.name!r} has "
                    "no tokens",
                    hint="Give it another space, with spaces=.",
                )
            if space.tokens and axis and len(leading) > 1:
                leading = (leading[1], leading[0], *leading[2:])
            shapes.append(Shape(space, number, leading, axis if space.tokens else 0))
        return shapes

    def _unfolded(self, tap: Tap, call: int, leading: tuple[int, ...]) -> tuple[int, ...]:
        """The shape, as the training has it, of tokens that were folded into rows."""
        for other in self._members(self._of[tap.name]):
            calls = self._calls[other.name]
            if call < len(calls) and len(calls[call].leading) > 1 and prod(calls[call].leading) == leading[0]:
                return calls[call].leading
        self._part(
            tap.name,
            f"layer {tap.name!r} saw {leading[0]} rows at step {self._record.step}, and no layer of space "
            f"{self._of[tap.name]!r} has so many tokens",
            hint="Give it another space, with spaces=.",
        )
        return leading

    def _shapes(self, fitted: Mapping[str, Sequence[Shape]]) -> dict[tuple[str, int], Shape]:
        """The shape that a space's layers agree on, call by call; those that do not agree part."""
        first: dict[tuple[str, int], tuple[str, Shape]] = {}
        for tap in self._present():
            for shape in fitted[tap.name]:
                name, agreed = first.get((shape.space.name, shape.call), (tap.name, shape))
                if (agreed.rows, agreed.slots) != (shape.rows, shape.slots):
                    self._part(
                        tap.name,
                        f"layers {name!r} and {tap.name!r} saw different batches at step {self._record.step}: "
                        f"{agreed} and {shape}",
                        hint=f"The layers of one space see the same batch: give one of them another space, as "
                        f"spaces={{{tap.name!r}: …}}, or leave it out with layers=.",
                    )
                    break
            else:
                for shape in fitted[tap.name]:
                    first.setdefault((shape.space.name, shape.call), (tap.name, shape))
        return {key: shape for key, (_, shape) in first.items()}

    def _check_rows(self, shapes: Mapping[tuple[str, int], Shape], fitted: Mapping[str, Sequence[Shape]]) -> None:
        """All spaces but routed ones must have the batch's rows. Raises BadInput where no call has."""
        regular = [shape for shape in shapes.values() if not shape.space.routed]
        said = self._said_rows(regular)
        first: dict[int, tuple[str, int]] = {}
        for tap in self._present():
            for shape in fitted[tap.name]:
                if shape.space.routed:
                    continue
                other, rows = first.setdefault(shape.call, (tap.name, shape.rows) if said is None else said)
                if shape.rows != rows:
                    self._part_from_rows(tap.name, shape.rows, other, rows, said is not None)
                    break

    def _part_from_rows(self, layer: str, seen: int, other: str, rows: int, said: bool) -> None:
        step = self._record.step
        of = f"{other} speaks of {rows}" if said else f"layer {other!r} {rows}, in one call"
        self._part(
            layer,
            f"layer {layer!r} saw {seen} rows at step {step}, and {of}",
            hint="Where its rows are the tokens of a batch, put it into their space, with spaces=; where the model "
            "chooses them, say routed= and give their rows with step(at=…).",
        )

    def _said_rows(self, shapes: Sequence[Shape]) -> tuple[str, int] | None:
        """An entry's name and B, of those that have rows."""
        arrays = self._metadata.arrays
        seen = {shape.rows for shape in shapes}
        found = None
        for name, entry in arrays.items():
            if (shapes and len(entry) not in seen) or (found is not None and found[1] != len(entry)):
                raise misfit(name, entry.shape, shapes)
            found = found or (name, len(entry))
        return found

    def _check_square(self, found: Alignment) -> None:
        """Where nothing tells the batch from the tokens, a batch that is not square does. Raises RecordingError."""
        for shape in found.shapes.values():
            if shape.space.axis is not None or not self._metadata.speaks_of(shape.space.name):
                continue
            if shape.leading[0] == shape.leading[1] > 1:
                raise RecordingError(
                    f"which axis of {shape} is the batch cannot be seen: it is square.",
                    hint="Say batch_dim=0 in recorder.step, or batch_dim=1 where the batch is the second axis.",
                    field="batch_dim",
                )
            shape.space.axis = 0


def misfit(name: str, entry: tuple[int, ...], shapes: Sequence[Shape]) -> BadInput:
    """An entry that fits no call of the step."""
    seen = " and ".join(dict.fromkeys(f"{shape} ({shape.space.name})" for shape in shapes))
    several = max((shape.call for shape in shapes), default=0)
    hint = "Give one value, one per row [B], or one per token [B, L]"
    if several:
        hint += "; micro-batches are one recorder.step each, of which only the last one updates"
    elif any(shape.space.tokens for shape in shapes):
        hint += "; say batch_dim=1 where the batch is the second axis of the layers' inputs"
    return BadInput(
        f"{name} has shape {list(entry)}, but the recorded layers saw batches of {seen}.", hint=f"{hint}.", field=name
    )


def laid_out(tensor: Tensor, shape: Shape) -> Tensor:
    """[n, width] as it came, as slots lie: row after row."""
    if not shape.moved or len(shape.leading) < 2:
        return tensor
    rows, length, *rest = shape.leading
    return tensor.view(length, rows, *rest, tensor.shape[-1]).transpose(0, 1).reshape(shape.slots, -1)
