"""The right answers, in float64 over blocks of slots, and what is wrong with others.

Shapes: T slots, n queries, d dimensions, G groups, c candidates of a query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Groups
from benchmarks.harness import OURS, Check

BLOCK = 8192
SPARE = 16
"""Candidates beyond k: rows that a float64 product puts in another order than exact arithmetic."""
FLOAT32 = 1e-5
"""Of the norms' product: how far a float32 score may be off. Its proven bound is d * 2**-24, 5e-5 at d = 800."""


@dataclass(frozen=True, eq=False)
class Best:
    """The k best slots of each query."""

    slots: list[NDArray[np.int64]]
    """By score descending, then slot ascending."""
    scores: list[NDArray[np.float64]]
    """Rounded from exact arithmetic."""
    tolerance: NDArray[np.float64]
    """float64[n]: how far a float32 score may be off."""

    def first(self, count: int) -> Best:
        """The right answer to the first queries."""
        return Best(self.slots[:count], self.scores[:count], self.tolerance[:count])


def best(
    keys: NDArray[np.float32],
    queries: NDArray[np.float32],
    k: int,
    masks: Sequence[NDArray[np.bool_] | None] = (None,),
) -> list[Best]:
    """The right answer under each mask, from one pass over the keys."""
    wide = queries.astype(np.float64)
    found = [(np.empty((len(queries), 0)), np.empty((len(queries), 0), dtype=np.int64)) for _ in masks]
    longest = 0.0
    for start in range(0, len(keys), BLOCK):
        block = keys[start : start + BLOCK].astype(np.float64)
        longest = max(longest, float(np.einsum("td,td->t", block, block).max()))
        scores = wide @ block.T
        for i, mask in enumerate(masks):
            slots = np.arange(len(block)) if mask is None else np.flatnonzero(mask[start : start + BLOCK])
            if len(slots):
                found[i] = _merged(found[i], scores[:, slots], slots + start, k + SPARE)
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide)) * math.sqrt(longest)
    return [_ranked(keys, queries, slots, k, FLOAT32 * norms) for _, slots in found]


def best_of_groups(keys: NDArray[np.float32], query: NDArray[np.float32], k: int, groups: Groups) -> Best:
    """The right answer for one query: the k best slots of each group."""
    each = best(keys, query, k, groups.members)
    slots, scores, tolerances = zip(*((one.slots[0], one.scores[0], one.tolerance) for one in each), strict=True)
    return Best(list(slots), list(scores), np.concatenate(tolerances))


def _merged(
    held: tuple[NDArray[np.float64], NDArray[np.int64]],
    scores: NDArray[np.float64],
    slots: NDArray[np.int64],
    count: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The `count` best of those held and some more, in no order; of equal scores the lower slots."""
    scores = np.hstack([held[0], scores])
    slots = np.hstack([held[1], np.broadcast_to(slots, (len(scores), len(slots)))])
    if scores.shape[1] <= count:
        return scores, slots
    top = np.argpartition(scores, scores.shape[1] - count, axis=1)[:, -count:]
    least = np.take_along_axis(scores, top, axis=1).min(axis=1)
    reached = scores >= least[:, None]
    for query in np.flatnonzero(reached.sum(axis=1) > count):
        tied = np.flatnonzero(reached[query])
        top[query] = tied[np.lexsort((slots[query, tied], -scores[query, tied]))[:count]]
    return np.take_along_axis(scores, top, axis=1), np.take_along_axis(slots, top, axis=1)


def _ranked(
    keys: NDArray[np.float32],
    queries: NDArray[np.float32],
    candidates: NDArray[np.int64],
    k: int,
    tolerance: NDArray[np.float64],
) -> Best:
    """The k best of each query's candidates int64[n, c], scored exactly."""
    all_slots, all_scores = [], []
    for query, slots in zip(queries, candidates, strict=True):
        scores = exact_scores(keys[slots], query)
        order = np.lexsort((slots, -scores))[:k]
        all_slots.append(slots[order])
        all_scores.append(scores[order])
    return Best(all_slots, all_scores, tolerance)


def exact_scores(keys: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[c]: products of float32 numbers are exact in float64, and math.fsum rounds their sum once."""
    products = keys.astype(np.float64) * query.astype(np.float64)
    return np.array([math.fsum(row) for row in products.tolist()])


def wrong_exactly(right: Best, slots: Sequence[NDArray[np.int64]], scores: Sequence[NDArray[np.float32]]) -> str:
    """The error in an answer that promises to be exact: slots in order, and scores to one unit; "" for none."""
    if len(slots) != len(right.slots):
        return f"{len(slots)} answers for {len(right.slots)} queries"
    for i, (own, expected) in enumerate(zip(slots, right.slots, strict=True)):
        if not np.array_equal(own, expected):
            return f"query {i}: slots {own[:3].tolist()}… where {expected[:3].tolist()}… are right"
        rounded = right.scores[i].astype(np.float32)
        if (np.abs(np.asarray(scores[i]) - rounded) > np.spacing(np.abs(rounded))).any():
            return f"query {i}: a score is off"
    return ""


def wrong_nearly(
    right: Best,
    slots: Sequence[NDArray[np.int64]],
    keys: NDArray[np.float32],
    queries: NDArray[np.float32],
    mask: NDArray[np.bool_] | None = None,
) -> tuple[str, str]:
    """The error in a float32 answer, and a remark: other slots that score as well in float32."""
    if len(slots) != len(right.slots):
        return f"{len(slots)} answers for {len(right.slots)} queries", ""
    others = 0
    for i, (own, expected) in enumerate(zip(slots, right.slots, strict=True)):
        if len(own) != len(expected) or len(np.unique(own)) != len(own):
            return f"query {i}: {len(own)} slots where {len(expected)} different ones are right", ""
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < len(keys):
            return f"query {i}: a slot that does not exist", ""
        if mask is not None and not mask[own].all():
            return f"query {i}: a slot that the filter removes", ""
        extra = np.setdiff1d(own, expected)
        if len(extra):
            others += 1
            reached = keys[extra].astype(np.float64) @ queries[i].astype(np.float64)
            if (reached < right.scores[i][-1] - 2 * right.tolerance[i]).any():
                return f"query {i}: slot {int(extra[int(np.argmin(reached))])} is not among the best", ""
    return "", f"other slots than the exact ones for {others} of {len(slots)} queries" if others else ""


def check_best(
    right: Mapping[str, Best],
    keys: NDArray[np.float32],
    queries: NDArray[np.float32],
    mask: NDArray[np.bool_] | None = None,
) -> Check:
    """Contestants in `right` promise to be exact; others answer as dualform, but for what float32 cannot tell."""

    def check(name: str, answer: Any) -> tuple[str, str]:
        if name not in right:
            return wrong_nearly(right[OURS], answer, keys, queries, mask)
        slots, scores = (list(chain(*own)) if answer.groups else own for own in (answer.slots, answer.scores))
        return wrong_exactly(right[name], slots, scores), ""

    return check


@dataclass(frozen=True, eq=False)
class Sums:
    signed: NDArray[np.float64]
    """float64[n, G]."""
    absolute: NDArray[np.float64]

    def first(self, count: int) -> Sums:
        """The right sums of the first queries."""
        return Sums(self.signed[:count], self.absolute[:count])


def sums(keys: NDArray[np.float32], queries: NDArray[np.float32], groupings: Sequence[Groups]) -> list[Sums]:
    """The right sums for each grouping, from one pass over the keys."""
    wide = queries.astype(np.float64)
    found = [Sums(np.zeros((len(wide), g.count)), np.zeros((len(wide), g.count))) for g in groupings]
    for start in range(0, len(keys), BLOCK):
        scores = wide @ keys[start : start + BLOCK].astype(np.float64).T
        for grouping, held in zip(groupings, found, strict=True):
            numbers = grouping.numbers[start : start + BLOCK]
            for query, own in enumerate(scores):
                held.signed[query] += np.bincount(numbers, own, grouping.count)
                held.absolute[query] += np.bincount(numbers, np.abs(own), grouping.count)
    return found


def wrong_sums(right: Sums, absolute: bool, found: NDArray[np.float64], relative: float) -> str:
    """The error in sums that may be off by `relative` of the group's sum of absolute scores; "" for none."""
    expected = right.absolute if absolute else right.signed
    if found.shape != expected.shape:
        return f"sums of shape {found.shape} where {expected.shape} is right"
    off = np.abs(found - expected) - relative * right.absolute
    if not (off <= 0).all():
        query, group = np.unravel_index(int(np.argmax(off)), off.shape)
        return f"query {query}, group {group}: {found[query, group]:g} where {expected[query, group]:g} is right"
    return ""
