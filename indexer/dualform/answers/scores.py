"""Answers about scores: hits, sums by group and distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.answers.contents import MOST_ROWS, bars, with_names, with_samples
from dualform.answers.table import (
    ByQuery,
    Columns,
    Scan,
    Status,
    Table,
    as_html,
    axes_or_new,
    beside,
    check_number,
    column_of,
    counted,
    draw_bars,
    draw_curve,
    draw_ranks,
    first_places,
    free_name,
    group_columns,
    name_of,
    slots_told,
)


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
class Hits(ByQuery, Table):
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

    _of_queries: ClassVar[tuple[str, ...]] = ("counts", "ids", "flat_scores", "repeats")

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

    def part(self, start: int, stop: int) -> Hits:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        first, last = (int(self.counts[:end].sum()) for end in (start, stop))
        own = slice(first, last)
        repeats = None if self.repeats is None else self.repeats[own]
        ids, scores, counts = self.ids[own], self.flat_scores[own], self.counts[start:stop]
        return replace(self, ids=ids, flat_scores=scores, counts=counts, repeats=repeats)

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


@dataclass(frozen=True, eq=False, repr=False)
class GroupSums(ByQuery, Table):
    """The sum of scores over each group, for each query (paper section 5.2, figure 5). n queries, G groups.

    With `k`, each query has separate groups: the k with the largest sums by absolute value. `numbers` then gives the
    place of each in `groups`. `ranked` gives them by name in both cases. Iterating gives `ranked` of each query.
    """

    groups: tuple[GroupKey, ...]
    """The values of `by` for each group, in order of value, with NULL (None) last."""
    sums: NDArray[np.float64]
    """float64[n, G]; with k, float64[n, min(k, total)], largest first."""
    counts: NDArray[np.int64]
    """int64[G]: the number of slots in each group."""
    by: tuple[str, ...] = ()
    """The columns of the groups."""
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space."""
    status: Status | None = None
    """For contributions, the status of the layer; None for other scores."""
    numbers: NDArray[np.int64] | None = None
    """int64[n, min(k, total)]: the place of each sum's group in `groups`; None without k."""
    total: int | None = None
    """The number of all groups, of which `groups` are some; None without k."""

    _of_queries: ClassVar[tuple[str, ...]] = ("sums", "numbers")

    def part(self, start: int, stop: int) -> GroupSums:
        """The result for the queries from start to stop. `scan` stays that of the whole."""
        if self.numbers is None:
            return replace(self, sums=self.sums[start:stop])
        used, numbers = np.unique(self.numbers[start:stop], return_inverse=True)
        return replace(
            self,
            groups=tuple(self.groups[number] for number in used.tolist()),
            sums=self.sums[start:stop],
            counts=self.counts[used],
            numbers=numbers.reshape(stop - start, self.numbers.shape[1]),
        )

    def of_largest(self, k: int) -> GroupSums:
        """Only the k groups of each query with the largest sums."""
        sums, numbers = largest(self.sums, k)
        return replace(self, sums=sums, numbers=numbers, total=len(self.groups)).part(0, len(sums))

    def ranked(self, query: int = 0) -> list[tuple[GroupKey, float, int]]:
        """The groups of one query with their sums and slot counts, by size of the sum, then by value."""
        sums = self.sums[query]
        numbers = np.arange(len(sums)) if self.numbers is None else self.numbers[query]
        order = np.argsort(-np.abs(sums), kind="stable")
        named = (numbers[order].tolist(), sums[order].tolist())
        return [(self.groups[number], own, int(self.counts[number])) for number, own in zip(*named, strict=True)]

    def __iter__(self) -> Iterator[list[tuple[GroupKey, float, int]]]:
        return map(self.ranked, range(len(self)))

    @property
    def rows(self) -> int:
        return self.sums.size

    def table(self, most: int | None = None) -> Columns:
        """One row for each query and group: query, the columns of `by`, sum and count."""
        query, place = first_places(self.sums.shape, most)
        numbers = place if self.numbers is None else self.numbers[query, place]
        found = {"query": query, "sum": self.sums[query, place], "count": self.counts[numbers]}
        groups = group_columns(self.by, self.groups, numbers)
        return Columns(beside(found, groups, 1), self.scan, self.space)

    def plot(self, query: int = 0, most: int = 20, axes: Any = None) -> Any:
        """Plot the sums of one query as bars, the `most` largest first (paper, figure 5). Returns matplotlib's axes."""
        shown = self.ranked(check_number(query, len(self), "query"))[:most]
        axes = axes_or_new(axes)
        draw_bars(axes, [name_of(self.by, group) for group, _, _ in shown], [own for _, own, _ in shown], "sum")
        axes.set_ylabel(", ".join(self.by))
        return axes

    def _html(self, memory: Any, question: Any) -> str:
        """The first sums, as bars, too; of many groups those that are largest for the first query."""
        own, title = self, self.title()
        if self.numbers is None and self.sums.shape[1] > MOST_ROWS:
            own = self.part(0, 1).of_largest(MOST_ROWS)
            title += f"; the {MOST_ROWS} largest of query 0 are shown"
        shown = own.table(MOST_ROWS).arrays
        shown = {**shown, **with_names({name: shown[name] for name in self.by if name in shown}, memory)}
        drawn = bars([(0.0, number) for number in own.sums.ravel()[:MOST_ROWS].tolist()])
        table = Columns({**shown, free_name("bar", shown): column_of(drawn)})
        return as_html(table, own.rows, title, MOST_ROWS - 2)

    def title(self) -> str:
        groups = counted(len(self.groups) if self.total is None else self.total, "group")
        by = f" by {', '.join(self.by)}" if self.by else ""
        of = slots_told(self.scan, self.space)
        shown = "" if self.numbers is None else f"; the {self.numbers.shape[1]:,} largest of each query"
        record = "" if self.status is None else f"; the layer's record is {self.status}"
        return f"GroupSums{by}: {counted(len(self), 'query')}, {groups}{f' of {of}' if of else ''}{shown}{record}"


def largest(sums: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """float64 and int64[n, min(k, G)]: the numbers of each row of float64[n, G] with the largest absolute values, and
    their places. Ordered by size, then by place, which also decides between ties at the k-th.
    """
    sizes = np.abs(sums)
    k = min(k, sums.shape[1])
    found = np.empty((len(sums), k), dtype=np.int64)
    for own, places in zip(sizes, found, strict=True):
        least = np.partition(own, len(own) - k)[len(own) - k]
        above, level = np.flatnonzero(own > least), np.flatnonzero(own == least)
        chosen = np.concatenate([above, level[: k - len(above)]])
        places[:] = chosen[np.lexsort((chosen, -own[chosen]))]
    return np.take_along_axis(sums, found, axis=1), found


@dataclass(frozen=True, eq=False, repr=False)
class Distributions(ByQuery, Table):
    """The scores of all slots by rank, for each query: highest score first, ties by slot number.

    Scores are given at some ranks, the same for every query. They are evenly spaced on a logarithmic axis, from the
    best slot to the last, and contain the first ten. Iterating gives a Distributions for each query.
    """

    ranks: NDArray[np.int64]
    """int64[r], ascending, from 1 to `count`, both included."""
    scores: NDArray[np.float32]
    """float32[n, r]: the score at each rank."""
    cumulative: NDArray[np.float64]
    """float64[n, r]: the sum of the absolute scores up to and including each rank."""
    totals: NDArray[np.float64]
    """float64[n]: the sum of the absolute scores of all slots."""
    effective_slots: NDArray[np.float64]
    """float64[n], (sum |s|)^2 / sum s^2: the effective number of slots; 0.0 if all scores are 0."""
    count: int
    """The number of ranked slots: those that the filter keeps and, for contributions, whose gradient an update used."""
    scan: Scan = field(default_factory=Scan)
    space: str = ""
    """The slot space."""
    status: Status | None = None
    """For contributions, the status of the layer; None for other scores."""

    _of_queries: ClassVar[tuple[str, ...]] = ("scores", "cumulative", "totals", "effective_slots")

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[n, r]: `cumulative` as a share of the total; 0.0 if all scores are 0."""
        totals = self.totals[:, None]
        return np.divide(self.cumulative, totals, out=np.zeros_like(self.cumulative), where=totals > 0)

    @property
    def rows(self) -> int:
        return self.scores.size

    def table(self, most: int | None = None) -> Columns:
        """One row for each query and rank: query, rank, score, sum of absolute scores so far, and its share."""
        query, place = first_places(self.scores.shape, most)
        found: dict[str, NDArray[Any]] = {
            "query": query,
            "rank": self.ranks[place],
            "score": self.scores[query, place],
            "cumulative": self.cumulative[query, place],
            "share": self.shares[query, place],
        }
        return Columns(found, self.scan, self.space)

    def plot(self, query: int = 0, axes: Any = None) -> Any:
        """Plot the scores of one query by rank, on a logarithmic axis. Returns matplotlib's axes."""
        own = check_number(query, len(self), "query")
        axes = axes_or_new(axes)
        draw_curve(axes, self.ranks, self.scores[own], "score")
        return axes

    def title(self) -> str:
        return f"Distributions: {counted(len(self), 'query')}, {counted(self.count, 'slot')}"
