"""More texts like those of a column, where all but every row has one of its own: hashes, names of files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_DISTINCT = 0.9
"""From this share of a column's entries on, each has a text of its own."""
_MOST_LETTERS = 20_000_000
"""Of a trial's column, were its texts all as long as the longest; one of more is written again as it is."""
_SPARE = 100
"""So many times as many texts as are made could be: few of them are made twice."""


def go_on(column: pa.ChunkedArray) -> bool:
    """Whether the rows to come will have texts that these do not have."""
    entries = len(column) - column.null_count
    if not pa.types.is_string(column.type) or entries < 2:
        return False
    longest = pc.max(pc.utf8_length(column)).as_py()
    return bool(0 < longest * len(column) <= _MOST_LETTERS and pc.count_distinct(column).as_py() >= _DISTINCT * entries)


def more(column: pa.ChunkedArray, count: int, distinct: int | None, rng: np.random.Generator) -> pa.Array:
    """The column so many times after one another, with new texts of the same lengths each time; no more of them than
    `distinct`, where that is known, which come again then in any order.
    """
    missing = np.tile(np.asarray(column.is_null()), count)
    texts = np.asarray(column.drop_null().to_pylist(), dtype=np.str_)
    letters = texts.view(np.uint32).reshape(len(texts), -1)
    places = _places(letters, len(texts) * count)
    used = np.unique(letters[:, places])
    made = [texts.astype(object)]
    wanted = len(texts) * count
    most = wanted if distinct is None else min(max(distinct, len(texts)), wanted)
    while len(made) * len(texts) < most:
        other = letters.copy()
        drawn = rng.choice(used[used > 0], (len(texts), len(places)))
        other[:, places] = np.where(letters[:, places] > 0, drawn, 0)
        made.append(other.view(texts.dtype).reshape(-1).astype(object))
    every = np.concatenate(made)[:most]
    if most < wanted:
        every = np.concatenate([made[0], every[rng.integers(0, most, wanted - len(texts))]])
    rows = np.full(len(missing), None)
    rows[~missing] = every
    return pa.array(rows, type=column.type)


def _places(letters: NDArray[np.uint32], wanted: int) -> NDArray[np.int64]:
    """Where texts differ, and as many places before, from the right to the left, as new ones need to differ: digits
    before those that a counter has reached.
    """
    differs = np.array([len(np.unique(place[place > 0])) > 1 for place in letters.T])
    first = int(np.argmax(differs))
    alphabet = len(np.unique(letters[:, differs]))
    enough = int(np.ceil(np.log(_SPARE * wanted) / np.log(max(alphabet, 2))))
    further = max(enough - int(differs.sum()), 0)
    differs[max(first - further, 0) : first] = True
    return np.flatnonzero(differs)
