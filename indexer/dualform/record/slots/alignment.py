"""Fits the calls of one step to the rows of the batch: which axis is the batch, and which calls share slots.

Shapes: B rows, `L...` token dimensions, n slots of an extent.

The batch axis of a space of tokens is inferred once, when its first layers are seen, from the strongest source there is
(`AxisSource`). In a space with the batch in the second axis, a layer that does not know its own axis may have the batch
in the first, and its slots would be transposed. Such a layer is recorded once a batch that is neither square nor one
entry long shows its axis.

What a step's calls come to follows from their shapes and from the shapes of the step's metadata. So an alignment is
kept as a plan, and reused by every later step of the same shapes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualform.errors import BadInput, RecordingError
from dualform.patterns import matches
from dualform.record.layout import AxisSource, RecordedSpace, Shape, Signal, laid_out, misfit, oblong, square, turned
from dualform.record.lineage import Lineage, Mark, Place, place_of
from dualform.record.slots.spaces import Spaces, lost_call
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap
from dualform.store.batch import Extent

_PLANS = 64
"""Alignments that are kept, each of other shapes: batches of varying length have a few dozen."""


@dataclass
class Alignment:
    """The calls of one step that became slots."""

    calls: dict[str, list[tuple[int, Shape]]]
    """By layer, in the model's order: each call's index among the layer's calls, and its shape."""
    dropped: dict[str, str]
    """Layer -> why calls of it are no slots of this step."""
    shapes: dict[tuple[str, int], Shape] = field(default_factory=dict)
    """By space and call."""
    extents: Sequence[Extent] | None = None
    """Of every step of this alignment, where they follow from shapes alone."""


class Aligner:
    """Aligns the steps of one recording."""

    def __init__(self, taps: Sequence[Tap], spaces: Spaces) -> None:
        self._taps, self._spaces = taps, spaces
        self._plans: dict[Hashable, Alignment] = {}

    def align(self, record: StepRecord, first: bool) -> Alignment:
        """A call that does not fit the others is refused at the `first` step; later it has no slots.

        Raises BadInput where the metadata fits no layer, and RecordingError at the first step.
        """
        signature = _signature(record)
        if signature in self._plans:
            return self._plans[signature]
        found = _StepAlignment(record, self._taps, self._spaces, first).align()
        if signature is not None and not found.dropped and not any(shape.untold for shape in found.shapes.values()):
            if len(self._plans) == _PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[signature] = found
        return found


def _signature(record: StepRecord) -> Hashable:
    """What an alignment follows from; None where indices of this step moved the rows of a call."""
    known = record.known_rows()
    if any(isinstance(own, Lineage) and not own.steady for own in known):
        return None
    calls = [(name, tuple(leading)) for name, leading in record.leading()]
    return tuple(calls), tuple(known), record.metadata.shapes


@dataclass(eq=False)
class _Call:
    """One call of a layer, and the slots that it becomes."""

    tap: Tap
    index: int
    signal: Signal
    space: RecordedSpace
    shape: Shape | None = None

    @property
    def fitted(self) -> Shape:
        assert self.shape is not None
        return self.shape

    @property
    def stray(self) -> bool:
        """Whether its rows are not the batch's in any order, or unknown: no other call is held against it."""
        return self.fitted.place is not None and not self.space.routed


class _StepAlignment:
    """Aligns one step."""

    def __init__(self, record: StepRecord, taps: Sequence[Tap], spaces: Spaces, first: bool) -> None:
        self._record, self._metadata, self._spaces, self._first = record, record.metadata, spaces, first
        self._taps = [tap for tap in taps if record.calls(tap.name)]
        signals = {tap.name: record.calls(tap.name) for tap in self._taps}
        spaces.meet(signals, self._metadata.rows)
        names = {tap.name: spaces.space_of(tap.name, signals[tap.name][0].leading) for tap in self._taps}
        self._hear_layers()
        made = {name: self._space(name, [tap for tap in self._taps if names[tap.name] == name], signals)
                for name in dict.fromkeys(names.values())}  # fmt: skip
        self._of = {layer: made[name] for layer, name in names.items()}
        self._calls = [
            _Call(tap, index, signal, self._of[tap.name])
            for tap in self._taps
            for index, signal in enumerate(signals[tap.name])
        ]
        """Those that are not dropped."""
        self._doubtful = {tap.name for tap in self._taps if self._is_doubtful(tap, signals[tap.name])}
        self._dropped: dict[str, str] = {}
        self._stray_numbers: dict[tuple[str, Any, int], list[int]] = {}
        """By space, source of the rows, and count of slots: call numbers of strays, after those of all other calls."""
        self._next = max(map(len, signals.values()), default=0)
        self._batched = any(call.signal.rows is not Mark.MODEL for call in self._calls)
        """Whether any layer saw rows of a batch."""

    def align(self) -> Alignment:
        for call in list(self._calls):
            self._check_rank(call)
        for call in list(self._calls):
            self._fit(call)
        self._check_rows(self._agree())
        found = self._found()
        self._check_square(found)
        return found

    def _hear_layers(self) -> None:
        """Take in what batch_dim says of single layers."""
        spaces = self._spaces
        spaces.check_axes(list(self._metadata.axes))
        for layer, axis in self._metadata.axes.items():
            if layer not in spaces.names and axis is not None:
                if layer in spaces.layers or layer in spaces.axes:
                    _check_same(f"layer {layer!r}", spaces.axis_of(layer), axis)
                spaces.axes[layer] = axis

    def _space(self, name: str, members: Sequence[Tap], signals: Mapping[str, Sequence[Signal]]) -> RecordedSpace:
        """A space with its batch axis, as it is known by now."""
        passed, space = self._metadata.batch_dim(name), self._spaces.known.get(name)
        if space is None:
            deep = [tap for tap in members if len(signals[tap.name][0].leading) > 1]
            routed = any(self._spaces.routed(tap.name) for tap in members)
            tokens = bool(deep) and not routed
            space = RecordedSpace(name, tokens, routed, *(self._inferred(deep, passed) if tokens else ()))
        if passed is not None and space.tokens and space.source is not AxisSource.LAYER_KIND:
            _check_same(f"space {space.name!r}", space.axis, passed)
            space.source = AxisSource.ARGUMENT
        return space

    def _inferred(self, layers: Sequence[Tap], passed: int | None) -> tuple[int, AxisSource, str]:
        """Axis of a new space by its layers that see tokens, how it is known, and by which layer."""
        kinds = [tap.key_form.batch_axis for tap in layers]
        if None not in kinds and kinds[0] is not None:
            return kinds[0], AxisSource.LAYER_KIND, ""
        if passed is not None:
            return passed, AxisSource.ARGUMENT, ""
        axes = self._spaces.axes
        for tap in layers:
            if tap.batch_dim is not None and tap.name not in axes:
                return tap.batch_dim, AxisSource.MODULE, tap.name
        if all(tap.name in axes for tap in layers):
            # Where layers differ, one that joins them later is to tell its axis, as where it is the second of all.
            return max(axes[tap.name] for tap in layers), AxisSource.LAYERS, ""
        return 0, AxisSource.ASSUMED, ""

    def _is_doubtful(self, tap: Tap, signals: Sequence[Signal]) -> bool:
        """Whether only the batches that a layer sees can show its axis."""
        space = self._of[tap.name]
        if not space.tokens or space.source is AxisSource.ARGUMENT:
            return False
        if not (space.axis or space.source is AxisSource.LAYER_KIND):
            return False
        own = tap.batch_dim is not None or tap.name in self._spaces.axes or tap.name in self._spaces.shown
        return not own and any(len(signal.leading) > 1 for signal in signals)

    def _axis(self, call: _Call) -> int:
        return self._spaces.axes.get(call.tap.name, call.space.axis)

    def _turned(self, call: _Call) -> tuple[int, ...]:
        """The dimensions of a call's slots with the batch first."""
        return turned(call.signal.leading, self._axis(call))

    def _drop(self, call: _Call, reason: str, hint: str) -> None:
        """A call has no slots."""
        if self._first:
            raise RecordingError(f"{reason}.", hint=hint)
        layer = call.tap.name
        self._calls.remove(call)
        self._dropped.setdefault(layer, reason)
        self._spaces.warn_once(f"layer {layer}", f"{lost_call(layer, reason)} {hint}")

    def _check_rank(self, call: _Call) -> None:
        layer, leading = call.tap.name, call.signal.leading
        known = layer in self._spaces.layers
        tokens = layer in self._spaces.token_layers if known else len(self._record.calls(layer)[0].leading) > 1
        if (len(leading) > 1) != tokens:
            before, now = ("tokens", "rows") if tokens else ("rows", "tokens")
            self._drop(
                call,
                f"layer {layer!r} was called with {before} at first and is called with {now} at step "
                f"{self._record.step}: its input is {[*leading, call.tap.d_in]}",
                hint="Call it always with rows or always with tokens, or leave it out with layers=.",
            )

    def _fit(self, call: _Call) -> None:
        """Give a call its shape; it is dropped where it has none."""
        space, leading, place = call.space, call.signal.leading, self._place(call)
        if space.routed:
            call.shape = Shape(space, call.index, (prod(leading),), 0, place=place)
        elif place is not None and (shape := self._placed(call, place)) is not None:
            call.shape = shape
        elif space.tokens:
            self._fit_tokens(call)
        elif len(leading) == 1:
            call.shape = Shape(space, call.index, leading, 0)
        else:
            self._drop(
                call,
                f"layer {call.tap.name!r} saw {list(leading)} at step {self._record.step}, but space "
                f"{space.name!r} has no tokens",
                hint=f"Give it another space: Recorder(spaces={{{call.tap.name!r}: …}}).",
            )

    def _place(self, call: _Call) -> Place | None:
        """Where the slots of a call stood in the batch, by what was seen of its input. None if nothing was: they are
        the batch's rows in their order.
        """
        signal, told = call.signal, call.tap.name in self._metadata.axes
        known = signal.rows
        if isinstance(known, Lineage):
            rows, length = self._batch_of(known, signal.leading)
            place = place_of(known, signal.leading, signal.form.batch_axis is not None, rows, length, self._second)
            return None if place is not None and place.row is None and told else place
        if known is Mark.MODEL:
            told = told or signal.form.looks_up or not self._batched or call.tap.name in self._spaces.named
        return None if known in (None, Mark.MADE) or told else Place(None)

    def _batch_of(self, known: Lineage, leading: tuple[int, ...]) -> tuple[int, int]:
        """B, and how many tokens of a row lie after one another along the first axis of a source, if not 1."""
        ordered = [
            self._turned(call)
            for call in self._calls
            if call.signal.rows is None and not call.signal.form.looks_up and not call.space.routed
        ]
        passed = self._metadata.rows
        rows = passed if passed is not None else next((own[0] for own in ordered), None)
        if rows is None:
            rows = leading[0] if leading[0] in known.source[:2] else known.source[0]
        flat = known.source[0] if len(known.source) == 2 else 0
        tokens = any(own[0] == rows and len(own) > 1 and prod(own) == flat for own in ordered)
        return rows, flat // rows if tokens and flat > rows else 1

    def _second(self, source: tuple[int, ...]) -> bool | None:
        """Whether a source whose first two axes are equally long has the batch in the second one; None if no layer
        tells.
        """
        axes = [
            self._axis(call)
            for call in self._calls
            if call.space.tokens and call.signal.rows is None and call.signal.leading[:2] == source[:2]
        ]
        return any(axes) if axes else None

    def _placed(self, call: _Call, place: Place) -> Shape | None:
        """The shape of a call whose rows were followed; None if they are the batch's as they lie, or if the call is to
        be held against the others as any.
        """
        space, leading, form, known = call.space, call.signal.leading, call.signal.form, call.signal.rows
        if place.row is None or not isinstance(known, Lineage):
            return self._stray(call, place)
        rows, _ = self._batch_of(known, leading)
        whole: tuple[int, ...] = leading
        if space.tokens and len(leading) == 1:
            rest = rows, max(leading[0] // rows, 1)
            whole = next((own for own in self._as_beside(call) if own[0] == rows), rest)
        elif space.tokens:
            whole = self._turned(call)
            whole = turned(leading, 1 - self._axis(call)) if whole[0] != rows else whole
            if whole[0] != rows and form.batch_axis is None:
                return None
        order = place.order(rows, prod(whole[1:]))
        if order is None:
            # A list that holds each place once may be a batch of its own, if the columns say nothing else.
            own = self._metadata.rows in (None, leading[0]) and place.order(rows, place.length) is not None
            return None if own and known.steady and not space.tokens else self._stray(call, place)
        slots = torch.from_numpy(order)
        for moved in range(min(2, len(whole))):
            shape = Shape(space, call.index, whole, moved)
            if slots.equal(_lying(shape)):
                return shape
        return self._stray(call, place) if form.batch_axis is not None else replace(shape, moved=0, order=slots)

    def _as_beside(self, call: _Call) -> Iterator[tuple[int, ...]]:
        """Dimensions, the batch first, of as many tokens as a call has, as other layers of its space saw them; those
        whose axis is known come first.
        """
        for other in sorted(self._calls, key=lambda other: other.tap.name in self._doubtful):
            leading = other.signal.leading
            beside = other.space is call.space and other.index == call.index
            if beside and len(leading) > 1 and prod(leading) == call.signal.leading[0]:
                yield self._turned(other)

    def _stray(self, call: _Call, place: Place) -> Shape:
        """Slots of their own, of a call that no other layer shares but by the same rows."""
        layer, n, rows = call.tap.name, prod(call.signal.leading), call.signal.rows
        about: Any = rows if isinstance(rows, Lineage) else layer
        numbers = self._stray_numbers.setdefault((call.space.name, about, n), [])
        taken = {own.shape.call for own in self._calls if own.tap is call.tap and own.shape is not None and own.stray}
        number = next((own for own in numbers if own not in taken), None)
        if number is None:
            number, self._next = self._next, self._next + 1
            numbers.append(number)
        if place.row is None:
            why = rows.value if isinstance(rows, Mark) else Mark.MIXED.value
            self._spaces.warn_once(
                f"rows of layer {layer}",
                f"the rows of layer {layer!r} are unknown at step {self._record.step}: {why}. Row, sample, label "
                "and position of such slots are NULL, also in later steps. If they are the batch's rows "
                f"in order, pass batch_dim={{{layer!r}: 0}} to recorder.step. Otherwise record the layer with "
                f"routed=[{layer!r}], and pass its rows with step.at(…, row=…) before each call.",
            )
        return Shape(call.space, number, (n,), 0, place=place)

    def _fit_tokens(self, call: _Call) -> None:
        """Give a call its shape in a space of tokens; it is dropped where it has none."""
        space, tap, leading, step = call.space, call.tap, call.signal.leading, self._record.step
        axis: int | None = self._axis(call)
        settled = space.source is AxisSource.ARGUMENT or tap.name in self._spaces.axes
        if len(leading) > 1:
            if settled or tap.batch_dim in (None, space.axis):
                call.shape = Shape(space, call.index, self._turned(call), self._axis(call))
                return
            differ = (
                f"layers {space.teller!r} and {tap.name!r} of space {space.name!r} have the batch in axis "
                f"{space.axis} and {tap.batch_dim}"
                if space.teller
                else f"layer {tap.name!r} has the batch in axis {tap.batch_dim}, but space {space.name!r} has it in "
                f"axis {space.axis}"
            )
            hint = "Pass batch_dim= to recorder.step, or give one of them another space with spaces=."
            self._drop(call, differ, hint)
            return
        if not settled:
            axis = tap.batch_dim if space.axis else 0
        whole = next(self._as_beside(call), None)
        if axis is None:
            self._drop(
                call,
                f"layer {tap.name!r} saw the tokens of space {space.name!r} as one list at step {step}, "
                "and their order is unknown",
                hint=f"Pass batch_dim={{{tap.name!r}: 0}} to recorder.step if they come row after row, "
                f"or batch_dim={{{tap.name!r}: 1}} if the first tokens of all rows come first.",
            )
        elif whole is None:
            self._drop(
                call,
                f"layer {tap.name!r} saw {leading[0]} rows at step {step}, but no layer of space "
                f"{space.name!r} has so many tokens",
                hint=f"Give it another space: Recorder(spaces={{{tap.name!r}: …}}).",
            )
        else:
            call.shape = Shape(space, call.index, whole, axis)

    def _agree(self) -> list[Shape]:
        """The shapes that a space's layers agree on, one for each call; calls that do not agree are dropped.

        Layers whose batch axis is beyond doubt come first, then those that had slots before.
        """
        first: dict[tuple[str, int], _Call] = {}
        for tap in sorted(self._taps, key=lambda t: (t.name in self._doubtful, t.name not in self._spaces.layers)):
            for call in [own for own in self._calls if own.tap is tap and not own.stray]:
                agreed = first.get((call.space.name, call.index), call)
                if agreed.fitted.leading != call.fitted.leading:
                    self._drop_other(call, agreed)
            if tap.name in self._doubtful:
                self._check_shown(tap, first)
            for call in self._calls:
                if call.tap is tap and not call.stray:
                    first.setdefault((call.space.name, call.index), call)
        return [call.fitted for call in first.values()]

    def _drop_other(self, call: _Call, agreed: _Call) -> None:
        """Drop a call that saw another batch than the layers before it agree on."""
        space, layer, other = call.space.name, call.tap.name, agreed.tap.name
        beside = [own for own in self._calls if own.space is call.space and own.index == call.index and not own.stray]
        seen = {other: agreed.fitted.leading} | {own.tap.name: own.fitted.leading for own in beside}
        elsewhere = [name for name in self._spaces.all_layers if self._of.get(name) is not call.space]
        spaces = suggested_spaces(seen, space, elsewhere)
        hint = f"Give layers that see another batch their own space, as {spaces=}"
        if turned(call.fitted.leading, 1) == agreed.fitted.leading:
            hint += f", pass batch_dim={{{layer!r}: {1 - call.fitted.moved}}} to recorder.step"
        self._drop(
            call,
            f"layers {other!r} and {layer!r} saw different batches at step {self._record.step}: "
            f"{agreed.fitted} and {call.fitted}",
            hint=f"{hint}, or leave them out with layers=.",
        )

    def _check_shown(self, tap: Tap, first: Mapping[tuple[str, int], _Call]) -> None:
        """What a layer's own batches, which agree with `first`, show of its batch axis; calls in doubt are dropped."""
        doubtful = []
        for call in self._calls:
            if call.tap is not tap or call.stray:
                continue
            shape = call.fitted
            borne = (call.space.name, call.index) in first or self._metadata.rows == shape.rows
            if borne and oblong(shape.leading):
                self._spaces.shown.add(tap.name)
            elif square(shape.leading) or not (borne or max(shape.leading[:2]) == 1):
                doubtful.append(call)
        for call in doubtful if tap.name not in self._spaces.shown else ():
            space = call.space
            self._drop(
                call,
                f"{f'layer {space.teller!r}' if space.teller else f'space {space.name!r}'} has the batch in axis "
                f"{space.axis}, but the batch axis of layer {tap.name!r} cannot be told from "
                f"{list(call.signal.leading)} at step {self._record.step}",
                hint=f"Pass batch_dim= to recorder.step, for all layers or for one, as batch_dim={{{tap.name!r}: 0}}.",
            )

    def _check_rows(self, agreed: Sequence[Shape]) -> None:
        """All spaces but routed ones must have the batch's rows. Raises BadInput where no call has."""
        passed = self._passed_rows([shape for shape in agreed if not shape.space.routed])
        first: dict[int, tuple[str, int]] = {}
        for call in sorted(self._calls, key=lambda call: call.tap.name not in self._spaces.layers):
            if call.space.routed or call.stray:
                continue
            layer, rows = call.tap.name, call.fitted.rows
            other, known = passed or first.setdefault(call.index, (f"layer {layer!r} saw", rows))
            if rows != known:
                by_token = f", and pass batch_dim={{{layer!r}: 1}} if they come token after token"
                self._drop(
                    call,
                    f"layer {layer!r} saw {rows} rows at step {self._record.step}, but {other} {known}",
                    hint="If its rows are the tokens of a batch, put it into their space with spaces="
                    f"{'' if self._record.followed else by_token}. If the model chooses them, use "
                    "Recorder(routed=…) and step(at=…).",
                )

    def _passed_rows(self, shapes: Sequence[Shape]) -> tuple[str, int] | None:
        """An entry's name and B, of those that have rows."""
        seen, found = {shape.rows for shape in shapes}, None
        for name, entry in self._metadata.arrays.items():
            if (shapes and len(entry) not in seen) or (found is not None and found[1] != len(entry)):
                raise misfit(name, entry.shape, shapes)
            found = found or (f"{name} has", len(entry))
        return found

    def _found(self) -> Alignment:
        found = Alignment(calls={tap.name: [] for tap in self._taps}, dropped=self._dropped)
        for call in sorted(self._calls, key=lambda call: call.fitted.call):
            shape, layer = call.fitted, call.tap.name
            before = found.shapes.setdefault((shape.space.name, shape.call), shape)
            found.shapes[shape.space.name, shape.call] = replace(before, place=_both(before.place, shape.place))
            found.calls[layer].append((call.index, shape))
            if layer not in self._spaces.layers:
                self._spaces.admit(layer, shape.space, len(call.signal.leading) > 1)
        found.calls = {layer: own for layer, own in found.calls.items() if own}
        return found

    def _check_square(self, found: Alignment) -> None:
        """Where nothing tells the batch from the tokens, a batch that is not square does.

        Raises RecordingError at the first step; later what was passed is not recorded of the space's slots.
        """
        assumed = {
            key: shape
            for key, shape in found.shapes.items()
            if shape.space.source is AxisSource.ASSUMED
            and shape.place is None
            and self._metadata.speaks_of(shape.space.name)
        }
        for shape in assumed.values():
            if shape.leading[0] != shape.leading[1]:
                shape.space.source = AxisSource.BATCHES
        for key, shape in assumed.items():
            if shape.space.source is AxisSource.ASSUMED and square(shape.leading):
                self._leave_untold(shape)
                found.shapes[key] = replace(shape, untold=True)

    def _leave_untold(self, shape: Shape) -> None:
        hint = "Pass batch_dim=0 to recorder.step, or batch_dim=1 if the batch is the second axis."
        reason = f"the batch axis of {shape} cannot be told: it is square"
        if self._first:
            raise RecordingError(f"{reason}.", hint=hint, field="batch_dim")
        self._spaces.warn_once(
            f"space {shape.space.name}",
            f"at step {self._record.step} {reason}. The columns passed to step() are not recorded for space "
            f"{shape.space.name!r}, also in later steps. {hint}",
        )


def _check_same(what: str, before: int, now: int) -> None:
    if before != now:
        raise BadInput(
            f"batch_dim of {what} changed from {before} to {now}.",
            hint="Pass the same batch_dim in every step.",
            field="batch_dim",
        )


def suggested_spaces(shapes: Mapping[str, Hashable], space: str, elsewhere: Sequence[str] = ()) -> dict[str, str]:
    """Pattern -> space, for the layers of one space by the shape of the batch that each saw.

    Those of the first shape stay in `space`, each further shape gets one of its own. No pattern fits a layer of another
    shape, nor one of `elsewhere`, the layers of other spaces; so their order does not matter.
    """
    found: dict[str, str] = {}
    for number, shape in enumerate(list(dict.fromkeys(shapes.values()))[1:], 2):
        others = [*elsewhere, *(name for name, seen in shapes.items() if seen != shape)]
        for name in (name for name, seen in shapes.items() if seen == shape):
            if not any(matches(name, pattern) for pattern in found):
                found[_widest(name, others)] = f"{space}_{number}"
    return found


def _widest(name: str, others: Sequence[str]) -> str:
    """The shortest pattern that fits a layer and none of others."""
    return next((p for p in _patterns(name) if not any(matches(other, p) for other in others)), name)


def _patterns(name: str) -> Iterator[str]:
    """Widest first: at each level of the model, in any block, in any block of that number, in this module alone."""
    parts = name.split(".")
    alike = ["*" if part.isdigit() else part for part in parts]
    for depth in range(1, len(parts)):
        for within in (alike[:depth], [*alike[: depth - 1], parts[depth - 1]], parts[:depth]):
            yield ".".join([*within, "*"])
    yield ".".join([*alike[:-1], parts[-1]])


def _lying(shape: Shape) -> Tensor:
    """int64[n]: which of the rows as they came is each slot."""
    return laid_out(torch.arange(shape.slots, device="cpu").unsqueeze(-1), shape).reshape(-1)


def _both(one: Place | None, other: Place | None) -> Place | None:
    """What two layers with the same slots say of them."""
    if one is None or other is None or one is other:
        return one or other
    if one.row is None or other.row is None:
        return other if one.row is None else one
    same = np.array_equal(one.row, other.row)
    if same and (one.position is None) == (other.position is None):
        same = one.position is None or other.position is None or np.array_equal(one.position, other.position)
    return one if same else Place(None)
