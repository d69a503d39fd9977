"""A question about one layer, resolved against one snapshot: its layer, queries, mask and groups.

Shapes: n queries, d_in of the layer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Scan
from dualform.errors import BadInput, NotFound
from dualform.query.groups import Groups
from dualform.query.score import kinds
from dualform.query.score.score import Score
from dualform.query.view import View
from dualform.query.where.mask import Selection
from dualform.questions import GroupSum, Output, ProbeRows, Queries, SlotKeys, TopK, Vectors
from dualform.store.layer import Layer

Q = TypeVar("Q", TopK, GroupSum, Output)


@dataclass(frozen=True, eq=False)
class Resolved(Generic[Q]):
    """All that answering needs besides the keys. Within a layer, slots are numbered by its entries."""

    question: Q
    view: View
    layer: Layer
    queries: NDArray[np.float32]
    """float32[n, d_in], finite."""
    selection: Selection
    """The entries that the mask leaves, at least one."""
    groups: Groups | None
    """None if the question has no `by`."""
    began: float = field(default_factory=time.perf_counter)
    """When the question arrived, in seconds of time.perf_counter()."""

    @property
    def score(self) -> Score:
        """Raises BadInput where the question's score is unknown."""
        assert not isinstance(self.question, Output), "an Output has no score"
        return kinds.named(self.question.score)

    def scan(self) -> Scan:
        """What answering has taken so far."""
        return Scan(
            snapshot=self.view.snapshot.commits,
            slots_scanned=len(self.selection.stays),
            slots_matching=self.selection.count,
            backend=self.view.backend.name,
            seconds=time.perf_counter() - self.began,
        )


def resolve(view: View, question: Q) -> Resolved[Q]:
    """Raises NotFound, BadInput, BadMask or EmptyMask, naming what is wrong with the question."""
    began = time.perf_counter()
    layer = view.layer(question.layer)
    queries = vectors(view, layer, question.queries)
    selection = view.selection(layer, question.where)
    by = () if isinstance(question, Output) else question.by
    groups = view.groups(layer, selection, by) if by else None
    return Resolved(question, view, layer, queries, selection, groups, began)


def vectors(view: View, layer: Layer, queries: Queries) -> NDArray[np.float32]:
    """float32[n, d_in], finite.

    Raises BadInput for a wrong width or no query at all, NotFound for a probe, row or slot that does not exist.
    """
    match queries:
        case Vectors(rows):
            if rows.shape[1] != layer.d_in:
                raise BadInput(
                    f"layer {layer.name!r} takes {layer.d_in} numbers, got {rows.shape[1]}.", field="queries"
                )
            return rows
        case ProbeRows(probe, numbers):
            rows = view.snapshot.probe(probe).queries(layer.name)
            found = rows if numbers is None else rows[within(numbers, len(rows), f"row of probe {probe!r}", "queries")]
        case SlotKeys(slots):
            ids = within(slots, view.count(layer.space), "slot", "queries")
            found = view.snapshot.keys(layer.name).of_entries(view.entries_of(layer, ids))
    return Vectors(found).rows  # refuses none at all, and what is not finite


def within(numbers: Sequence[int] | NDArray[np.int64], count: int, what: str, field: str) -> NDArray[np.int64]:
    """The numbers, checked. Raises NotFound, naming the first one that is not from 0 to count - 1."""
    ids = np.asarray(numbers)
    if ids.size and ids.dtype.kind not in "iu":
        raise BadInput(f"a {what} is numbered by integers.", field=field)
    beyond = np.flatnonzero((ids < 0) | (ids >= count))
    if len(beyond):
        there = f"There are {count}: 0 to {count - 1}." if count else "There is none."
        raise NotFound(f"no {what} has number {int(ids[beyond[0]])}.", hint=there, field=field)
    return ids.astype(np.int64)
