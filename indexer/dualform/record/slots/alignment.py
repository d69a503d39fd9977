"""Fits the calls of one step to rows of the batch: which axis is the batch, and which calls saw the same slots.

Fits the calls of one step into extents: which layers' calls saw the same slots, and which calls part from them.

Shapes: B rows, `L...` token dimensions, d_in and d_out of a layer, n slots of an extent.

Which axis of a layer's keys is the batch: it is said, or known from the modules around the layer, else the first.

Where a space has its batch in the second axis, a layer that does not know its own may have it in the first, and its
slots would be turned over. It is believed once a batch that is neither square nor one entry long shows it.
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
from dualform.record.layout import RecordedSpace, Shape, Signal, laid_out, misfit, oblong, square, turned
from dualform.record.lineage import Lineage, Mark, Place, place_of
from dualform.record.slots.columns import Metadata
from dualform.record.slots.spaces import Spaces, lost_call
from dualform.record.slots.step_record import StepRecord
from dualform.record.taps import Tap


class BatchAxis:
    """What is known of the batch's axis at one step."""

    def __init__(self, metadata: Metadata, spaces: Spaces) -> None:
        """Raises BadInput where batch_dim names nothing that there is, or a layer that had another axis at first."""
        self._metadata, self._spaces = metadata, spaces
        spaces.check_axes(list(metadata.axes))
        for layer, said in metadata.axes.items():
            if layer not in spaces.names and said is not None:
                self._hear(layer, said)

    def _hear(self, layer: str, said: int) -> None:
        """Take in what batch_dim says of one layer."""
        spaces = self._spaces
        if layer in spaces.layers or layer in spaces.axes:
            _check_same(f"layer {layer!r}", spaces.axis_of(layer), said)
        spaces.axes[layer] = said

    def check(self, space: RecordedSpace) -> None:
        """Take in what batch_dim says of a space. Raises BadInput where it was another axis at first."""
        said = self._metadata.batch_dim(space.name)
        if said is not None and space.tokens and not space.fixed:
            _check_same(f"space {space.name!r}", space.axis or 0, said)
            space.axis, space.said = said, True

    def of_space(self, name: str, layers: Sequence[Tap]) -> RecordedSpace:
        """A space of tokens that is seen for the first time, by its layers that see tokens."""
        if all(tap.key_form.batch_axis is not None for tap in layers):
            return RecordedSpace(name, tokens=True, routed=False, axis=layers[0].key_form.batch_axis, fixed=True)
        said = self._metadata.batch_dim(name)
        if said is not None:
            return RecordedSpace(name, tokens=True, routed=False, axis=said, said=True)
        axes = self._spaces.axes
        told = [tap for tap in layers if tap.batch_dim is not None and tap.name not in axes]
        if told:
            return RecordedSpace(name, tokens=True, routed=False, axis=told[0].batch_dim, teller=told[0].name)
        own = [axes[tap.name] for tap in layers if tap.name in axes]
        # Where layers differ, one that joins them later is to tell its axis, as where it is the second of all.
        return RecordedSpace(name, tokens=True, routed=False, axis=max(own) if len(own) == len(layers) else None)

    def contradiction(self, tap: Tap, space: RecordedSpace) -> tuple[str, str] | None:
        """Why a layer that knows its axis cannot be in its space, and what helps; None where it can."""
        if tap.batch_dim is None or space.said or tap.name in self._spaces.axes:
            return None
        if tap.batch_dim == (space.axis or 0):
            return None
        hint = "Pass batch_dim= to recorder.step, or give one of them another space with spaces=."
        if space.teller:
            return (
                f"layers {space.teller!r} and {tap.name!r} of space {space.name!r} have the batch in axis "
                f"{space.axis} and {tap.batch_dim}"
            ), hint
        return (
            f"layer {tap.name!r} has the batch in axis {tap.batch_dim}, but space {space.name!r} has it in axis "
            f"{space.axis or 0}"
        ), hint

    def of_layer(self, tap: Tap, space: RecordedSpace, flat: bool) -> int | None:
        """The axis of a layer in a space of tokens; None where nothing tells the order of what came `flat`."""
        own = self._spaces.axes.get(tap.name)
        if own is None and flat and not space.said:
            return tap.batch_dim if space.axis else 0
        return (space.axis or 0) if own is None else own

    def known(self, tap: Tap, space: RecordedSpace, calls: Mapping[int, Signal]) -> bool:
        """Whether a layer's axis is beyond doubt before anything is seen of this step."""
        if not space.tokens or space.said or not (space.axis or space.fixed):
            return True
        own = tap.batch_dim is not None or tap.name in self._spaces.axes or tap.name in self._spaces.shown
        return own or all(len(signal.leading) == 1 for signal in calls.values())


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


@dataclass
class Alignment:
    """The calls of one step that became slots."""

    shapes: dict[tuple[str, int], Shape] = field(default_factory=dict)
    """By space and call, in the order of the layers."""
    calls: dict[str, list[tuple[Shape, Signal]]] = field(default_factory=dict)
    """By layer, in the model's order."""
    parted: dict[str, str] = field(default_factory=dict)
    """Layer -> why calls of it are no slots of this step."""


class Aligner:
    """Aligns one step. At the first step a call that parts from the others is refused; later it has no slots."""

    def __init__(self, record: StepRecord, taps: Sequence[Tap], spaces: Spaces, first: bool) -> None:
        self._record, self._spaces, self._first = record, spaces, first
        self._metadata = record.metadata
        self._taps = [tap for tap in taps if record.calls(tap.name)]
        self._calls = {tap.name: dict(enumerate(record.calls(tap.name))) for tap in self._taps}
        """By layer and number, the calls that stay."""
        self._made: dict[str, RecordedSpace] = {}
        spaces.meet({tap.name: list(self._calls[tap.name].values()) for tap in self._taps}, self._metadata.rows)
        self._of = {tap.name: spaces.space_of(tap.name, self._calls[tap.name][0].leading) for tap in self._taps}
        self._axis = BatchAxis(self._metadata, spaces)
        self._fitted: dict[str, dict[int, Shape]] = {}
        self._strayed: dict[str, dict[int, Shape]] = {}
        """By layer and number, calls whose rows are not the batch's in any order, or are not known."""
        self._numbers: dict[tuple[str, Any, int], list[int]] = {}
        """By space, what is known of the rows, and count of slots: numbers of such calls, behind all others'."""
        self._next = max((len(record.calls(tap.name)) for tap in self._taps), default=0)
        self._batched = any(call.rows is not Mark.MODEL for own in self._calls.values() for call in own.values())
        """Whether any layer saw rows of a batch."""
        self._parted: dict[str, str] = {}

    def align(self) -> Alignment:
        """Raises BadInput where what was said of the batch fits no layer, and RecordingError at the first step."""
        self._check_ranks()
        for name in dict.fromkeys(self._of.values()):
            self._made[name] = self._spaces.known.get(name) or self._space(name)
            self._axis.check(self._made[name])
        for tap in self._taps:
            self._fitted[tap.name] = self._fit(tap)
        self._check_rows(self._agree())
        found = self._found()
        self._check_square(found)
        return found

    def _space_of(self, tap: Tap) -> RecordedSpace:
        return self._made[self._of[tap.name]]

    def _part(self, tap: Tap, call: int, reason: str, hint: str) -> None:
        """A call of a layer has no slots."""
        if self._first:
            raise RecordingError(f"{reason}.", hint=hint)
        del self._calls[tap.name][call]
        self._fitted.get(tap.name, {}).pop(call, None)
        self._parted.setdefault(tap.name, reason)
        self._spaces.warn_once(f"layer {tap.name}", f"{lost_call(tap.name, reason)} {hint}")

    def _check_ranks(self) -> None:
        for tap in self._taps:
            known = tap.name in self._spaces.layers
            tokens = tap.name in self._spaces.token_layers if known else len(self._calls[tap.name][0].leading) > 1
            for call, signal in list(self._calls[tap.name].items()):
                if (len(signal.leading) > 1) != tokens:
                    before, now = ("tokens", "rows") if tokens else ("rows", "tokens")
                    self._part(
                        tap,
                        call,
                        f"layer {tap.name!r} was called with {before} at first and is called with {now} at step "
                        f"{self._record.step}: its input is {[*signal.leading, tap.d_in]}",
                        hint="Call it always with rows or always with tokens, or leave it out with layers=.",
                    )

    def _space(self, name: str) -> RecordedSpace:
        """A space that is seen for the first time."""
        members = [tap for tap in self._taps if self._of[tap.name] == name]
        deep = [tap for tap in members if len(self._calls[tap.name][0].leading) > 1]
        routed = any(self._spaces.routed(tap.name) for tap in members)
        if routed or not deep:
            return RecordedSpace(name, tokens=False, routed=routed, axis=0)
        return self._axis.of_space(name, deep)

    def _fit(self, tap: Tap) -> dict[int, Shape]:
        """The shape of each call of a layer; a call parts where it fits none."""
        space = self._space_of(tap)
        shapes = {}
        for call, signal in list(self._calls[tap.name].items()):
            place = self._place(tap, signal)
            if space.routed:
                shapes[call] = Shape(space, call, (prod(signal.leading),), 0, place=place)
            elif place is not None and (own := self._placed(tap, call, signal, place)) is not None:
                if own.place is None:
                    shapes[call] = own
                else:
                    self._strayed.setdefault(tap.name, {})[call] = own
            elif space.tokens:
                shape = self._of_tokens(tap, call, signal.leading)
                shapes |= {} if shape is None else {call: shape}
            elif len(signal.leading) == 1:
                shapes[call] = Shape(space, call, signal.leading, 0)
            else:
                self._part(
                    tap,
                    call,
                    f"layer {tap.name!r} saw {list(signal.leading)} at step {self._record.step}, but space "
                    f"{space.name!r} has no tokens",
                    hint=f"Give it another space: Recorder(spaces={{{tap.name!r}: …}}).",
                )
        return shapes

    def _place(self, tap: Tap, signal: Signal) -> Place | None:
        """Where the slots of a call stood in the batch, by what was seen of its input. None if nothing was: they are
        the batch's rows in their order.
        """
        known, said = signal.rows, tap.name in self._metadata.axes
        if isinstance(known, Lineage):
            rows, length = self._batch_of(known, signal.leading)
            place = place_of(known, signal.leading, signal.form.batch_axis is not None, rows, length, self._second)
            return None if place is not None and place.row is None and said else place
        if known is Mark.MODEL:
            said = said or signal.form.looks_up or not self._batched or tap.name in self._spaces.named
        return None if known in (None, Mark.MADE) or said else Place(None)

    def _batch_of(self, known: Lineage, leading: tuple[int, ...]) -> tuple[int, int]:
        """B, and how many tokens of a row lie after one another along the first axis of a source, if not 1."""
        ordered = [
            turned(signal.leading, self._axis.of_layer(tap, self._space_of(tap), flat=False) or 0)
            for tap in self._taps
            for signal in self._calls[tap.name].values()
            if signal.rows is None and not signal.form.looks_up and not self._space_of(tap).routed
        ]
        told = self._metadata.rows
        rows = told if told is not None else next((own[0] for own in ordered), None)
        if rows is None:
            rows = leading[0] if leading[0] in known.source[:2] else known.source[0]
        flat = known.source[0] if len(known.source) == 2 else 0
        tokens = any(own[0] == rows and len(own) > 1 and prod(own) == flat for own in ordered)
        return rows, flat // rows if tokens and flat > rows else 1

    def _second(self, source: tuple[int, ...]) -> bool | None:
        """Whether a source whose first two axes are equally long has the batch in the second one; None if no layer
        tells.
        """
        told = [
            self._axis.of_layer(t, self._space_of(t), False)
            for t in self._taps
            for signal in self._calls[t.name].values()
            if self._space_of(t).tokens and signal.rows is None and signal.leading[:2] == source[:2]
        ]
        known = [axis for axis in told if axis is not None]
        return any(known) if known else None

    def _placed(self, tap: Tap, call: int, signal: Signal, place: Place) -> Shape | None:
        """The shape of a call whose rows were followed; None if they are the batch's as they lie, or if the call is to
        be held against the others as any.
        """
        space, leading = self._space_of(tap), signal.leading
        known = signal.rows
        if place.row is None or not isinstance(known, Lineage):
            return self._stray(tap, signal, place)
        rows, _ = self._batch_of(known, signal.leading)
        whole: tuple[int, ...] = leading
        if space.tokens and len(leading) == 1:
            whole = self._tokens_of(tap, call, rows, leading[0])
        elif space.tokens:
            axis = self._axis.of_layer(tap, space, flat=False) or 0
            whole = turned(leading, axis)
            whole = turned(leading, 1 - axis) if whole[0] != rows else whole
            if whole[0] != rows and signal.form.batch_axis is None:
                return None
        order = place.order(rows, prod(whole[1:]))
        if order is None:
            # A list that holds each place once may be a batch of its own, if the columns say nothing else.
            own = self._metadata.rows in (None, leading[0]) and place.order(rows, place.length) is not None
            return None if own and known.steady and not space.tokens else self._stray(tap, signal, place)
        slots = torch.from_numpy(order)
        moved = next((m for m in (0, 1) if m < len(whole) and slots.equal(_lying(Shape(space, call, whole, m)))), None)
        if moved is not None:
            return Shape(space, call, whole, moved)
        if signal.form.batch_axis is not None:
            return self._stray(tap, signal, place)
        return Shape(space, call, whole, 0, order=slots)

    def _tokens_of(self, tap: Tap, call: int, rows: int, count: int) -> tuple[int, ...]:
        """The shape of as many tokens, as another layer of the space has it; else of rows of equal lengths."""
        for other in self._taps:
            seen = self._calls[other.name].get(call)
            if self._of[other.name] == self._of[tap.name] and seen is not None and len(seen.leading) > 1:
                whole = turned(seen.leading, self._axis.of_layer(other, self._space_of(other), flat=False) or 0)
                if whole[0] == rows and prod(whole) == count:
                    return whole
        return rows, max(count // rows, 1)

    def _stray(self, tap: Tap, signal: Signal, place: Place) -> Shape:
        """Slots of their own, of a call that no other layer shares but by the same rows."""
        space, n = self._space_of(tap), prod(signal.leading)
        about: Any = signal.rows if isinstance(signal.rows, Lineage) else tap.name
        numbers = self._numbers.setdefault((space.name, about, n), [])
        mine = {shape.call for shape in self._strayed.get(tap.name, {}).values()}
        number = next((own for own in numbers if own not in mine), None)
        if number is None:
            number, self._next = self._next, self._next + 1
            numbers.append(number)
        if place.row is None:
            why = signal.rows.value if isinstance(signal.rows, Mark) else Mark.MIXED.value
            self._spaces.warn_once(
                f"rows of layer {tap.name}",
                f"the rows of layer {tap.name!r} are unknown at step {self._record.step}: {why}. Row, sample, label "
                "and position of such slots are NULL, also in later steps. If they are the batch's rows "
                f"in order, pass batch_dim={{{tap.name!r}: 0}} to recorder.step. Otherwise record the layer with "
                f"routed=[{tap.name!r}], and pass its rows with step.at(…, row=…) before each call.",
            )
        return Shape(space, number, (n,), 0, place=place)

    def _of_tokens(self, tap: Tap, call: int, leading: tuple[int, ...]) -> Shape | None:
        """The shape of a call in a space of tokens; None where the call parts."""
        space = self._space_of(tap)
        flat = len(leading) == 1
        axis = self._axis.of_layer(tap, space, flat)
        contradiction = None if flat else self._axis.contradiction(tap, space)
        if contradiction is not None:
            self._part(tap, call, *contradiction)
            return None
        if axis is None:
            self._part(
                tap,
                call,
                f"layer {tap.name!r} saw the tokens of space {space.name!r} as one list at step {self._record.step}, "
                "and their order is unknown",
                hint=f"Pass batch_dim={{{tap.name!r}: 0}} to recorder.step if they come row after row, "
                f"or batch_dim={{{tap.name!r}: 1}} if the first tokens of all rows come first.",
            )
            return None
        whole = self._unfolded(tap, call, leading[0]) if flat else turned(leading, axis)
        return None if whole is None else Shape(space, call, whole, axis)

    def _unfolded(self, tap: Tap, call: int, tokens: int) -> tuple[int, ...] | None:
        """The shape of tokens that were folded into rows; None where the call parts."""
        doubtful = {t.name for t in self._taps if not self._axis.known(t, self._space_of(t), self._calls[t.name])}
        for other in sorted(self._taps, key=lambda other: other.name in doubtful):
            seen = self._calls[other.name].get(call)
            beside = self._of[other.name] == self._of[tap.name]
            if beside and seen is not None and len(seen.leading) > 1 and prod(seen.leading) == tokens:
                return turned(seen.leading, self._axis.of_layer(other, self._space_of(tap), flat=False) or 0)
        self._part(
            tap,
            call,
            f"layer {tap.name!r} saw {tokens} rows at step {self._record.step}, but no layer of space "
            f"{self._of[tap.name]!r} has so many tokens",
            hint=f"Give it another space: Recorder(spaces={{{tap.name!r}: …}}).",
        )
        return None

    def _agree(self) -> dict[tuple[str, int], Shape]:
        """The shape that a space's layers agree on, call by call; calls that do not agree part.

        Layers whose batch axis is beyond doubt come first, then those that had slots before.
        """
        known = {t.name: self._axis.known(t, self._space_of(t), self._calls[t.name]) for t in self._taps}
        first: dict[tuple[str, int], tuple[str, Shape]] = {}
        for tap in sorted(self._taps, key=lambda tap: (not known[tap.name], tap.name not in self._spaces.layers)):
            for shape in list(self._fitted[tap.name].values()):
                name, agreed = first.get((shape.space.name, shape.call), (tap.name, shape))
                if agreed.leading != shape.leading:
                    self._part_from(tap, shape, name, agreed)
            if not known[tap.name]:
                self._check_shown(tap, first)
            for shape in self._fitted[tap.name].values():
                first.setdefault((shape.space.name, shape.call), (tap.name, shape))
        return {key: shape for key, (_, shape) in first.items()}

    def _part_from(self, tap: Tap, shape: Shape, other: str, agreed: Shape) -> None:
        space = self._of[tap.name]
        fitted = {name: own.values() for name, own in self._fitted.items() if self._of[name] == space}
        seen = {name: s.leading for name, own in fitted.items() for s in own if s.call == shape.call}
        elsewhere = [name for name in self._spaces.all_layers if self._of.get(name) != space]
        spaces = suggested_spaces({other: agreed.leading, **seen}, space, elsewhere)
        hint = f"Give layers that see another batch their own space, as {spaces=}"
        if turned(shape.leading, 1) == agreed.leading:
            hint += f", pass batch_dim={{{tap.name!r}: {1 - shape.moved}}} to recorder.step"
        self._part(
            tap,
            shape.call,
            f"layers {other!r} and {tap.name!r} saw different batches at step {self._record.step}: "
            f"{agreed} and {shape}",
            hint=f"{hint}, or leave them out with layers=.",
        )

    def _check_shown(self, tap: Tap, first: Mapping[tuple[str, int], tuple[str, Shape]]) -> None:
        """What a layer's own batches, which agree with `first`, show of its batch axis; calls in doubt part."""
        space, doubtful = self._space_of(tap), []
        for shape in self._fitted[tap.name].values():
            borne = (space.name, shape.call) in first or self._metadata.rows == shape.rows
            if borne and oblong(shape.leading):
                self._spaces.shown.add(tap.name)
            elif square(shape.leading) or not (borne or max(shape.leading[:2]) == 1):
                doubtful.append(shape)
        for shape in doubtful if tap.name not in self._spaces.shown else ():
            seen = list(self._calls[tap.name][shape.call].leading)
            self._part(
                tap,
                shape.call,
                f"{f'layer {space.teller!r}' if space.teller else f'space {space.name!r}'} has the batch in axis "
                f"{space.axis}, but the batch axis of layer {tap.name!r} cannot be told from {seen} at step "
                f"{self._record.step}",
                hint=f"Pass batch_dim= to recorder.step, for all layers or for one, as batch_dim={{{tap.name!r}: 0}}.",
            )

    def _check_rows(self, shapes: Mapping[tuple[str, int], Shape]) -> None:
        """All spaces but routed ones must have the batch's rows. Raises BadInput where no call has."""
        regular = [shape for shape in shapes.values() if not shape.space.routed]
        said = self._said_rows(regular)
        first: dict[int, tuple[str, int]] = {}
        for tap in sorted(self._taps, key=lambda tap: tap.name not in self._spaces.layers):
            for shape in list(self._fitted[tap.name].values()):
                if shape.space.routed:
                    continue
                other, rows = first.setdefault(shape.call, (tap.name, shape.rows) if said is None else said)
                if shape.rows != rows:
                    self._part_from_rows(tap, shape, other, rows, said is not None)

    def _part_from_rows(self, tap: Tap, shape: Shape, other: str, rows: int, said: bool) -> None:
        step = self._record.step
        of = f"{other} has {rows}" if said else f"layer {other!r} saw {rows}"
        self._part(
            tap,
            shape.call,
            f"layer {tap.name!r} saw {shape.rows} rows at step {step}, but {of}",
            hint="If its rows are the tokens of a batch, put it into their space with spaces="
            + (
                ""
                if self._record.followed
                else f", and pass batch_dim={{{tap.name!r}: 1}} if they come token after token"
            )
            + ". If the model chooses them, use Recorder(routed=…) and step(at=…).",
        )

    def _said_rows(self, shapes: Sequence[Shape]) -> tuple[str, int] | None:
        """An entry's name and B, of those that have rows."""
        seen = {shape.rows for shape in shapes}
        found = None
        for name, entry in self._metadata.arrays.items():
            if (shapes and len(entry) not in seen) or (found is not None and found[1] != len(entry)):
                raise misfit(name, entry.shape, shapes)
            found = found or (name, len(entry))
        return found

    def _found(self) -> Alignment:
        found = Alignment(parted=self._parted)
        for tap in self._taps:
            shapes = {**self._fitted[tap.name], **self._strayed.get(tap.name, {})}
            if not shapes:
                continue
            calls = sorted(shapes.items(), key=lambda own: own[1].call)
            found.calls[tap.name] = [(shape, self._calls[tap.name][call]) for call, shape in calls]
            for shape in shapes.values():
                key = shape.space.name, shape.call
                before = found.shapes.setdefault(key, shape)
                found.shapes[key] = replace(before, place=_both(before.place, shape.place))
            if tap.name not in self._spaces.layers:
                tokens = len(found.calls[tap.name][0][1].leading) > 1
                self._spaces.admit(tap.name, self._space_of(tap), tokens)
        return found

    def _check_square(self, found: Alignment) -> None:
        """Where nothing tells the batch from the tokens, a batch that is not square does.

        Raises RecordingError at the first step; later what was said is not recorded of the space's slots.
        """
        open_ = {key: own for key, own in found.shapes.items() if own.space.axis is None and own.place is None}
        open_ = {key: shape for key, shape in open_.items() if self._metadata.speaks_of(shape.space.name)}
        for shape in open_.values():
            if shape.leading[0] != shape.leading[1]:
                shape.space.axis = 0
        for key, shape in open_.items():
            if shape.space.axis is None and square(shape.leading):
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
