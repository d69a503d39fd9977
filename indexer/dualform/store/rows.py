"""The rows of a layer by entry, and rows of parameters that no slot explains.

Parameters and buffers that no slot explains, step by step: norms, running statistics, biases of no layer.

Shapes: R rows that are kept, b bytes of a row.

A row holds every such tensor as it stood once so many steps were taken, in the training's own bits: tensor after
tensor in the order of the manifest, each in C order, little-endian. The rows lie in matrix files of their own beside
the layers' (uint8[rows, b]); the table `other_rows` says which moment each row is of. They are the first shard's.

The keys or values of one layer, by entry: the slots that the layer has are its entries, numbered in slot order.

Shapes: rows of float32[width]; H entries.

What a memory lacks because its slots were sampled to hold a budget (layer.py).

The entries of a layer: the slots of its space that it has, numbered from 0 in slot order.

Shapes: H entries, n that are asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dualform.kernels.arguments import RowAddresses
from dualform.store.files.segment import MatrixForm, npy
from dualform.store.sources.key_format import KeySource

Integers: TypeAlias = NDArray[np.int64]


class Entries:
    """Ranges of slots, ascending."""

    def __init__(self, first_slot: Integers, slots: Integers, of_space: int) -> None:
        """int64[r] each: where a range begins, and how many slots it has. `of_space`: all slots of the space."""
        self._first_slot, self._lengths = first_slot, slots
        self._first_entry = np.cumsum(slots) - slots
        self.count = int(slots.sum())
        """H."""
        self.all = self.count == of_space
        """Whether the layer has every slot of its space, so that entries are slots."""

    @cached_property
    def slots(self) -> Integers | None:
        """int64[H]; None where entries are slots."""
        if self.all:
            return None
        return np.repeat(self._first_slot - self._first_entry, self._lengths) + np.arange(self.count)

    def slots_of(self, entries: Integers) -> Integers:
        """int64[n]."""
        if self.all:
            return entries
        place = np.searchsorted(self._first_entry, entries, side="right") - 1
        return np.asarray(self._first_slot[place] + entries - self._first_entry[place])

    def of(self, slots: Integers) -> Integers:
        """int64[n]: the entry of each slot; -1 for a slot that the layer does not have."""
        if self.all:
            return slots
        if not len(self._first_slot):
            return np.full(len(slots), -1)
        place = np.maximum(np.searchsorted(self._first_slot, slots, side="right") - 1, 0)
        within = slots - self._first_slot[place]
        return np.where((within >= 0) & (within < self._lengths[place]), self._first_entry[place] + within, -1)


@dataclass(frozen=True, eq=False)
class DroppedSlots:
    """Of one space that lacks any."""

    steps: Integers
    """int64[s], ascending: those that lack slots."""
    slots: int
    """How many the training had and the memory never got."""

    @property
    def first_step(self) -> int:
        """Up to there all slots are kept."""
        return int(self.steps[0])


def dropped_slots(shares: pa.Table) -> dict[str, DroppedSlots]:
    """By space that lacks any, of the table `shares`."""
    step, slots, kept = (np.asarray(shares[name], dtype=np.int64) for name in ("step", "slots", "kept"))
    spaces, missing = np.array(shares["space"].to_pylist(), dtype=object), slots - kept
    found = {}
    for space in dict.fromkeys(spaces[missing > 0]):
        own = (spaces == space) & (missing > 0)
        found[space] = DroppedSlots(np.unique(step[own]), int(missing[own].sum()))
    return found


class Rows:
    """A matrix that lies in key sources, one after the other."""

    def __init__(self, sources: Sequence[KeySource], width: int) -> None:
        self.sources, self.width = sources, width
        self._starts = [source.first_row for source in sources]
        self.rows = self.stored_rows = sources[-1].first_row + sources[-1].rows if sources else 0
        """`rows` are what the methods take. `stored_rows` are all rows of the sources: of a training that was resumed,
        also those after its checkpoint, which are no entry's."""

    @property
    def order(self) -> NDArray[np.int64] | None:
        """int64[H]: the stored row of each entry; None where row and entry are the same."""
        return None

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width], aligned and C-contiguous; not to be written to.

        Raises Damaged, naming the file, where a segment is not what was committed.
        """
        parts = []
        index = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop:
            source = self.sources[index]
            end = min(stop, source.first_row + source.rows)
            parts.append(source.read(start - source.first_row, end - source.first_row))
            start, index = end, index + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.width), dtype=np.float32)

    def blocks(self, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Blocks of `size` rows (the last one smaller) with their first row, wherever sources end."""
        for start in range(0, self.rows, size):
            yield start, self.block(start, min(start + size, self.rows))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(rows), width] of any rows in any order."""
        taken = np.empty((len(rows), self.width), dtype=np.float32)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        cuts = np.searchsorted(ordered, [*self._starts, self.rows])
        for source, (first, last) in zip(self.sources, pairwise(cuts), strict=True):
            if first < last:
                matrix, places = source.holding(ordered[first:last] - source.first_row)
                taken[order[first:last]] = matrix[places]
        return taken

    def passing(self, *, first: bool = False) -> Self:
        """The same rows, to be gone through once: what is read of them is not kept for the next question. With `first`,
        it is from the second time on.
        """
        found = copy(self)
        found.sources = [source.passing(first=first) for source in self.sources]
        return found

    def addresses(self, rows: NDArray[np.int64]) -> RowAddresses:
        """Where some rows, in any order, lie in memory."""
        number = np.searchsorted(self._starts, rows, side="right") - 1

        def parts() -> Iterator[tuple[NDArray[np.bool_], NDArray[np.float32], NDArray[np.int64]]]:
            for index in np.flatnonzero(np.bincount(number)).tolist():
                source, own = self.sources[index], number == index
                yield own, *source.holding(rows[own] - source.first_row)

        return RowAddresses(len(rows), self.width, parts())


class OrderedRows(Rows):
    """Rows that are stored in another order than that of the entries, as those of several shards are."""

    def __init__(self, sources: Sequence[KeySource], width: int, row_of_entry: NDArray[np.int64]) -> None:
        super().__init__(sources, width)
        self._row_of_entry = row_of_entry
        self.rows = len(row_of_entry)

    @property
    def order(self) -> NDArray[np.int64]:
        return self._row_of_entry

    def block(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.take(np.arange(start, stop))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._stored.take(self._row_of_entry[rows])

    def addresses(self, rows: NDArray[np.int64]) -> RowAddresses:
        return self._stored.addresses(self._row_of_entry[rows])

    @property
    def _stored(self) -> Rows:
        return Rows(self.sources, self.width)


class Keys(Rows):
    """A layer's keys: one row per entry, or one per distinct key where the layer's inputs repeat."""

    def __init__(
        self, sources: Sequence[KeySource], width: int, entries: int, row_of_entry: NDArray[np.int64] | None
    ) -> None:
        super().__init__(sources, width)
        self.entries = entries
        """H."""
        self.row_of_entry = row_of_entry
        """int64[H]: the row of each entry's key; None where row and entry are the same."""

    @property
    def order(self) -> NDArray[np.int64] | None:
        return self.row_of_entry

    def of_entries(self, entries: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[len(entries), width]: the keys of any entries in any order."""
        return self.take(entries if self.row_of_entry is None else self.row_of_entry[entries])

    def entry_block(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32[stop - start, width]: the keys of a range of entries."""
        if self.row_of_entry is None:
            return self.block(start, stop)
        return self.take(self.row_of_entry[start:stop])


FOLDER = KIND = "others"
OWNER = ("", KIND)
"""Where a snapshot's sources have the rows: they are of no layer."""
STORED: Mapping[str, str] = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "|i1", "uint8": "|u1", "bool": "|b1",
}  # fmt: skip
"""Types by torch's names, as NumPy reads their bits; bfloat16, which it lacks, as the upper half of a float32."""


@dataclass(frozen=True)
class OtherTensor:
    """One of them."""

    name: str
    """In the model's state dict."""
    dtype: str
    """One of STORED."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(STORED[self.dtype]).itemsize

    def value(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        """Its numbers, of its bytes; bfloat16 as float32, as weights are stored."""
        found = np.array(content.view(STORED[self.dtype]))
        if self.dtype == "bfloat16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        return found.reshape(self.shape)


@dataclass(frozen=True)
class Others:
    """How a row is laid out, and how often one is kept."""

    tensors: tuple[OtherTensor, ...]
    every: int = 1
    """A row is kept once so many steps were taken, or a multiple of it."""

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.tensors)

    @cached_property
    def form(self) -> MatrixForm:
        return npy("|u1", sum(tensor.nbytes for tensor in self.tensors))

    def values(self, row: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """By name, of uint8[b]."""
        return {tensor.name: tensor.value(part) for tensor, part in self._parts(row)}

    def _parts(self, row: NDArray[np.uint8]) -> Iterator[tuple[OtherTensor, NDArray[np.uint8]]]:
        start = 0
        for tensor in self.tensors:
            yield tensor, row[start : start + tensor.nbytes].copy()  # aligned, and nobody else's
            start += tensor.nbytes

    def to_json(self) -> dict[str, Any]:
        return {"every": self.every, "tensors": [vars(tensor) for tensor in self.tensors]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Others:
        tensors = [OtherTensor(own["name"], own["dtype"], tuple(own["shape"])) for own in fields["tensors"]]
        return cls(tuple(tensors), fields["every"])


@dataclass(frozen=True, eq=False)
class OtherRow:
    """All of them at one moment, as a batch brings them."""

    at_step: int
    """How many recorded steps were taken by then."""
    content: NDArray[np.uint8]
    """uint8[b]."""


class OtherRows:
    """The rows that a snapshot has."""

    def __init__(self, others: Others, at_steps: Integers, rows: Rows, steps: int) -> None:
        """`at_steps` int64[R]: of each row; of several of one moment the last counts. `steps`: how many there are."""
        self._others, self._rows = others, rows
        self._row_of = {at_step: row for row, at_step in enumerate(at_steps.tolist()) if at_step <= steps}

    def at(self, at_step: int) -> dict[str, NDArray[Any]] | None:
        """By name, once so many steps were taken; None where no row was kept of that moment."""
        row = self._row_of.get(at_step)
        return None if row is None else self._others.values(self._rows.block(row, row + 1)[0].view(np.uint8))

    @property
    def moments(self) -> list[int]:
        """Of all rows, ascending."""
        return sorted(self._row_of)

    @property
    def names(self) -> frozenset[str]:
        return self._others.names
