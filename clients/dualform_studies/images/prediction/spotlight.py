"""What one prediction attends to, asked of a memory in process or over gRPC. Shapes: G groups (dataset, label).

Scores are absolute at every layer, as in the paper's code: inputs of the first layer may be negative, and after relu
the absolute value changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.methods import Answers
from dualform.questions import QuerySetExamples

_BY = ("dataset", "label")
_RANKED_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class LayerSpotlight:
    """The attention of one layer."""

    layer: str
    groups: tuple[tuple[str, int], ...]
    """Dataset and label of each group, datasets in the order of training."""
    best: Sequence[NDArray[np.float32]]
    """For each group, its greatest attention weights in descending order."""
    sums: NDArray[np.float64]
    """float64[G]: all attention weights of a group summed."""
    counts: NDArray[np.int64]
    """int64[G]: training datapoints of each group."""
    top: Sequence[dict[str, Any]]
    """The training images attended to most: of each the datapoint of greatest weight, its slot columns and `score`."""

    @property
    def strongest(self) -> tuple[str, int]:
        """The group with the greatest sum."""
        return self.groups[int(np.argmax(self.sums))]


def ask_spotlight(
    memory: Answers,
    layers: Sequence[str],
    query: QuerySetExamples,
    datasets: Sequence[str],
    *,
    where: str | None = None,
    per_group: int = 500,
    top: int = 5,
) -> list[LayerSpotlight]:
    """Distribution, sums and top images of one stored query at each layer (figures 8, 9 and 22 of the paper)."""
    return [_ask_layer(memory, layer, query, datasets, where, per_group, top) for layer in layers]


def _ask_layer(
    memory: Answers,
    layer: str,
    query: QuerySetExamples,
    datasets: Sequence[str],
    where: str | None,
    per_group: int,
    top: int,
) -> LayerSpotlight:
    sums = memory.group_sum(layer, query, by=_BY, where=where, score="abs")
    best = memory.topk(layer, query, k=per_group, by=_BY, where=where, score="abs")
    scores = {group: np.abs(best.scores[0][at]) for at, group in enumerate(best.groups or ())}
    order = sorted(range(len(sums.groups)), key=lambda at: (datasets.index(sums.groups[at][0]), sums.groups[at][1]))
    return LayerSpotlight(
        layer=layer,
        groups=tuple((str(sums.groups[at][0]), int(sums.groups[at][1])) for at in order),
        best=[scores[sums.groups[at]] for at in order],
        sums=sums.sums[0][order],
        counts=sums.counts[order],
        top=_top_images(memory, layer, query, where, top),
    )


def _top_images(
    memory: Answers, layer: str, query: QuerySetExamples, where: str | None, top: int
) -> list[dict[str, Any]]:
    """The best datapoint of each of the `top` best images; an image comes back in every epoch, with a like key."""
    k = 16 * top
    while True:
        hits = memory.topk(layer, query, k=k, where=where, score="abs")
        records = memory.slots(hits).records()
        images: dict[tuple[str, int], dict[str, Any]] = {}
        for record, score in zip(records, hits.scores[0], strict=True):
            images.setdefault((record["dataset"], record["sample"]), {**record, "score": abs(float(score))})
        if len(images) >= top or len(records) < k:
            return list(images.values())[:top]
        k *= 4


def clearest_interference(
    memory: Answers, layer: str, query_set: str, rows: NDArray[np.int64], given: NDArray[np.int64], intruder: str
) -> int | None:
    """The row whose wrong class the intruding dataset explains best, None where there is no row.

    `given[i]` is the class that the network gives row `rows[i]`. A row counts by the share of its attention at `layer`
    that goes to the intruder's datapoints of that class; rows where these are the strongest group come first.
    """
    best: tuple[bool, float, int] | None = None
    for start in range(0, len(rows), _RANKED_AT_ONCE):
        part = rows[start : start + _RANKED_AT_ONCE]
        answer = memory.group_sum(layer, QuerySetExamples(query_set, tuple(part.tolist())), by=_BY, score="abs")
        for row, label, sums in zip(part, given[start : start + _RANKED_AT_ONCE], answer.sums, strict=True):
            if (intruder, int(label)) not in answer.groups:
                continue
            group = answer.groups.index((intruder, int(label)))
            found = (bool(sums.argmax() == group), float(sums[group] / sums.sum()), -int(row))
            best = found if best is None else max(best, found)
    return None if best is None else -best[2]
