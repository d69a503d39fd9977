"""Two memories side by side: which samples the same queries attend to in either.

Hits are told apart by dataset and sample, never by slot, which counts in each memory by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dualform.answers import Hits, Scan
from dualform.errors import BadInput
from dualform.methods import Answers
from dualform.questions import Queries, QuerySetExamples

Key: TypeAlias = tuple[str | None, int]
"""Dataset and sample."""


@dataclass(frozen=True)
class Place:
    """Where a sample stands among those that a query attends to most."""

    rank: int
    """From 1; a sample that has several slots stands where its best one does."""
    score: float
    step: int
    """Of its best slot."""


@dataclass(frozen=True)
class Sample:
    """A sample that is among the best of at least one memory."""

    dataset: str | None
    sample: int
    label: Any
    places: tuple[Place | None, Place | None]
    """In the first memory and in the second; None where it is not among the best there."""


@dataclass(frozen=True)
class Comparison:
    """What two memories answer to the same queries."""

    queries: Sequence[Sequence[Sample]]
    """By query, samples in the order of the first memory, then others in that of the second."""
    scans: tuple[Scan, Scan]
    """What each memory's answer took, and on what share of its slots it stands."""
    space: str = ""
    """The slot space of the layer in the first memory."""


def compare(
    memories: tuple[Answers, Answers], layer: str, queries: Queries, k: int, where: str | None, score: str
) -> Comparison:
    """The samples of the k best slots of either memory.

    Raises BadInput where a hit has no sample, where the memories have no dataset in common, or where a query set does
    not hold the same examples in both; otherwise as `Answers.topk`.
    """
    _check_datasets(memories)
    if isinstance(queries, QuerySetExamples):
        _check_query_set(memories, queries.query_set)
    hits = [memory.topk(layer, queries, k, where, score=score) for memory in memories]
    first, second = (_best(memory, own, n) for n, (memory, own) in enumerate(zip(memories, hits, strict=True), 1))
    found = [_joined(one, other) for one, other in zip(first, second, strict=True)]
    return Comparison(found, (hits[0].scan, hits[1].scan), hits[0].space)


def _check_datasets(memories: tuple[Answers, Answers]) -> None:
    first, second = map(_datasets, memories)
    if first.isdisjoint(second):
        said = [", ".join(sorted(name or "slots without one" for name in own)) for own in (first, second)]
        raise BadInput(
            f"the memories have no dataset in common: the first has {said[0]}, the second {said[1]}.",
            hint="Record both memories with the same dataset names.",
            field="queries",
        )


def _datasets(memory: Answers) -> set[str | None]:
    """The names of a memory's datasets; None among them where some slot has none."""
    info = memory.info()
    unnamed = sum(info.slots.values()) > sum(info.datasets.values())
    return {*info.datasets, None} if unnamed else set(info.datasets)


def _check_query_set(memories: tuple[Answers, Answers], name: str) -> None:
    first, second = (memory.query_set(name).labels for memory in memories)
    if first is not None and second is not None and not np.array_equal(first, second):
        raise BadInput(
            f"the query set {name!r} has other labels in the second memory than in the first.",
            hint="Compare by a query set of the same examples, in the same order.",
            field="queries",
        )


def _best(memory: Answers, hits: Hits, number: int) -> list[dict[Key, tuple[Place, Any]]]:
    """By query, the samples of its best slots in order, with their labels."""
    ids = np.unique(hits.ids)
    slots = {record["slot"]: record for record in memory.slots(ids, hits.space).records()} if len(ids) else {}
    unknown = next((slot for slot, record in slots.items() if record["sample"] is None), None)
    if unknown is not None:
        raise BadInput(
            f"slot {unknown} of the {('first', 'second')[number - 1]} memory has no sample.",
            hint="Pass dataset and sample to every step that you record.",
            field="queries",
        )
    found = []
    for own, scores in zip(hits.slots, hits.scores, strict=True):
        best: dict[Key, tuple[Place, Any]] = {}
        for slot, value in zip(own.tolist(), scores.tolist(), strict=True):
            record = slots[slot]
            place = Place(len(best) + 1, value, record["step"])
            best.setdefault((record["dataset"], record["sample"]), (place, record["label"]))
        found.append(best)
    return found


def _joined(first: Mapping[Key, tuple[Place, Any]], second: Mapping[Key, tuple[Place, Any]]) -> list[Sample]:
    samples = []
    for key in dict.fromkeys((*first, *second)):
        one, other = first.get(key), second.get(key)
        label = next(entry[1] for entry in (one, other) if entry is not None)
        samples.append(Sample(*key, label, (one and one[0], other and other[0])))
    return samples


def shared(samples: Sequence[Sample]) -> int:
    """How many are among the best of both memories."""
    return sum(None not in sample.places for sample in samples)
