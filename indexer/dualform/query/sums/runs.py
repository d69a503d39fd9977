"""Rows of a matrix added together, run by run.

Shapes: b rows in r runs, d dimensions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def begins(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[r]: where each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]) if len(numbers) else np.empty(0, np.int64)


def added_in_order(rows: NDArray[np.float32] | NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[r, d]: the sum of each run of rows, added one row after the other; numpy.add.reduceat promises no order.

    All runs advance together: their first rows, then their second ones where they have one, and so on.
    """
    if len(starts) == len(rows):
        return rows.astype(np.float64, copy=False)
    lengths = np.diff(starts, append=len(rows))
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    added = rows[starts].astype(np.float64, copy=False)
    running = np.searchsorted(-lengths, -np.arange(1, lengths[0]), side="left")
    for place, count in enumerate(running.tolist(), start=1):
        added[:count] += rows[starts[:count] + place]
    found = np.empty_like(added)
    found[longest_first] = added
    return found
