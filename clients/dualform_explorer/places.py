"""The places of a convolution: where they are in a picture, and the attention of each.

Shapes: P places of an example, row by row.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dualform.answers import LayerInfo, MemoryInfo, Patches
from dualform.answers.contents import PNG
from dualform.methods import Answers

_MOST_ASKED = 1 << 14
"""The most places whose attention is asked for. Of more, the middle one is shown first."""


@dataclass(frozen=True)
class Box:
    """An area of a picture, in pixels."""

    picture: tuple[int, int]
    """Width and height."""
    x: float
    y: float
    width: float
    height: float
    exact: bool
    """Whether it is the patch itself instead of a cell of the grid."""


@dataclass(frozen=True)
class Places:
    """The places of a layer over pictures."""

    patches: Patches
    first: bool
    """Whether the layer ran first, so that its input may be the picture."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.patches.places
        return rows, columns

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1]

    def box(self, place: int, png: bytes) -> Box | None:
        """The area of a place; None for an unknown place. If the layer's input has the picture's size, it is the patch.
        Otherwise it is a cell of the grid, because the earlier layers decide how much a later layer sees.
        """
        rows, columns = self.grid
        if not 0 <= place < rows * columns or not png.startswith(PNG):
            return None
        width, height = struct.unpack(">II", png[16:24])
        if self.first and (height, width) == self.patches.size:
            (top, bottom), (left, right) = self.patches.spans(place)
            return Box((width, height), left, top, right - left, bottom - top, True)
        row, column = divmod(place, columns)
        wide, high = width / columns, height / rows
        return Box((width, height), column * wide, row * high, wide, high, False)


def places_of(info: MemoryInfo, query_set: str, layer: LayerInfo | None) -> Places | None:
    """None unless the layer is a two-dimensional convolution."""
    if layer is None or layer.patches is None or len(layer.patches.size) != 2:
        return None
    layers = next((own.layers for own in info.query_sets if own.name == query_set), ())
    return Places(layer.patches, layers[:1] == (layer.name,))


def attention_by_place(
    memory: Answers, layer: str, item: str, where: str | None = None, score: str = "dot"
) -> NDArray[np.float64]:
    """float64[P]: the sum of the scores of the slots that the filter keeps, at each place of an example."""
    answer = memory.group_sum(layer, item, by="dataset", where=where, score=score)
    return np.asarray(answer.sums.sum(axis=1), dtype=np.float64)


def first_shown(memory: Answers, layer: str, item: str, places: Places) -> int:
    """The place with the largest attention over all slots."""
    if places.count > _MOST_ASKED:
        rows, columns = places.grid
        return rows // 2 * columns + columns // 2
    return int(attention_by_place(memory, layer, item).argmax())
