"""Which axis of a layer's keys is the batch: it is said, or known from the modules around the layer, else the first.

Where a space has its batch in the second axis, a layer that does not know its own may have it in the first, and its
slots would be turned over. It is believed once a batch that is neither square nor one entry long shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dualform.errors import BadInput
from dualform.record.metadata import Metadata
from dualform.record.signal import Signal
from dualform.record.space import RecordedSpace
from dualform.record.spaces import Spaces
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
