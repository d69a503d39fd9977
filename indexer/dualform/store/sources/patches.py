"""Key source "patches": feature maps, for the keys of a convolution: their patches, one a place of its output.

Shapes: feature maps [C, *size] of one, two or three dimensions; P = prod(places) patches of each, in row-major order of
the output's places; d_in = C * prod(kernel) numbers of a patch, channels first (as torch.nn.functional.unfold has them,
and a convolution's weight). n rows asked for, u feature maps.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dualform.store.files.segment import MatrixForm, npy
from dualform.store.sources.key_format import Geometry, KeyFormat, KeySource, MadeRows, StoredRows, float32_rows

_MAP_BYTES = 64 << 20
"""Of feature maps that are unfolded together."""
_MOST_DIMENSIONS = 3


@dataclass(frozen=True)
class Unfolding:
    """Which patches a convolution takes of a feature map; numbers of each dimension but the channels'."""

    shape: tuple[int, ...]
    """(C, *size)."""
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on each side. Where padding holds anything else, or differs from side to side, a map is padded before it
    is handed over.
    """
    dilation: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.shape) - 1
        if not 1 <= count <= _MOST_DIMENSIONS:
            raise ValueError(f"its feature maps have the shape {list(self.shape)}; one to three axes are supported.")
        for name, least in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            numbers = getattr(self, name)
            if len(numbers) != count or min(numbers) < least:
                raise ValueError(f"its {name} is {list(numbers)}: it must be {count} numbers of at least {least}.")
        if min(self.places) < 1:
            raise ValueError(f"its kernel {list(self.kernel)} does not fit feature maps of {list(self.shape)}.")

    @cached_property
    def extent(self) -> tuple[int, ...]:
        """What a kernel covers."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The size of the convolution's output."""
        sides = zip(self.shape[1:], self.padding, self.extent, self.stride, strict=True)
        return tuple((size + 2 * padding - extent) // stride + 1 for size, padding, extent, stride in sides)

    @cached_property
    def width(self) -> int:
        return self.shape[0] * math.prod(self.kernel)

    def windows(self, maps: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[u, C, *places, *kernel] of float32[u, C, *size], a view where nothing is padded."""
        if any(self.padding):
            maps = np.pad(maps, [(0, 0), (0, 0), *((zeros, zeros) for zeros in self.padding)])
        axes = tuple(range(2, maps.ndim))
        every = sliding_window_view(maps, self.extent, axis=axes)
        steps = [slice(None, None, step) for step in (*self.stride, *self.dilation)]
        return every[(slice(None), slice(None), *steps)]

    def lines(self, maps: NDArray[np.float32], first: int, last: int) -> NDArray[np.float32]:
        """float32[u * (last - first) * …, width]: the patches at some places along the output's first dimension."""
        chosen = self.windows(maps)[:, :, first:last]
        return np.ascontiguousarray(np.moveaxis(chosen, 1, 1 + len(self.places))).reshape(-1, self.width)

    def patches(
        self, maps: NDArray[np.float32], number: NDArray[np.int64], place: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """float32[n, width]: the patch at each place of the feature map of each number."""
        at: tuple[Any, ...] = (number, slice(None), *np.unravel_index(place, self.places))
        found: NDArray[np.float32] = self.windows(maps)[at]
        return found.reshape(len(number), self.width)


class Patches(KeyFormat, source="patches"):
    """Handed over and stored as float32[m, C, *size]; a row stands for P entries."""

    geometry_names = frozenset({"shape", "kernel", "stride", "padding", "dilation"})

    def __init__(self, d_in: int, geometry: Geometry) -> None:
        super().__init__(d_in, geometry)
        self.unfolding = Unfolding(**geometry)
        if self.unfolding.width != d_in:
            raise ValueError(f"its patches have {self.unfolding.width} numbers, but its keys have {d_in}.")

    @property
    def per_row(self) -> int:
        return math.prod(self.unfolding.places)

    @property
    def forms(self) -> Sequence[MatrixForm]:
        return (npy("<f4", *self.unfolding.shape),)

    def accepted(self, keys: NDArray[Any]) -> NDArray[np.float32]:
        return float32_rows(keys, *self.unfolding.shape)

    def source(self, stored: StoredRows) -> KeySource:
        return PatchRows(stored, stored.first_row * self.per_row, self.d_in, self.unfolding)


@dataclass(frozen=True, eq=False)
class PatchRows(MadeRows):
    """Float32 rows of float32[rows / P, channels, *size]."""

    unfolding: Unfolding
    first_channel: int = 0
    """Of the stored maps, which may have more channels than those that are unfolded."""

    @property
    def identity(self) -> Hashable:
        return self.stored.identity, self.first_channel, self.unfolding

    def of_channels(self, start: int, stop: int) -> PatchRows | None:
        """The columns from `start` to `stop` of each patch, where they are those of whole channels; else None."""
        each = math.prod(self.unfolding.kernel)
        if start % each or stop % each:
            return None
        shape = ((stop - start) // each, *self.unfolding.shape[1:])
        first = self.first_channel + start // each
        return replace(self, width=stop - start, unfolding=replace(self.unfolding, shape=shape), first_channel=first)

    def _channels(self, maps: NDArray[np.float32]) -> NDArray[np.float32]:
        return maps[:, self.first_channel : self.first_channel + self.unfolding.shape[0]]

    @property
    def rows(self) -> int:
        return self.stored.rows * self._per_map

    @property
    def _per_map(self) -> int:
        return math.prod(self.unfolding.places)

    @property
    def _at_once(self) -> int:
        return max(1, _MAP_BYTES // (4 * max(1, math.prod(self.unfolding.shape))))

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        patches, done = np.empty((stop - start, self.width), dtype=np.float32), 0
        while done < len(patches):
            number, place = divmod(start + done, self._per_map)
            left = len(patches) - done
            if place or left < self._per_map:
                made = self._of_map(number, place, min(place + left, self._per_map))
            else:
                maps = self.stored.read(number, number + min(left // self._per_map, self._at_once))
                made = self.unfolding.lines(self._channels(maps), 0, self.unfolding.places[0])
            patches[done : done + len(made)] = made
            done += len(made)
        return patches

    def _of_map(self, number: int, start: int, stop: int) -> NDArray[np.float32]:
        """The patches at a range of the places of one feature map."""
        line = self._per_map // self.unfolding.places[0]
        first, last = start // line, -(-stop // line)
        lines = self.unfolding.lines(self._channels(self.stored.read(number, number + 1)), first, last)
        return lines[start - first * line : stop - first * line]

    def make(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        maps, number = np.unique(rows // self._per_map, return_inverse=True)
        place, size = rows % self._per_map, self._at_once
        patches = np.empty((len(rows), self.width), dtype=np.float32)
        for first in range(0, len(maps), size):
            matrix, places = self.stored.holding(maps[first : first + size])
            own = slice(*np.searchsorted(number, [first, first + size]))
            patches[own] = self.unfolding.patches(self._channels(matrix)[places], number[own] - first, place[own])
        return patches
