"""The training datapoints that queries attend to most. Shapes: n queries, G groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns, as_html
from dualform.answers.html import MOST_ROWS, with_samples
from dualform.answers.plots import axes_or_new, check_number, draw_ranks, name_of
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Table, beside, counted, group_columns, slots_told


class SlotLookup(Protocol):
    """Who knows the columns of slots: a memory (dualform.methods)."""

    def slots(self, ids: Any) -> Columns: ...


GroupKey: TypeAlias = tuple[Any, ...]
"""The values of a group's columns; None is NULL."""


class Hit(NamedTuple):
    """One of the best slots of a query."""

    rank: int
    """From 1; within the group if there are groups."""
    slot: int
    score: float
    group: GroupKey | None = None
    repeats: int | None = None
    """With `distinct`: how many slots of its sample rank at or above the last hit."""


@dataclass(frozen=True, eq=False, repr=False)
class Hits(Table):
    """The best slots of each query: highest score first, ties by slot number (paper section 5.2, figure 4).

    For query i, `slots[i]` is int64[hits] and `scores[i]` float32[hits]. With `by`, `groups` has the values of each
    group, and `slots[i][g]` and `scores[i][g]` are the best of group g. If fewer than k slots match, there are fewer
    hits. Iterating gives the hits of each query.
    """

    ids: NDArray[np.int64]
    """All slots, by query and group."""
    flat_scores: NDArray[np.float32]
    """The score of each of `ids`."""
    counts: NDArray[np.int64]
    """int64[n, max(G, 1)]: how many of `ids` belong to each query and group."""
    groups: tuple[GroupKey, ...] | None = None
    by: tuple[str, ...] = ()
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space of `ids`."""
    status: Status | None = None
    """For contributions, the status of the layer; None for other scores."""
    repeats: NDArray[np.int64] | None = None
    """With `distinct`: for each of `ids`, how many slots of the same sample rank at or above the last hit of its list,
    including itself. Their sum is the length of the list without `distinct`."""

    @property
    def slots(self) -> Sequence[Any]:
        """By query, int64[k], best first; with `by`, a list with one array for each group."""
        return self._split(self.ids)

    @property
    def scores(self) -> Sequence[Any]:
        """By query, float32[k]: the scores of `slots`."""
        return self._split(self.flat_scores)

    def _split(self, column: NDArray[Any]) -> list[Any]:
        parts = iter(np.split(column, np.cumsum(self.counts.ravel())[:-1]))
        rows = [[next(parts) for _ in range(self.counts.shape[1])] for _ in range(self.counts.shape[0])]
        return [row[0] for row in rows] if self.groups is None else rows

    @property
    def nbytes(self) -> int:
        """The size of the numbers in bytes."""
        repeats = 0 if self.repeats is None else self.repeats.nbytes
        return self.ids.nbytes + self.flat_scores.nbytes + self.counts.nbytes + repeats

    def part(self, start: int, stop: int) -> Hits:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        first, last = (int(self.counts[:end].sum()) for end in (start, stop))
        own = slice(first, last)
        repeats = None if self.repeats is None else self.repeats[own]
        ids, scores, counts = self.ids[own], self.flat_scores[own], self.counts[start:stop]
        return replace(self, ids=ids, flat_scores=scores, counts=counts, repeats=repeats)

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    def __iter__(self) -> Iterator[list[Hit]]:
        return map(self._of_query, range(len(self)))

    def _of_query(self, query: int) -> list[Hit]:
        own = self.part(query, query + 1)  # to split the hits of all for each would take their number squared
        repeats = own.repeats
        found, first = [], 0
        for group, count in zip(self.groups or [None], own.counts[0].tolist(), strict=True):
            for place in range(first, first + count):
                many = None if repeats is None else int(repeats[place])
                found.append(Hit(place - first + 1, int(own.ids[place]), float(own.flat_scores[place]), group, many))
            first += count
        return found

    @property
    def rows(self) -> int:
        return len(self.ids)

    def table(self, most: int | None = None) -> Columns:
        """One row for each hit: query, rank, the columns of `by`, slot and score."""
        own = slice(most)
        counts = self.counts.ravel()
        ends = np.cumsum(counts)
        part = np.searchsorted(ends, np.arange(len(self.ids))[own], side="right")
        found = {
            "query": part // self.counts.shape[1],
            "rank": np.arange(len(part)) - (ends - counts)[part] + 1,
            "slot": self.ids[own],
            "score": self.flat_scores[own],
        }
        if self.repeats is not None:
            found["repeats"] = self.repeats[own]
        groups = group_columns(self.by, self.groups or (), part % self.counts.shape[1]) if self.groups else {}
        return Columns(beside(found, groups, 2), self.scan, self.space)

    def plot(self, query: int = 0, axes: Any = None) -> Any:
        """Plot the scores of one query by rank, with a line for each group. Returns matplotlib's axes."""
        hits = self._of_query(check_number(query, len(self), "query"))
        names = {hit.group: name_of(self.by, hit.group) for hit in hits}
        lines = [(name, np.array([hit.score for hit in hits if hit.group == group])) for group, name in names.items()]
        axes = axes_or_new(axes)
        draw_ranks(axes, lines, "score")
        return axes

    def joined(self, memory: SlotLookup) -> Columns:
        """`table` with the columns of each slot, read from the memory in one call."""
        own = self.table()
        said = memory.slots(self).items() if len(self.ids) else ()
        others = {name: column for name, column in said if name != "slot" and name not in self.by}
        return Columns(beside(own.arrays, others, len(own.arrays)), self.scan, self.space)

    def _html(self, memory: Any, question: Any) -> str:
        """The first hits, with their samples and previews if the memory can be asked."""
        if memory is None or not len(self.ids):
            return super()._html(memory, question)
        rows = with_samples(self.table(MOST_ROWS), self.ids[:MOST_ROWS], self.by, self.space, memory)
        return as_html(rows, self.rows, self.title(), MOST_ROWS - 2)

    def title(self) -> str:
        among = slots_told(self.scan, self.space)
        record = "" if self.status is None else f"; the layer's record is {self.status}"
        hits = f"{counted(len(self), 'query')}, {counted(len(self.ids), 'hit')}"
        return f"Hits: {hits}{f' among {among}' if among else ''}{record}"
