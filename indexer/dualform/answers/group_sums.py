"""The attention that queries give to groups of training datapoints. Shapes: n queries, G groups, k asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers.columns import Columns, as_html, column_of
from dualform.answers.hits import GroupKey
from dualform.answers.html import MOST_ROWS, bars, with_names
from dualform.answers.plots import axes_or_new, check_number, draw_bars, name_of
from dualform.answers.scan import Scan
from dualform.answers.status import Status
from dualform.answers.table import Table, beside, counted, first_places, free_name, group_columns, slots_told


@dataclass(frozen=True, eq=False, repr=False)
class GroupSums(Table):
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

    @property
    def nbytes(self) -> int:
        """The size in bytes of the numbers that grow with the queries."""
        return self.sums.nbytes + (0 if self.numbers is None else self.numbers.nbytes)

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

    def __len__(self) -> int:
        return len(self.sums)

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
