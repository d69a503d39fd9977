"""What the answers must be: NumPy in float64 over every slot, as plainly as it can be written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def scores(keys: np.ndarray, query: np.ndarray, absolute: bool = False) -> list[float]:
    """The exact inner products, rounded once to float64."""
    exact = [math.fsum((key.astype(float) * query.astype(float)).tolist()) for key in keys]
    return [abs(score) for score in exact] if absolute else exact


def value_order(key: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    """Sorts groups by value, NULLs last."""
    return tuple((part is None, 0 if part is None else part) for part in key)


def groups(columns: Sequence[Sequence[Any]], stays: Sequence[bool]) -> dict[tuple[Any, ...], list[int]]:
    """Slots by their values of some columns, in value order."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for slot, kept in enumerate(stays):
        if kept:
            found.setdefault(tuple(column[slot] for column in columns), []).append(slot)
    return {key: found[key] for key in sorted(found, key=value_order)}


def best(of: Sequence[float], slots: Sequence[int], k: int) -> list[int]:
    """Score descending, then slot ascending."""
    return sorted(slots, key=lambda slot: (-of[slot], slot))[:k]
