"""What is said to a routed space: the k-th saying belongs to the k-th call.

Nothing tells such a call from another one but their order: neither its size nor its step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualform.errors import BadInput
from dualform.record.column_values import Array
from dualform.record.metadata import Metadata
from dualform.record.shape import Shape, misfit
from dualform.record.spaces import Spaces


class RoutedColumns:
    """What is said to the routed spaces of one step. At the first step what is ambiguous is refused; later it is not
    recorded, with a warning.
    """

    def __init__(self, metadata: Metadata, spaces: Spaces, step: int, first: bool) -> None:
        self._metadata, self._spaces, self._step, self._first = metadata, spaces, step, first

    def of_calls(self, shapes: Sequence[Shape]) -> list[dict[str, Array]]:
        """By call of one space, its columns, `row`, `position` and `mask`; `shapes`: those calls in their order."""
        found: list[dict[str, Array]] = [{} for _ in shapes]
        sayings = self._metadata.sayings(shapes[0].space.name)
        # What is said of no slots belongs to a call of none, which is no call.
        sayings = [saying for saying in sayings if all(entry.size for entry in saying.values())]
        for name in dict.fromkeys(name for saying in sayings for name in saying):
            entries = self._of_each(name, [saying[name] for saying in sayings if name in saying], shapes)
            for own, entry in zip(found, entries, strict=True):
                if entry is not None:
                    own[name] = entry
        return found

    def _of_each(self, name: str, entries: Sequence[Array], shapes: Sequence[Shape]) -> Sequence[Array | None]:
        """One entry for each call; None where nothing is sure."""
        space = shapes[0].space.name
        if len(entries) == 1 and entries[0].ndim == 0:
            return [entries[0]] * len(shapes)
        if len(shapes) == 1 and all(np.array_equal(entry, entries[0]) for entry in entries):
            entries = entries[:1]
        nothing: list[Array | None] = [None] * len(shapes)
        if len(entries) != len(shapes):
            return self._leave(space, self._ambiguous(name, entries, shapes), nothing)
        for entry, shape in zip(entries, shapes, strict=True):
            if entry.ndim and entry.shape != shape.leading:
                return self._leave(space, misfit(name, entry.shape, [shape]), nothing)
        return entries

    def _ambiguous(self, name: str, entries: Sequence[Array], shapes: Sequence[Shape]) -> BadInput:
        space = shapes[0].space.name
        return BadInput(
            f"{name} of space {space!r} was passed {_times(len(entries))} for {len(shapes)} "
            f"{'call' if len(shapes) == 1 else 'calls'} at step {self._step}.",
            hint=f"Call step.at({space!r}, {name}=…) once before each call that a gradient reaches.",
            field=name,
        )

    def _leave(self, space: str, error: BadInput, nothing: list[Array | None]) -> list[Array | None]:
        if self._first:
            raise error
        self._spaces.warn_once(
            f"{error.field} of space {space}",
            f"{error.message} It is not recorded for these slots, also in later steps. {error.hint}",
        )
        return nothing


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
