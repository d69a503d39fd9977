"""What is said of a step as columns: of its samples, or of the single slots of a space.

Shapes: B rows of the step, `L...` token dimensions, n slots of an extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.record.metadata import PLACES, Array, Metadata
from dualform.record.sayings import Sayings
from dualform.record.shape import Shape, misfit
from dualform.record.spaces import Spaces
from dualform.store.batch import Extent
from dualform.store.tables import KINDS, SAID, SAMPLES

_TYPES: Mapping[str, np.dtype[Any]] = {name: KINDS[SAMPLES[name]].numpy for name in SAID}


class Columns:
    """The columns of one recording. A column keeps the level and the type that it had when it was first given."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._samples: dict[str, np.dtype[Any]] | None = None
        """User columns of samples, which the first step fixes."""
        self._types = dict(_TYPES)
        """What each column of samples stores."""
        self._slots: dict[tuple[str, str], np.dtype[Any]] = {}
        """By space and name, of what is said of single slots."""
        self._levels: dict[str, str] = {}
        """Column -> the space whose slots it speaks of; "" for one of samples."""

    def samples(self, metadata: Metadata, rows: int, step: int) -> dict[str, Array]:
        """The columns of a step's samples, [B] each. Raises BadInput for a column that changed."""
        said = {name: entry for name, entry in metadata.entries.items() if self._level(name, entry) == ""}
        own = {name: entry.dtype for name, entry in said.items() if name not in SAID}
        if self._samples is None:
            self._samples = own
            self._types = {**_TYPES, **own}
        for name, dtype in own.items():
            if name not in self._samples:
                raise BadInput(
                    f"column {name!r} is new at step {step}.", hint="Give it from the first step on.", field=name
                )
            _check_type(name, self._samples[name], dtype)
        self._levels |= dict.fromkeys(said, "")
        return {name: _spread(said.get(name), dtype, rows) for name, dtype in self._types.items()}

    def no_samples(self) -> dict[str, Array]:
        """The columns of a batch that brings no samples."""
        return {name: _nulls(0, dtype) for name, dtype in self._types.items()}

    def unknown(self, metadata: Metadata) -> dict[str, Any]:
        """What is said of slots whose row is not known: the single values; None for everything else."""
        single = {
            name: None if np.ma.is_masked(entry) else entry.item()
            for name, entry in metadata.entries.items()
            if entry.ndim == 0
        }
        return {name: single.get(name) for name in self._types}

    def extents(
        self, metadata: Metadata, shapes: Sequence[Shape], step: int, first: bool
    ) -> list[tuple[Extent, Array | None]]:
        """Each shape's extent, and which of its slots stay: int64[n], None for all. Raises BadInput.

        `shapes` are those of a space after one another, in the order of their calls.
        """
        whole = self._of_spaces(metadata, shapes)
        for space in whole:
            for name, entry in (said for saying in metadata.sayings(space) for said in saying.items()):
                if name not in PLACES:
                    _check_type(name, self._slots.setdefault((space, name), entry.dtype), entry.dtype)
        sayings = Sayings(metadata, self._spaces, step, first)
        extents = []
        for space, said in whole.items():
            calls = [shape for shape in shapes if shape.space.name == space]
            routed = calls[0].space.routed
            own = sayings.of_calls(calls) if routed else [metadata.at(space)] * len(calls)
            extents += [_extent(shape, said | of_call) for shape, of_call in zip(calls, own, strict=True)]
        return extents

    def _of_spaces(self, metadata: Metadata, shapes: Sequence[Shape]) -> dict[str, dict[str, Array]]:
        """By space, what is said of the whole step and speaks of the space's single slots."""
        said: dict[str, dict[str, Array]] = {shape.space.name: {} for shape in shapes}
        for name, entry in metadata.entries.items():
            space = self._level(name, entry)
            if space is None:
                space = self._token_space(name, entry, shapes)
            if space in said:
                self._levels[name] = space
                said[space][name] = entry
                _check_type(name, self._slots.setdefault((space, name), entry.dtype), entry.dtype)
        for name, placed in (("position", metadata.position), ("mask", metadata.mask)):
            for space, entry in self._placed(name, placed, shapes).items():
                if space in said:
                    said[space][name] = entry
        return said

    def _level(self, name: str, entry: Array) -> str | None:
        """The space that a column speaks of, "" for samples, None where that is still to be seen."""
        level = self._levels.get(name)
        if level is None:
            return None if entry.ndim > 1 else ""
        if level == "" and entry.ndim > 1:
            raise BadInput(
                f"column {name!r} was said of rows at first and is said of single tokens now.",
                hint="Give another column, or say it of one space with step(at=…).",
                field=name,
            )
        if level and entry.ndim == 1:
            raise BadInput(
                f"column {name!r} was said of single tokens at first and is said of rows now.",
                hint="Give another column.",
                field=name,
            )
        return level

    def _token_space(self, name: str, entry: Array, shapes: Sequence[Shape]) -> str:
        """The one space that an entry [B, L...] can speak of; "" where it has no slots at this step."""
        regular = [shape for shape in shapes if not shape.space.routed]
        spaces = list(dict.fromkeys(shape.space.name for shape in regular if shape.space.tokens))
        if len(spaces) > 1:
            names = " and ".join(repr(space) for space in spaces)
            raise BadInput(
                f"{name} speaks of single tokens, and spaces {names} have tokens.",
                hint=f"Say which: at={{{spaces[0]!r}: {{{name!r}: …}}}}.",
                field=name,
            )
        if not spaces and regular and not any(space.tokens for space in self._spaces.known.values()):
            raise misfit(name, entry.shape, regular)
        return spaces[0] if spaces else ""

    def _placed(self, name: str, entry: Array | None, shapes: Sequence[Shape]) -> dict[str, Array]:
        """By space: `mask` or `position`, as said of the whole step.

        What has rows only speaks of rows: a mask of all spaces, a position of those where a slot is a row.
        """
        regular = [shape.space for shape in shapes if not shape.space.routed]
        if entry is None:
            return {}
        if entry.ndim > 1:
            return {self._token_space(name, entry, shapes): entry}
        flat = [space for space in regular if not space.tokens] if name == "position" else []
        return {space.name: entry for space in flat or regular}


def _check_type(name: str, known: np.dtype[Any], now: np.dtype[Any]) -> None:
    if known != now:
        raise BadInput(f"column {name!r} held {known} at first and holds {now} now.", field=name)


def _extent(shape: Shape, said: Mapping[str, Array]) -> tuple[Extent, Array | None]:
    """An extent, and which of its slots stay; `said`: columns, `mask`, `position` and `row` of its slots."""
    space, n = shape.space.name, shape.slots
    row = _rows(shape, said.get("row"))
    said = {name: entry for name, entry in said.items() if entry.ndim == 0 or not shape.untold}
    mask = _of_slots("mask", said["mask"], shape) if "mask" in said else None
    kept = None if mask is None or mask.all() else np.flatnonzero(mask)
    position = _of_slots("position", said["position"], shape) if "position" in said else None
    if shape.length is not None and kept is not None:
        position = np.arange(n) % shape.length if position is None else position
    if shape.length is not None and position is not None and kept is None:
        position = None if np.array_equal(position, np.arange(n) % shape.length) else position
    if kept is not None and row is None:
        row = np.arange(n) // (shape.length or 1)
    columns = {name: _of_slots(name, entry, shape) for name, entry in said.items() if name not in PLACES}
    extent = Extent(
        space,
        shape.call,
        rows=0 if shape.space.routed or shape.untold else shape.rows,
        length=shape.length,
        row=None if row is None else _chosen(row, kept).astype(np.int32),
        position=None if position is None else _chosen(position, kept).astype(np.int64),
        columns={name: _chosen(column, kept) for name, column in columns.items()},
    )
    return extent, kept


def _rows(shape: Shape, given: Array | None) -> Array | None:
    """int64[n]: the row of each slot, where it does not follow from the shape; -1 where it is not known."""
    if not shape.space.routed:
        if given is not None:
            raise BadInput(
                f"the rows of space {shape.space.name!r} are those of its batch.",
                hint="Only layers of routed= have rows of their own.",
                field="row",
            )
        return np.full(shape.slots, -1) if shape.untold else None
    return np.full(shape.slots, -1) if given is None else _of_slots("row", given, shape)


def _of_slots(name: str, entry: Array, shape: Shape) -> Array:
    """An entry as one value a slot, [n]."""
    if entry.ndim == 0:
        return _spread(entry, entry.dtype, shape.slots)
    if entry.shape == shape.leading:
        return entry.reshape(-1)
    if entry.shape == shape.leading[:1]:
        return np.repeat(entry, shape.length or 1)
    raise misfit(name, entry.shape, [shape])


def _chosen(array: Array, kept: NDArray[np.int64] | None) -> Array:
    return array if kept is None else array[kept]


def _spread(entry: Array | None, dtype: np.dtype[Any], rows: int) -> Array:
    if entry is None or (entry.ndim == 0 and np.ma.is_masked(entry)):
        return _nulls(rows, dtype)
    if entry.ndim:
        return entry[:rows]
    return _repeated(entry.item(), rows) if dtype == np.object_ else np.full(rows, entry[()], dtype=dtype)


@lru_cache(maxsize=16)
def _repeated(text: str | None, n: int) -> Array:
    """A column of one text; shared between steps, so nobody may write to it."""
    return np.full(n, text, dtype=np.object_)


@lru_cache(maxsize=16)
def _nulls(n: int, dtype: np.dtype[Any]) -> Array:
    """A column of NULLs; shared between steps, so nobody may write to it."""
    if dtype == np.object_:
        return np.full(n, None, dtype=np.object_)
    return np.ma.MaskedArray(np.zeros(n, dtype=dtype), mask=np.ones(n, dtype=np.bool_))
