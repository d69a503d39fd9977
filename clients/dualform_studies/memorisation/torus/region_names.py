"""Where the regions of a class map have room for their names, so that colour is not all that tells them apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROOM = 0.03
"""A name needs so much of the square's side to each side of it."""
_APART = 0.3
"""Two names of one class lie so far apart, in sides of the square."""


def depth(inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64[G, G]: how many points a square around each may reach to every side without leaving `inside`, plus one.

    0 outside; what lies beyond the picture's border is outside, too.
    """
    found = np.zeros(inside.shape, np.int64)
    while inside.any():
        found += inside
        for axis in (0, 1):
            padded = np.pad(inside, [(1, 1) if axis == at else (0, 0) for at in (0, 1)])
            inside = inside & np.delete(padded, [-2, -1], axis=axis) & np.delete(padded, [0, 1], axis=axis)
    return found


def name_places(classes: NDArray[np.int64], free: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Class, row and column of each name: in the widest places of every class's regions that are free, as bool[G, G].

    Regions without room have no name.
    """
    side = len(classes)
    rows, columns = np.indices(classes.shape)
    found = []
    for one in np.unique(classes).tolist():
        room = depth((classes == one) & free)
        while room.max() > max(1, _ROOM * side):
            row, column = (int(at) for at in np.unravel_index(int(room.argmax()), room.shape))
            found.append((one, row, column))
            room[np.maximum(abs(rows - row), abs(columns - column)) < _APART * side] = 0
    return found
